"""What the figures mean, in sentences: each claim is read off a number that the table shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from shardlab.choosing import ONE_COPY
from shardlab.launch.learned import curve, last_learned
from shardlab.launch.summary import Outcome, ended_early
from shardlab.plan import path_plugin
from shardlab.records import NodeRecord, RankRecord
from shardlab.words import many, mib, spans

SLOW = 1.5  # times as long as the others computes a rank that is named
NOTABLE = 0.05  # of the dataset: in-flight and retained bytes below it are not worth a sentence


def verdict(outcome: Outcome) -> list[str]:
    """The sentences, most important first."""
    sentences: list[str] = []
    for node in outcome.nodes:
        sentences += _memory(outcome, node)
    sentences += _delivery(outcome)
    sentences += _speed(outcome)
    sentences += _learned(outcome)
    return sentences


def last_rows(outcome: Outcome) -> list[RankRecord]:
    """The ranks' rows of the last timed epoch, by rank."""
    last = max((report.row.epoch for report in outcome.reports), default=None)
    return [report.row for report in outcome.reports if report.row.epoch == last]


def _memory(outcome: Outcome, node: NodeRecord) -> Iterator[str]:
    where = "This node" if len(outcome.nodes) == 1 else f"Node {node.node}"
    if node.copies is None:
        name = "copies: " if len(outcome.nodes) == 1 else f"copies ({node.node}): "
        reason = outcome.run.measured.reason.partition(name)[2].partition("; ")[0]
        yield f"{where}: copies of the dataset not known: {reason}."
        return
    bound = "at least " if node.unreadable else ""
    interval = f"{node.copies_low:.2f} to {node.copies_high:.2f}"
    text = f"{where} holds {bound}{node.copies:.1f} copies of the dataset ({interval})"
    if node.copies > ONE_COPY and (node.copies_low or 0) > 1:
        yield f"{text}, {mib(node.duplicate_bytes)} MiB of it duplicate."
        yield from _cures(outcome, node)
    elif node.copies > ONE_COPY:
        yield f"{text}: not clear of one copy."
    else:
        yield f"{text}: nothing to save."
    size = node.dataset_bytes or 0
    if node.inflight_bytes and node.inflight_bytes > NOTABLE * size:
        yield (
            f"Up to {mib(node.inflight_bytes)} MiB of batches are in flight from workers; those are no "
            "copies. Fewer --workers or a smaller --prefetch-factor holds less."
        )
    if node.retained_bytes and node.retained_bytes > NOTABLE * size:
        yield f"The allocator held {mib(node.retained_bytes)} MiB that nothing used; those are no copies."


def _cures(outcome: Outcome, node: NodeRecord) -> Iterator[str]:
    config = outcome.run.config
    path = path_plugin(config.sampler)
    fitting = [
        store for store in (path.fact("STORES") if path else ("shared", "mmap")) if store != config.store
    ]
    rows = last_rows(outcome)
    idle = [row.rank for row in rows if row.reads == 0] if any(row.reads for row in rows) else []
    cures = [f"--store {store}" for store in ("reader", "shared") if store in fitting]
    cure = " or ".join(cures) if cures else "a dataset that ranks can share"
    if outcome.iterable:
        cure = "a dataset that opens its source only when it is read"
    if idle and config.store == "private":
        ranks = (
            f"Rank {idle[0]} never reads its" if len(idle) == 1 else f"Ranks {spans(idle)} never read theirs"
        )
        yield f"{ranks}: keep one copy with {cure}."
    elif config.workers and (node.copies_low or 0) > node.local_world_size:
        forked = config.worker_start_method == "fork"
        how = "most likely by reference counts after fork" if forked else "sent to each"
        yield f"More copies than ranks: the workers of each rank hold theirs, {how}. Keep one with {cure}."
    else:
        yield f"Keep one copy with {cure}."


def _delivery(outcome: Outcome) -> Iterator[str]:
    figures, config = outcome.run.measured, outcome.run.config
    for finding in outcome.findings:
        cure = f" Cure: {finding.cure.rstrip('.')}." if finding.cure else ""
        yield f"Wrong ({finding.name}): {finding.sentence.rstrip('.')}.{cure}"
    if outcome.findings or figures.delivered is None:
        return
    if figures.distinct is None:
        yield f"{figures.delivered:,} samples arrived; how many of them are different is not known."
        return
    rows = last_rows(outcome)
    read, delivered = sum(row.reads or 0 for row in rows), figures.delivered or 0
    if figures.missing is None:
        yield f"{figures.distinct:,} different samples arrived; how many there are is not known."
    elif resumed_at(outcome):
        yield (
            f"{figures.distinct:,} different samples arrived in the rest of the epoch, which goes on after step "
            f"{resumed_at(outcome)}: those before it came in the run that saved the checkpoint."
        )
    elif ended_early(config.max_steps, rows):
        repeats = _repeats(figures.duplicates)
        yield f"{figures.distinct:,} different samples arrived before --max-steps ended the epoch, {repeats}."
    elif figures.missing:
        yield f"{figures.distinct:,} samples arrived once; {figures.missing:,} were left out by --tail drop."
    else:
        tail = f" to fill the last round (--tail {config.tail})" if figures.duplicates else ""
        yield f"All {figures.distinct:,} samples arrived, {_repeats(figures.duplicates)}{tail}."
    if read > delivered and config.workers:
        yield f"{read - delivered:,} samples were read that no rank was given: workers fetched them ahead."


def _repeats(duplicates: int | None) -> str:
    if not duplicates:
        return "none twice"
    return f"with {duplicates:,} repeats" if duplicates > 1 else "with 1 repeat"


def _speed(outcome: Outcome) -> Iterator[str]:
    figures, rows = outcome.run.measured, last_rows(outcome)
    if figures.samples_per_s is None or not rows:
        return
    waiting = max(rows, key=lambda row: row.wait_s)
    text = f"{figures.samples_per_s:,.0f} different samples/s on {many(figures.world_size, 'rank')}"
    if figures.stall_ratio is not None:
        text += f"; ranks stall {figures.stall_ratio:.0%} of their time"
    yield f"{text}; rank {waiting.rank} waited longest for its batches, {waiting.wait_s:.2f} s."


def resumed_at(outcome: Outcome) -> int:
    """How many steps of the last epoch an earlier run had done."""
    learned = last_learned(outcome.reports)
    return learned.first_step if learned else 0


def slow_rank(outcome: Outcome) -> tuple[RankRecord, float] | None:
    """The rank whose computing the others wait for, and how many times as long as theirs it takes.

    What a slow rank costs shows as the communication of the others; the slow one communicates least.
    """
    rows = [row for row in last_rows(outcome) if row.compute_s is not None and row.comm_s is not None]
    if len(rows) < 2:
        return None
    slowest = max(rows, key=lambda row: row.compute_s or 0.0)
    others = [row for row in rows if row is not slowest]
    typical = median(row.compute_s or 0.0 for row in others)
    lost = median(row.comm_s or 0.0 for row in others) - (slowest.comm_s or 0.0)
    if typical <= 0 or (slowest.compute_s or 0.0) < SLOW * typical or lost < NOTABLE * typical:
        return None
    return slowest, (slowest.compute_s or 0.0) / typical


def not_a_number(outcome: Outcome) -> str | None:
    """Where the loss is NaN or infinite, in words, with steps as ``training.csv`` has them; None where nowhere."""
    steps = curve("", outcome.reports)
    odd = [step for step in steps if not math.isfinite(step.loss)]
    learned = last_learned(outcome.reports)
    if odd:
        what = "not a number" if any(math.isnan(step.loss) for step in odd) else "infinite"
        first = f"step {odd[0].step} of epoch {odd[0].epoch}"
        where = f"from {first} on" if odd == steps[-len(odd) :] else f"in {len(odd)} steps, first in {first}"
        return f"the loss in training is {what} {where}"
    if learned is not None and learned.eval_loss is not None and not math.isfinite(learned.eval_loss):
        return f"the loss in evaluation is {_loss(learned.eval_loss)}"
    return None


def _loss(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "not a number"
    return f"{value:.4f}" if math.isfinite(value) else "infinite"


def _diverged(outcome: Outcome) -> Iterator[str]:
    where = not_a_number(outcome)
    if where is None:
        return
    steps = curve("", outcome.reports)
    at_once = bool(steps) and steps[0].step == 0 == steps[0].epoch and not math.isfinite(steps[0].loss)
    cure = "samples without NaN and infinity" + (
        ": no step had changed a weight yet" if at_once else ", or a smaller --lr"
    )
    yield f"{where[0].upper()}{where[1:]}. Cure: {cure}."


def _evaluated(outcome: Outcome) -> str:
    return outcome.train.eval_dataset if outcome.train else "the evaluation dataset"


def _learned(outcome: Outcome) -> Iterator[str]:
    learned, figures = last_learned(outcome.reports), outcome.run.measured
    if learned is None:
        return
    yield from _diverged(outcome)
    if learned.accuracy is not None:
        training = "no step of training" if figures.loss is None else f"in training {_loss(figures.loss)}"
        yield (
            f"Accuracy {learned.accuracy:.4f} on the {learned.evaluated:,} labels of {_evaluated(outcome)}, each "
            f"counted once (loss {_loss(learned.eval_loss)}; {training})."
        )
    elif figures.loss is not None:
        yield f"Loss in training {_loss(figures.loss)}; nothing was evaluated (--eval-dataset none)."
    slow = slow_rank(outcome)
    if slow is not None:
        row, times = slow
        waited = max(other.comm_s or 0.0 for other in last_rows(outcome))
        yield (
            f"Rank {row.rank} computes {times:.1f} times as long as the others, which wait up to {waited:.2f} s "
            f"for its gradients. Cure: see what else runs where it runs ({row.node}), or give it less to do."
        )
