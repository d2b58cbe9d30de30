"""Memory as a sum of :data:`PARTS`, each never negative, fitted to what small runs held and to their peaks.

What processes hold while they are held is known to some MiB each, with the dataset and with stand-ins in its place:
that gives the parts of the data. A peak is sampled, so what comes on top of that for a moment is fitted apart: to
processes and waiting batches, and to the data only where that is sent to workers, and where ranks build it.

Of all subsets of the parts the one is kept that has the least chi-square plus ``PENALTY`` for each part of the data,
so that a part which the runs do not show is not carried over to a dataset hundreds of times as large. The interval
holds all that explains the readings nearly as well, those parts included, and the noise of such a reading. One may
stray by ``NOISE_BYTES_PER_PROCESS`` for each process, taken as two standard deviations, a peak by ``SAMPLING_BYTES``
too, or by more where residuals say so. ``full`` is 1 at the most, where all batches that may wait do; the upper bound
has it at 1. The number of objects on a page is searched for.

Source of the selection: H. Akaike, A new look at the statistical model identification, 1974, with a dearer part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardlab.predicting.node import Node
from shardlab.predicting.parts import (
    OBJECTS_PER_PAGE,
    PARTS,
    SAMPLING_BYTES,
    Interval,
    Peak,
    features,
    noise_bytes,
)
from shardlab.predicting.subsets import (
    WAITING,
    Face,
    Floats,
    Term,
    best_of,
    faces_of,
    limit_of,
    term_of,
)


@dataclass(frozen=True)
class Fit:
    """Bytes of each of :data:`PARTS`, those of data per byte of dataset, as a sum of terms known independently.

    ``others`` are fits with another number of objects on a page that explain the peaks nearly as well.
    """

    terms: tuple[Term, ...]
    objects_per_page: float | None = None
    others: tuple[Fit, ...] = ()

    @property
    def coefficients(self) -> Floats:
        """Those of all terms, shape (parts,)."""
        return np.sum([term.coefficients for term in self.terms], axis=0)  # type: ignore[no-any-return]

    def parts(self, node: Node) -> dict[str, float]:
        """What each part costs on this node, in bytes."""
        costs = features(node, self.objects_per_page) * self.coefficients
        return dict(zip(PARTS, costs.tolist(), strict=True)) | {"exchanged": node.exchanged_bytes}

    def predict(self, node: Node) -> Interval:
        """The peak of such a node. The upper bound has all batches that may wait, waiting."""
        row = features(node, self.objects_per_page)
        value = float(row @ self.coefficients) + node.exchanged_bytes
        less, more = self.reach(node, 2 * noise_bytes(node))
        waiting = float(row[WAITING]) * max(0.0, 1 - float(self.coefficients[WAITING]))
        own = Interval(value, value - less, value + more + waiting)
        every = [own, *(other.predict(node) for other in self.others)]
        return Interval(value, max(0.0, min(each.low for each in every)), max(each.high for each in every))

    def reach(self, node: Node, noise: float = 0.0) -> tuple[float, float]:
        """How much less and more than its value it may be, in bytes; ``noise`` comes on top."""
        row = features(node, self.objects_per_page)
        less, more = zip(*(term.reach(row) for term in self.terms), strict=True)
        return math.hypot(noise, *less), math.hypot(noise, *more)


def fit(peaks: Sequence[Peak], *, objects: bool) -> Fit:
    """The parts that explain best what was held. ``objects``: the dataset is made of Python objects."""
    forked = any(peak.node.forked_ranks or peak.node.forked_workers for peak in peaks)
    tries: Iterable[float | None] = OBJECTS_PER_PAGE if objects and forked else (None,)
    faces = {per_page: _faces(peaks, per_page, range(len(PARTS)), sampling_bytes=0.0) for per_page in tries}
    best = {per_page: best_of(of_one) for per_page, of_one in faces.items()}
    least = min(best, key=lambda per_page: best[per_page].chi_square)
    limit = limit_of(faces[least], best[least], len(peaks))
    found = {
        per_page: Fit((term_of(faces[per_page], best[per_page], limit),), per_page)
        for per_page in faces
        if per_page == least or best[per_page].chi_square <= limit
    }
    return replace(found.pop(least), others=tuple(found.values()))


def fit_data(peaks: Sequence[Peak], fixed: Fit) -> Fit:
    """The parts of the data that explain the peaks best, with launcher and ranks as in ``fixed`` and no workers."""
    kept = np.array([float(part in ("base", "rank")) for part in PARTS])
    given = Fit(tuple(term.of_parts(kept) for term in fixed.terms), fixed.objects_per_page)
    of_data = [PARTS.index("data once"), PARTS.index("data per rank")]
    return _together(given, _term(peaks, of_data, given))


def fit_excess(peaks: Sequence[Peak], held: Fit, *, of_data: bool) -> Fit:
    """``held`` and what comes on top of it for a moment; that has parts of data only where they may be told apart."""
    free = [number for number, part in enumerate(PARTS) if of_data or not part.startswith("data")]
    return _together(held, _term(peaks, free, Fit((Term(np.zeros(len(PARTS))),), held.objects_per_page)))


def _together(one: Fit, term: Term) -> Fit:
    """One more term, also of those that explain the peaks nearly as well."""
    others = tuple(_together(other, term) for other in one.others)
    return replace(one, terms=(*one.terms, term), others=others)


def _term(peaks: Sequence[Peak], free: Sequence[int], given: Fit) -> Term:
    """What explains the peaks best beside what is ``given``."""
    faces = _faces(peaks, given.objects_per_page, free, given)
    best = best_of(faces)
    return term_of(faces, best, limit_of(faces, best, len(peaks)))


def _faces(
    peaks: Sequence[Peak],
    per_page: float | None,
    free: Sequence[int],
    given: Fit | None = None,
    sampling_bytes: float = SAMPLING_BYTES,
) -> list[Face]:
    """All subsets of the parts ``free``. Where what is given may be off, the readings stray by so much more."""
    doubt = [max(given.reach(peak.node)) / 2 if given else 0.0 for peak in peaks]
    noise = np.hypot([noise_bytes(peak.node, sampling_bytes) for peak in peaks], doubt)
    rows = np.array([features(peak.node, per_page) for peak in peaks])  # (peaks, parts)
    known = np.array([peak.pss_bytes - peak.node.exchanged_bytes for peak in peaks])
    if given is not None:
        known = known - rows @ given.coefficients
    return faces_of(rows / noise[:, None], known / noise, free)
