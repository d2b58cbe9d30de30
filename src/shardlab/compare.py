"""Which data path should I use here? Measures the ways of feeding the ranks in turn, ranks them, names the best.

Every sampler that fits the dataset, or those of --samplers, with --stores and --workers, each --repeats times in
fresh processes, in turn. Given again after it was interrupted it goes on where it stopped. A configuration that fails
is told of, and fails the gates; without gates the exit code is 0 as long as one ended well. All other flags are those
of shardlab.profile.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from shardlab import csvlog
from shardlab.bar import Bar
from shardlab.command import has_cuda
from shardlab.comparing import past, turns
from shardlab.comparing.judging import Answer, answered, one_baseline
from shardlab.comparing.matrix import AXES, CompareConfig, Matrix, chosen, key_of, matrix
from shardlab.comparing.screen import as_object, ranking
from shardlab.comparing.standing import Row
from shardlab.config import OutputConfig, RunConfig
from shardlab.ends import exit_code_of
from shardlab.errors import ExitCode, UsageError
from shardlab.explain import explained
from shardlab.intervals import FEWEST
from shardlab.show import console
from shardlab.world import refuse_to_join

PROG = "python -m shardlab.compare"


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; it has to be set before torch loads
    return exit_code_of(lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: list[str]) -> int:
    wanted, base, output = parse(argv)
    if output.explain is not None:
        print(explained(output.explain))
        return int(ExitCode.OK)
    refuse_to_join(PROG)
    _refuse_gates_that_cannot_be_decided(wanted, output)
    if wanted.of is not None:
        groups, against = past.past_groups(wanted.of.split(","), wanted, base, _given(argv))
        return _tell(answered(groups, against or one_baseline(groups, wanted.baseline), wanted), "", output)
    choices = matrix(wanted, base, cuda=base.device == "auto" and has_cuda(base.nproc))
    if output.dry_run:
        return _dry_run(choices, wanted)
    return _measure(choices, wanted, base, output)


def _measure(choices: Matrix, wanted: CompareConfig, base: RunConfig, output: OutputConfig) -> int:
    names = choices.names
    named = None if wanted.baseline is None else names[key_of(chosen(wanted.baseline, choices.configs))]
    for note in choices.notes:
        print(f"Note: {note}", file=sys.stderr)
    csvlog.check_writable(Path(output.results))
    with (
        turns.alone_in(output.results),
        Bar(base.warmup + base.epochs, quiet=output.quiet) as bar,
    ):
        configs, refused, facts = turns.fitting(choices.configs, output, bar)
        comparison = turns.begin(
            configs, wanted.repeats, output, fresh=wanted.fresh, across_machines=wanted.across_machines
        )
        _say_what_is_there(comparison)
        comparison.run(bar, facts)
    groups: dict[str, list[Row]] = {}
    for row in comparison.rows():
        groups.setdefault(names[turns.key_of_row(row)], []).append(row)
    left_out = [*choices.left_out, *refused]
    against = one_baseline(groups, named) if named is None or named in groups else {}
    answer = answered(groups, against, wanted, comparison.name, left_out)
    return _tell(answer, comparison.name, output, left_out)


def parse(argv: list[str]) -> tuple[CompareConfig, RunConfig, OutputConfig]:
    """The command line as values. Wrong flags exit with 2, as every command's do."""
    hints = typing.get_type_hints(RunConfig, include_extras=True)
    shared = [f for f in dataclasses.fields(RunConfig) if f.name not in (*AXES, "repeats")]
    # Every flag of a run but those that a comparison varies, whatever flags there will be.
    others: Any = dataclasses.make_dataclass(
        "Others", [(f.name, hints[f.name], dataclasses.field(default=f.default)) for f in shared], frozen=True
    )

    def all_three(
        wanted: tyro.conf.OmitArgPrefixes[CompareConfig],
        run: Any,
        output: tyro.conf.OmitArgPrefixes[OutputConfig],
    ) -> tuple[CompareConfig, Any, OutputConfig]:
        return wanted, run, output

    all_three.__annotations__["run"] = Annotated[others, tyro.conf.OmitArgPrefixes]
    wanted, run, output = tyro.cli(all_three, description=__doc__, args=argv, prog=PROG)
    return wanted, RunConfig(**vars(run)), output


def _tell(
    answer: Answer, comparison: str, output: OutputConfig, left_out: Sequence[str] = ()
) -> int:
    """Print the answer, and keep the ranking of what was measured; the exit code."""
    out = console(json=output.json)
    out.print(answer.header, highlight=False, markup=False)
    out.print()
    out.print(ranking(answer.ranked))
    out.print()
    lines = (*answer.said, *(gate.sentence for gate in answer.held), *(f"Left out: {why}" for why in left_out))
    for line in lines:
        out.print(line, highlight=False, markup=False)
    if output.json:
        found = as_object(comparison, answer.ranked, answer.said, answer.held, left_out)
        print(json.dumps(found), flush=True)
    if comparison:
        csvlog.append(Path(output.results), "compare.csv", answer.ranked)
        out.print(f"Rows: {output.results}, comparison {comparison}", style="dim", highlight=False, markup=False)
    return answer.code


def _given(argv: Sequence[str]) -> set[str]:
    """Fields whose flag stands on the command line, at its default or not."""
    words = {word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_") for word in argv}
    return words | ({"nproc"} if words & {"nproc_per_node", "num_processes"} else set())


def _refuse_gates_that_cannot_be_decided(wanted: CompareConfig, output: OutputConfig) -> None:
    if wanted.max_copies is not None and not output.control and wanted.of is None:
        raise UsageError("--max-copies needs the control run", "--no-control", cure="leave --no-control out")
    if wanted.min_ratio is not None and wanted.repeats < FEWEST and wanted.of is None:
        raise UsageError(f"--min-ratio needs an interval, which {FEWEST} runs have", f"--repeats {wanted.repeats}")


def _say_what_is_there(comparison: turns.Comparison) -> None:
    there = len(comparison.rows())
    if there:
        total = len(comparison.configs) * comparison.repeats
        print(
            f"Goes on with comparison {comparison.name}: {there} of {total} runs are there. --fresh begins anew.",
            file=sys.stderr,
        )


def _dry_run(choices: Matrix, wanted: CompareConfig) -> int:
    baseline = chosen(wanted.baseline, choices.configs)
    for config in choices.configs:
        name = choices.names[key_of(config)]
        print(f"{name:40} {wanted.repeats} runs{', the baseline' if config is baseline else ''}")
    for note in choices.notes:
        print(f"Note: {note}")
    for why in choices.left_out:
        print(f"Left out: {why}")
    return int(ExitCode.OK)


if __name__ == "__main__":
    raise SystemExit(main())
