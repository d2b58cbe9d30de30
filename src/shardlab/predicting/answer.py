"""The answer of ``shardlab.predict``: what is run for it, its table, its sentences, its JSON."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from shardlab.config import OutputConfig, RunConfig, argv_of
from shardlab.launch.session import Viewer
from shardlab.plan import USER_PATH_STORES, path_plugin
from shardlab.predicting import sentences
from shardlab.predicting.advice import changes, least_of, verdict_of
from shardlab.predicting.model import Forecast
from shardlab.predicting.node import dataset_shm_bytes, shm_bytes
from shardlab.predicting.question import Limit, Question
from shardlab.predicting.room import shm_size
from shardlab.predicting.small_runs import Evidence, gathered


@dataclass(frozen=True)
class Answer:
    """What was found out. ``other`` is the forecast with another store, where it was measured.

    ``shm`` is how many bytes ``/dev/shm`` has here, None where that is not known.
    """

    config: RunConfig
    question: Question
    evidence: Evidence
    forecast: Forecast
    limit: Limit
    shm: int | None = None
    other: tuple[str, Forecast] | None = None

    @property
    def verdict(self) -> str:
        """``fits``, ``may not fit`` or ``does not fit``; here also where ``/dev/shm`` is too small."""
        here = self.limit.built_in is not None
        return "does not fit" if here and self.short_of_shm else self.of_memory

    @property
    def of_memory(self) -> str:
        """The same of memory alone."""
        return verdict_of(self.forecast.needs, self.limit.nbytes)

    @property
    def short_of_shm(self) -> bool:
        """Whether the datasets that ranks move to ``/dev/shm`` would not fit into that of this machine."""
        return self.shm is not None and dataset_shm_bytes(self.config, self.evidence.data) > self.shm


def answered(config: RunConfig, question: Question, output: OutputConfig, view: Viewer) -> Answer:
    """Run what has to be run, and forecast the job."""
    limit = question.memory()
    evidence = gathered(config, output, view, question.data_bytes)
    answer = Answer(config, question, evidence, evidence.forecast(config, question.nnodes), limit, shm_size())
    shared = with_shared_store(answer)
    if shared is None or not question.other_store:
        return answer
    again = gathered(shared, output, view, question.data_bytes)
    return replace(answer, other=("shared", again.forecast(shared, question.nnodes)))


def with_shared_store(answer: Answer) -> RunConfig | None:
    """The job with its dataset in shared memory; None where it fits as it is, or that is no choice."""
    config, path = answer.config, path_plugin(answer.config.sampler)
    offered = "shared" in (path.fact("STORES") if path else USER_PATH_STORES)
    if answer.verdict == "fits" or config.store == "shared" or not offered or answer.evidence.iterable:
        return None
    start = "spawn" if config.store == "inherited" else config.start_method
    return replace(config, store="shared", start_method=start)


def show(answer: Answer, out: Console, results: str) -> None:
    """The table and the sentences."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for number, name in enumerate((f"on a node, {answer.forecast.phase}", "each", "how many", "in all")):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for line in sentences.lines(answer.forecast, answer.config.batch_size * answer.evidence.data.sample_bytes):
        table.add_row(line.label, sentences.size(line.each), f"{line.times:,.0f}", sentences.size(line.total))
    out.print(table)
    out.print()
    for sentence in said(answer):
        out.print(sentence, highlight=False, markup=False)
    runs = len(answer.evidence.run_ids)
    out.print(f"Rows: {results}, the last {runs} runs", style="dim", highlight=False, markup=False)


def said(answer: Answer) -> Iterator[str]:
    """The verdict, its cause, what would help, and how far to believe it."""
    yield from _verdicts(answer)
    yield from sentences.cause(answer.forecast)
    if answer.evidence.no_size:
        yield sentences.no_size(answer.evidence.no_size)
    if answer.of_memory != "fits":
        yield from _cures(answer)
    if answer.verdict != "fits":
        yield from _shared_store(answer)
    data = answer.evidence.data
    moved = dataset_shm_bytes(answer.config, data) > 0
    what = "The dataset of each rank and batches from workers" if moved else "Batches from workers"
    shm = sentences.shared_memory(shm_bytes(answer.config, data), answer.shm, what)
    if shm is not None and not answer.short_of_shm:
        yield shm
    if answer.evidence.check is not None:
        yield sentences.check(answer.evidence.check)


def _verdicts(answer: Answer) -> Iterator[str]:
    """Of memory; before that of ``/dev/shm``, where that is too small."""
    limit = answer.limit
    memory = sentences.verdict(answer.forecast, limit.nbytes, answer.question.nnodes, limit.built_in)
    if answer.short_of_shm and answer.shm is not None:
        needed = dataset_shm_bytes(answer.config, answer.evidence.data)
        yield sentences.dataset_in_shm(needed, answer.shm, here=limit.built_in is not None)
        memory = f"As for memory alone: {memory[0].lower()}{memory[1:]}"
    yield memory


def _cures(answer: Answer) -> Iterator[str]:
    """Changes of one flag with which it fits by the model, and what only a measurement would tell."""
    evidence, nnodes, config = answer.evidence, answer.question.nnodes, answer.config
    path = path_plugin(config.sampler)
    idle = set(path.fact("IGNORES", {})) if path else set()
    least = least_of(evidence.runs)
    limit = answer.limit.nbytes
    yield from sentences.cures(
        changes(config, lambda other: evidence.forecast(other, nnodes), limit, least, idle), limit
    )
    if config.workers and config.sampler != "ring":  # a ring has one reader then, and so it has with one worker
        yield sentences.not_covered("--workers 0", asked_again(replace(config, workers=0), answer.question))


def _shared_store(answer: Answer) -> Iterator[str]:
    """What ``--store shared`` would need, where that is a choice."""
    shared = with_shared_store(answer)
    if answer.other is not None:
        store, other = answer.other
        yield sentences.other_store(store, other.needs, answer.limit.nbytes)
    elif shared is not None:
        yield f"What --store shared needs was not measured: {asked_again(shared, answer.question)}"


def asked_again(config: RunConfig, question: Question) -> str:
    """The command line that asks the same of another job."""
    return f"python -m shardlab.predict {shlex.join([*argv_of(config), *question.argv])}"


def as_object(answer: Answer) -> dict[str, Any]:
    """What ``--json`` prints; sizes in bytes."""
    forecast, check = answer.forecast, answer.evidence.check
    other = answer.other
    return {
        "verdict": answer.verdict,
        "needs_bytes": round(forecast.needs.value),
        "needs_low_bytes": round(forecast.needs.low),
        "needs_high_bytes": round(forecast.needs.high),
        "limit_bytes": answer.limit.nbytes,
        "nnodes": answer.question.nnodes,
        "phase": forecast.phase,
        "parts_bytes": {part: round(cost) for part, cost in forecast.parts.items() if cost},
        "page_cache_bytes": round(forecast.node.page_cache_bytes),
        "shm_bytes": round(shm_bytes(answer.config, answer.evidence.data)),
        "check_error_ratio": check.error_ratio if check else None,
        "other_store": other[0] if other else None,
        "other_store_needs_bytes": round(other[1].needs.value) if other else None,
        "run_ids": list(answer.evidence.run_ids),
        "sentences": list(said(answer)),
        **dataclasses.asdict(answer.config),
    }
