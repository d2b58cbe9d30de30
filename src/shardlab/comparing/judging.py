"""From groups of runs to an answer: the ranking, the choice, the gates, the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardlab.comparing.choice import best_of, sentences
from shardlab.comparing.gates import Gate, Rules, gates
from shardlab.comparing.matrix import CompareConfig
from shardlab.comparing.standing import Row, Standing, standings, worst
from shardlab.comparing.turns import key_of_row
from shardlab.errors import ExitCode, UsageError
from shardlab.intervals import FEWEST

Groups = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Answer:
    """All that a comparison came to."""

    header: str
    ranked: Sequence[Standing]
    said: Sequence[str]
    held: Sequence[Gate]

    @property
    def code(self) -> int:
        """3 where a configuration delivered something else than it should, 4 for a gate, 1 where none ended well."""
        if any(each.status == "audit" for each in self.ranked):
            return int(ExitCode.AUDIT)
        if not all(gate.passed for gate in self.held):
            return int(ExitCode.GATE)
        return int(ExitCode.OK if any(each.status == "ok" for each in self.ranked) else ExitCode.FAILED)


def answered(
    groups: Groups,
    against: Mapping[str, str],
    wanted: CompareConfig,
    comparison: str = "",
    left_out: Sequence[str] = (),
) -> Answer:
    """Rank the groups, each against its baseline, choose, and hold them against the gates."""
    ranked = standings(groups, against, comparison)
    rules = Rules(wanted.max_copies, wanted.min_ratio, wanted.baseline is not None)
    return Answer(
        _header(ranked, groups),
        ranked,
        list(sentences(ranked, best_of(ranked), groups)),
        gates(ranked, rules, _not_measured(wanted, ranked, left_out)),
    )


def one_baseline(groups: Groups, name: str | None) -> dict[str, str]:
    """All against the group of this name, sampler, or ``sampler+store+workers``.

    Without a name against the first that ended well, and against none where there is none.
    Raises UsageError where the name is none of them.
    """
    if name is None:
        well = [key for key, rows in groups.items() if worst(rows) == "ok" and rows[0]["samples_per_s"]]
        return dict.fromkeys(groups, well[0]) if well else {}
    parts = [part.strip() for part in name.split("+")]
    axes = {key: list(key_of_row(rows[0])) for key, rows in groups.items()}
    found = [key for key, each in axes.items() if name == key or each[: len(parts)] == parts]
    if not found:
        raise UsageError(
            "--baseline must name one that is compared", name, ["+".join(each) for each in axes.values()]
        )
    return dict.fromkeys(groups, found[0])


def _not_measured(wanted: CompareConfig, ranked: Sequence[Standing], left_out: Sequence[str]) -> list[str]:
    """Why samplers that were named are not in the ranking at all."""
    there = {each.sampler for each in ranked}
    named = [] if wanted.samplers == "auto" or wanted.of else [s.strip() for s in wanted.samplers.split(",")]
    whys = {name: f"{name.rpartition('/')[2]} + " for name in named if name and name not in there}
    return [next((why for why in left_out if why.startswith(start)), f"{name}: left out")
            for name, start in whys.items()]  # fmt: skip


def _header(ranked: Sequence[Standing], groups: Groups) -> str:
    first, runs = next(iter(groups.values()))[0], [each.runs for each in ranked]
    often = str(max(runs)) if min(runs) == max(runs) else f"{min(runs)} to {max(runs)}"
    return (
        f"{first['dataset']} on {first['nproc']} ranks x batch {first['batch_size']}: {len(ranked)} configurations, "
        f"{often} runs of each, medians\n"
        f"from and to are 95 % intervals, where there are {FEWEST} runs; of copies what the noise of a run leaves. "
        "CPU s is for 1000 samples."
    )
