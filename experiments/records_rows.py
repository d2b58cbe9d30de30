"""A row of ``records_table.py``, and the figures of a public study that stand beside it.

Wu, Demystify RAM Usage in Multi-Process Data Loaders, 2022 (ppwwyyxx/RAM-multiprocess-dataloader): 860,001 COCO
annotations, some 2.4 GiB as a list of dicts and 505 MiB encoded. PSS is summed over the processes of its logs, at
their beginning and, some 100 s later, their end; every worker reads all records again and again meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

STUDY_LIST_MIB = 2.4 * 1024


@dataclass(frozen=True)
class Study:
    """PSS of all processes of a case of the study, over one copy of its list."""

    study_case: str = ""
    study_pss_before_ratio: float | None = None
    study_pss_after_ratio: float | None = None


def of_mib(case: str, before: int, after: int) -> Study:
    """PSS in MiB, as the logs have it."""
    return Study(case, before / STUDY_LIST_MIB, after / STUDY_LIST_MIB)


STUDY = {
    ("list", "fork"): of_mib("1 rank of 4 workers", 2765, 9830),
    ("serialised", "fork"): of_mib("1 rank of 4 workers", 1611, 1622),
    # In a torch tensor, which the workers of a rank share with it; ours lies in an array, which they do not.
    ("serialised", "forkserver"): of_mib("2 ranks of 4 workers, a tensor", 3724, 3841),
    ("serialised", "spawn"): of_mib("1 rank of 4 workers, a tensor", 1562, 2286),
    ("shared", "forkserver"): of_mib("2 ranks of 4 workers", 2396, 2569),
}


@dataclass(frozen=True)
class Row:
    """One configuration. ``copies`` are empty where one copy is not clear of the noise of a run."""

    residency: str
    worker_start_method: str
    ranks: int
    workers_per_rank: int
    samples: int
    list_bytes: int
    stored_bytes: int
    pss_before_bytes: int
    pss_after_bytes: int
    pss_before_ratio: float
    pss_after_ratio: float
    uss_before_bytes: int
    uss_after_bytes: int
    lists_before: float
    lists_after: float
    copies_before: float | None
    copies_before_low: float | None
    copies_before_high: float | None
    copies_after: float | None
    copies_after_low: float | None
    copies_after_high: float | None
    study_case: str
    study_pss_before_ratio: float | None
    study_pss_after_ratio: float | None
    remarks: str
