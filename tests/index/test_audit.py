"""Clean deliveries of real samplers give no finding; every fault put into one is found and named."""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise, product

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from shardlab.index import findings
from shardlab.index.audit import Audit, audit
from shardlab.index.ledger import RankLedger
from shardlab.index.mixing import mix
from shardlab.index.order import merge, order_hash

Ranks = list[list[list[int]]]  # rank, step, place

GRID = list(product(range(41), range(1, 5), range(1, 6)))


def rank_ledger(steps, words=None) -> RankLedger:
    flat = [index for batch in steps for index in batch]
    ends = np.cumsum([len(batch) for batch in steps], dtype=np.int64)
    return RankLedger(np.array(flat, dtype=np.int64), ends, words)


def judge(ranks: Ranks, samples: int | None, batch_size: int, tail: str, **changed) -> Audit:
    rules = {
        "epoch": 0, "truncated": False, "shuffle": False, "layout": None, "pad_allowed": None,
        "len_reported": [len(steps) for steps in ranks], "expected_words": None,
    }  # fmt: skip
    return audit(
        [rank_ledger(steps) for steps in ranks],
        samples=samples, world_size=len(ranks), batch_size=batch_size, tail=tail, **rules | changed,
    )  # fmt: skip


def names(judged: Audit) -> set[str]:
    return {finding.name for finding in judged.findings}


def only(judged: Audit, name: str):
    """The finding of this name."""
    return next(finding for finding in judged.findings if finding.name == name)


def in_batches(indices: list[int], size: int, drop_last: bool = False) -> list[list[int]]:
    return list(BatchSampler(indices, size, drop_last))


def distributed(samples: int, world_size: int, batch_size: int, tail: str) -> Ranks:
    drop = tail == "drop"
    samplers = [
        DistributedSampler(range(samples), world_size, rank, shuffle=False, drop_last=drop)
        for rank in range(world_size)
    ]
    return [in_batches(list(sampler), batch_size, drop) for sampler in samplers]


def strided_kept(samples: int, world_size: int, batch_size: int, tail: str) -> Ranks:
    return [in_batches(list(range(rank, samples, world_size)), batch_size) for rank in range(world_size)]


def accelerate_shard(samples: int, world_size: int, batch_size: int, tail: str) -> Ranks:
    def shard(rank: int) -> list[list[int]]:
        base = BatchSampler(range(samples), batch_size, tail == "drop")
        return [
            list(batch) for batch in BatchSamplerShard(base, world_size, rank, even_batches=tail == "pad")
        ]

    return [shard(rank) for rank in range(world_size)]


def accelerate_dispatch(samples: int, world_size: int, batch_size: int, tail: str) -> Ranks:
    """Slices of each global batch; a last one that W does not divide is filled up from the first."""
    ranks: Ranks = [[] for _ in range(world_size)]
    for whole in in_batches(list(range(samples)), world_size * batch_size, tail == "drop"):
        filled = whole + list(range(samples))[:world_size] if len(whole) % world_size else whole
        size = -(-len(whole) // world_size)
        for rank, steps in enumerate(ranks):
            steps.append(filled[rank * size : (rank + 1) * size])
    return ranks


def blocks(samples: int, world_size: int, batch_size: int, tail: str) -> Ranks:
    """A contiguous part for each rank; all cut to the shortest, or the shorter ones repeat their first."""
    starts = [samples * rank // world_size for rank in range(world_size + 1)]
    parts = [list(range(a, b)) for a, b in pairwise(starts)]
    if tail == "keep":
        return [in_batches(part, batch_size) for part in parts]
    if tail == "drop":
        shortest = min(len(part) for part in parts)
        return [in_batches(part[:shortest], batch_size, True) for part in parts]
    longest = max(len(part) for part in parts)
    return [in_batches(part + (part or [0])[: longest - len(part)], batch_size) for part in parts]


PATHS = [
    (distributed, "strided", "pad"), (distributed, "strided", "drop"), (strided_kept, "strided", "keep"),
    (accelerate_shard, "batches", "pad"), (accelerate_shard, "batches", "drop"),
    (accelerate_shard, "batches", "keep"),
    (blocks, "blocks", "pad"), (blocks, "blocks", "drop"), (blocks, "blocks", "keep"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "layout", "tail"), PATHS)
def test_a_clean_delivery_has_no_finding(path, layout, tail):
    for samples, world_size, batch_size in GRID:
        ranks = path(samples, world_size, batch_size, tail)
        judged = judge(ranks, samples, batch_size, tail, layout=layout)
        assert judged.findings == (), (samples, world_size, batch_size, ranks)
        if layout != "blocks":  # the layout is found out where it is not told
            assert judge(ranks, samples, batch_size, tail, layout=None).findings == ()


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_a_clean_dispatch_has_no_finding(tail):
    for samples, world_size, batch_size in GRID:
        if 0 < samples < world_size:
            continue  # fewer samples than ranks: the first global batch cannot fill the last
        ranks = accelerate_dispatch(samples, world_size, batch_size, tail)
        assert judge(ranks, samples, batch_size, tail, layout="batches").findings == ()


@pytest.mark.parametrize(
    ("samples", "batch_size", "ranks", "duplicates"),
    [
        (10, 2, [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]], 2),
        (5, 2, [[[0, 1]], [[2, 3]], [[4, 0]], [[1, 2]]], 3),
        (11, 3, [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 0]]], 1),
        (10, 2, [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]], 0),
        (10, 4, [[[0, 4, 8]], [[1, 5, 9]], [[2, 6, 0]], [[3, 7, 1]]], 2),
    ],
)
def test_documented_padding_is_explained_by_the_tail(samples, batch_size, ranks, duplicates):
    judged = judge(ranks, samples, batch_size, "pad", layout="strided" if batch_size == 4 else "batches")
    assert judged.findings == ()
    assert (judged.distinct, judged.duplicates, judged.missing) == (samples, duplicates, 0)


@pytest.mark.parametrize("path", [distributed, accelerate_shard])
def test_a_shuffled_delivery_has_no_finding(path):
    for samples, world_size, batch_size in GRID[::7]:
        new = np.random.default_rng(samples).permutation(samples)
        ranks = [
            [[int(new[i]) for i in batch] for batch in steps]
            for steps in path(samples, world_size, batch_size, "pad")
        ]
        assert judge(ranks, samples, batch_size, "pad", shuffle=True).findings == ()


@pytest.mark.parametrize(("path", "layout", "tail"), PATHS)
def test_an_epoch_ended_early_has_no_finding(path, layout, tail):
    for samples, world_size, batch_size in GRID[::3]:
        whole = path(samples, world_size, batch_size, tail)
        for steps in (1, 2):
            cut = [rank[:steps] for rank in whole]
            said = [len(rank) for rank in whole]
            judged = judge(cut, samples, batch_size, tail, layout=layout, truncated=True, len_reported=said)
            assert judged.findings == (), (samples, world_size, batch_size)


any_ranks = st.lists(st.lists(st.lists(st.integers(-2, 12), max_size=3), max_size=4), min_size=1, max_size=4)
tails = st.sampled_from(["pad", "drop", "keep"])


@given(any_ranks, st.integers(0, 12), tails, st.booleans())
def test_the_counts_are_those_of_a_counter(ranks, samples, tail, shuffle):
    judged = judge(ranks, samples, 3, tail, shuffle=shuffle)
    counted = Counter(index for steps in ranks for batch in steps for index in batch)
    assert judged.delivered == counted.total()
    assert judged.distinct == len(counted)
    assert judged.duplicates == counted.total() - len(counted)
    assert judged.missing == len(set(range(samples)) - set(counted))
    assert ("foreign" in names(judged)) == any(not 0 <= index < samples for index in counted)
    assert ("missing" in names(judged)) == (
        judged.missing > (samples % (3 * len(ranks)) if tail == "drop" else 0)
    )
    assert ("unequal-steps" in names(judged)) == (tail != "keep" and len({len(steps) for steps in ranks}) > 1)
    if tail != "pad":
        assert ("duplicated" in names(judged)) == (counted.total() > len(counted))


@given(any_ranks)
def test_the_hash_of_the_epoch_is_that_of_its_ranks_together(ranks):
    hashes = []
    for rank, steps in enumerate(ranks):
        position = [
            s * 3 * len(ranks) + rank * 3 + j for s, batch in enumerate(steps) for j in range(len(batch))
        ]
        hashes.append(order_hash(np.array(position, np.int64), rank_ledger(steps).indices))
    judged = judge(ranks, 12, 3, "keep").order_hash
    assert judged == (f"{merge(hashes):016x}" if any(chain.from_iterable(ranks)) else None)


@st.composite
def clean_deliveries(draw):
    """A real delivery with at least two full rounds, and a place in its full rounds."""
    path, layout, tail = draw(st.sampled_from(PATHS[:6]))
    world_size, batch_size = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    samples = draw(st.integers(2 * world_size * batch_size, 60))
    ranks = path(samples, world_size, batch_size, tail)
    full = samples // (world_size * batch_size)
    at = (
        draw(st.integers(0, world_size - 1)),
        draw(st.integers(0, full - 1)),
        draw(st.integers(0, batch_size - 1)),
    )
    return ranks, samples, batch_size, tail, layout, at


@given(clean_deliveries(), st.booleans(), st.data())
def test_a_sample_put_in_the_place_of_another_is_found(case, shuffle, data):
    ranks, samples, batch_size, tail, layout, (rank, step, place) = case
    right = ranks[rank][step][place]
    wrong = data.draw(st.integers(0, samples - 1).filter(lambda index: index != right))
    ranks[rank][step][place] = wrong
    judged = judge(ranks, samples, batch_size, tail, layout=layout, shuffle=shuffle)
    got = {index for steps in ranks for batch in steps for index in batch}
    lost_more_than_tail = len(set(range(samples)) - got) > (
        samples % (len(ranks) * batch_size) if tail == "drop" else 0
    )
    assert ("missing" in names(judged)) == lost_more_than_tail
    assert ("order" in names(judged)) == (not shuffle)
    if not shuffle:
        found = only(judged, "order")
        assert (found.rank, found.step, found.position) == (rank, step, place)
        assert f"sample {wrong} came, sample {right} was due" in found.sentence


@given(clean_deliveries(), st.data())
def test_two_swapped_samples_are_found_at_the_first_of_them(case, data):
    ranks, samples, batch_size, tail, layout, a = case
    full = samples // (len(ranks) * batch_size)
    b = (
        data.draw(st.integers(0, len(ranks) - 1)),
        data.draw(st.integers(0, full - 1)),
        data.draw(st.integers(0, batch_size - 1)),
    )
    before = judge(ranks, samples, batch_size, tail, layout=layout)
    (r, s, j), (q, t, k) = a, b
    ranks[r][s][j], ranks[q][t][k] = ranks[q][t][k], ranks[r][s][j]
    after = judge(ranks, samples, batch_size, tail, layout=layout)
    assert names(after) == (set() if a == b else {"order"})
    assert (after.order_hash == before.order_hash) == (a == b)
    if a != b:
        first = min(a, b, key=lambda at: (at[1], at[0], at[2]))
        assert (only(after, "order").rank, only(after, "order").step, only(after, "order").position) == first


@given(clean_deliveries())
def test_a_batch_delivered_a_second_time_is_found(case):
    ranks, samples, batch_size, tail, layout, (rank, step, _) = case
    ranks[rank].insert(step, list(ranks[rank][step]))
    judged = judge(ranks, samples, batch_size, tail, layout=layout, shuffle=True)
    unequal = {"unequal-steps"} if len(ranks) > 1 and tail != "keep" else set()
    explained = tail == "pad" and -samples % (len(ranks) * batch_size) >= judged.duplicates
    late = step + 1 >= len(ranks[rank]) - 2
    assert names(judged) == unequal | (set() if explained and late else {"duplicated"})


@given(clean_deliveries())
def test_a_step_that_a_rank_does_not_get_is_found(case):
    ranks, samples, batch_size, tail, layout, (rank, step, _) = case
    lost = ranks[rank].pop(step)
    judged = judge(ranks, samples, batch_size, tail, layout=layout, shuffle=True)
    still = {index for steps in ranks for batch in steps for index in batch}
    if tail != "drop" and not set(lost) <= still:
        assert "missing" in names(judged)
    if tail != "keep" and len(ranks) > 1:
        found = only(judged, "unequal-steps")
        assert found.rank == rank
        assert found.sentence.startswith(f"rank {rank} took {len(ranks[rank])} steps")


def test_one_rank_fed_as_another_is_named_with_both_places():
    ranks = [[[0, 1], [4, 5]], [[0, 1], [4, 5]]]
    judged = judge(ranks, 8, 2, "pad", layout="batches")
    assert names(judged) == {"missing", "duplicated", "order"}
    assert only(judged, "duplicated").sentence.startswith(
        "rank 1, step 0, place 0: sample 0 was already delivered to rank 0, step 0, place 0"
    )
    assert only(judged, "missing").sentence.startswith(
        "rank 1, step 0, place 0: sample 2 reached no rank; 4 of 8"
    )
    assert "sample 0 came, sample 2 was due" in only(judged, "order").sentence


def test_twice_sharded_data_misses_eight_of_twenty():
    def twice(rank: int) -> list[list[int]]:
        inner = DistributedSampler(range(20), 2, rank, shuffle=False)
        return [list(b) for b in BatchSamplerShard(BatchSampler(inner, 2, False), 2, rank)]

    judged = judge([twice(0), twice(1)], 20, 2, "pad", shuffle=True)
    assert (judged.distinct, judged.missing) == (12, 8)
    assert only(judged, "missing").sentence.startswith("sample 4 reached no rank; 8 of 20 are missing")


def test_every_worker_yielding_everything_is_found():
    everything = [list(range(start, start + 5)) for start in range(0, 20, 5) for _ in range(4)]
    judged = judge([everything], 20, 5, "pad", shuffle=True)
    assert (judged.delivered, judged.distinct, judged.duplicates) == (80, 20, 60)
    assert "60 repeats in all" in only(judged, "duplicated").sentence


def test_padding_may_not_stand_early_in_the_epoch():
    ranks = [[[0, 1], [0, 4], [5, 6], [7, 8]], [[2, 3], [9, 10], [11, 12], [13, 14]]]
    found = only(judge(ranks, 15, 2, "pad", shuffle=True), "duplicated")
    assert (found.rank, found.step, found.position) == (0, 1, 0)


def test_padding_may_reach_one_step_back_from_the_last():
    ranks = [[[0, 1], [0, 4], [7, 8]], [[2, 3], [5, 6], [9, 10]]]
    assert judge(ranks, 11, 2, "pad", shuffle=True).findings == ()


@pytest.mark.parametrize("pad_allowed", [None, 3])
def test_an_epoch_ended_before_its_padding_may_repeat_nothing(pad_allowed):
    ranks = [[[0, 1]], [[2, 0]]]
    for samples in (4, 5):
        judged = judge(ranks, samples, 2, "pad", truncated=True, shuffle=True, pad_allowed=pad_allowed)
        assert names(judged) == {"duplicated"}
    assert judge(ranks, 3, 2, "pad", truncated=True, shuffle=True, pad_allowed=pad_allowed).findings == ()


def test_the_padding_of_a_path_may_be_told():
    ranks = [[[0, 1]], [[2, 0]]]
    assert judge(ranks, 3, 2, "pad", pad_allowed=1, shuffle=True).findings == ()
    assert names(judge(ranks, 3, 2, "pad", pad_allowed=0, shuffle=True)) == {"duplicated"}


def test_drop_explains_no_more_than_the_last_incomplete_round():
    assert judge([[[0, 1]], [[2, 3]]], 7, 2, "drop").findings == ()
    assert names(judge([[[0, 1]], [[2, 3]]], 8, 2, "drop")) == {"missing"}


def test_a_length_that_the_loader_does_not_keep_is_found():
    ranks = [[[0], [2]], [[1], [3]]]
    found = only(judge(ranks, 4, 1, "pad", len_reported=[3, None]), "length")
    assert found.sentence == "len(loader) says 3, 2 steps came on rank 0"
    assert judge(ranks, 4, 1, "pad", len_reported=[None, None]).findings == ()


def test_unequal_steps_are_found_unless_they_were_asked_for():
    ranks = [[[0, 1], [3]], [[2]]]
    found = only(judge(ranks, 4, 2, "pad", shuffle=True), "unequal-steps")
    assert found.sentence == "rank 1 took 1 steps, rank 0 took 2: a collective in each step would hang"
    assert judge(ranks, 4, 2, "keep", shuffle=True).findings == ()


def test_without_a_known_layout_the_order_is_held_against_the_nearest_one():
    ranks = blocks(40, 2, 4, "pad")
    ranks[1][2][3] = ranks[1][2][0]
    found = only(judge(ranks, 40, 4, "pad", layout=None), "order")
    assert "sample 28 came, sample 31 was due (blocks layout); 1 places differ" in found.sentence


def test_a_batch_that_is_too_long_is_found_in_the_order():
    found = only(judge([[[0, 1, 2], [3]]], 4, 2, "keep", layout="batches"), "order")
    assert (found.step, found.position) == (0, 2)
    assert "2 make a batch" in found.sentence


def words_of(indices):
    return mix(np.asarray(indices, dtype=np.int64).view(np.uint64))


def with_content(claimed: Ranks, content: Ranks) -> list[RankLedger]:
    flat = [[index for batch in steps for index in batch] for steps in content]
    return [rank_ledger(steps, words_of(true)) for steps, true in zip(claimed, flat, strict=True)]


def judge_content(ledgers, **changed) -> Audit:
    rules = {"samples": 8, "tail": "pad", "expected_words": words_of} | changed
    return audit(
        ledgers, epoch=3, world_size=2, batch_size=2, truncated=False, shuffle=True, layout=None,
        pad_allowed=None, len_reported=[2, 2], **rules,
    )  # fmt: skip


CLAIMED = [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_content_that_fits_its_index_has_no_finding():
    assert judge_content(with_content(CLAIMED, CLAIMED)).findings == ()


def test_content_of_another_sample_is_named_with_its_owner():
    found = only(judge_content(with_content(CLAIMED, [[[0, 1], [4, 5]], [[2, 7], [6, 7]]])), "content")
    assert (found.rank, found.epoch, found.step, found.position) == (1, 3, 0, 1)
    assert "came as sample 3, but its content is sample 7's; 1 samples differ" in found.sentence


def test_the_owner_of_a_content_is_looked_for_in_all_samples(monkeypatch):
    monkeypatch.setattr(findings, "_CHUNK", 3)
    for owner in (0, 2, 4, 5, 6, 7):
        ledgers = with_content(CLAIMED, [[[0, 1], [4, 5]], [[2, owner], [6, 7]]])
        assert f"its content is sample {owner}'s" in only(judge_content(ledgers), "content").sentence


def test_content_of_no_sample_is_said_to_be_of_none():
    found = only(judge_content(with_content(CLAIMED, [[[0, 1], [4, 5]], [[2, 99], [6, 7]]])), "content")
    assert "its content is of no known sample" in found.sentence


def test_content_is_not_judged_where_nothing_says_what_it_should_be():
    wrong = with_content(CLAIMED, [[[7, 7], [7, 7]], [[7, 7], [7, 7]]])
    assert judge_content(wrong, expected_words=None).findings == ()


def test_an_unknown_number_of_samples_leaves_missing_unknown():
    judged = judge([[[0, 1]], [[2, -1]]], None, 2, "pad")
    assert judged.missing is None
    assert names(judged) == {"foreign"}
    assert judge([[[0, 1]], [[2, 3]]], None, 2, "pad").findings == ()


def test_every_finding_has_a_cure():
    judged = judge([[[0, 0], [0, 9]], [[2]]], 7, 2, "pad", len_reported=[1, 1])
    assert names(judged) == {"foreign", "missing", "duplicated", "order", "length", "unequal-steps"}
    assert all(finding.cure for finding in judged.findings)


def test_a_ledger_too_few_is_refused():
    with pytest.raises(ValueError, match="2 ranks, but 1 ledgers"):
        audit(
            [rank_ledger([])], epoch=0, samples=0, world_size=2, batch_size=1, tail="pad", truncated=False,
            shuffle=True, layout=None, pad_allowed=None, len_reported=[None, None], expected_words=None,
        )  # fmt: skip
