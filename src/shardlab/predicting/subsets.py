"""Least squares with coefficients that are zero or more, over every subset of the parts, and how far they may be off.

A subset is a face of the coefficients that are allowed: the others are zero. What a node may need at the least and at
the most is sought on all faces among the coefficients whose chi-square is near the least one, so that a part which
was not selected, as the readings hardly show it, still counts in the upper bound with all that they leave room for.
On one face the extremes of a sum ``row @ coefficients`` lie at ``solution +- sqrt(slack / r' C r) C r``, with the
covariance ``C``; where that has a negative coefficient, a smaller face has the extreme.

Source of the bounds: the profile likelihood, D. J. Venzon and S. H. Moolgavkar, 1988, here in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardlab.predicting.parts import PARTS

PENALTY = 4.0  # in units of chi-square: a part has to be clear of twice its noise
NEAR = 4.0  # in units of chi-square: what is as far off as two standard deviations of one figure
WAITING = PARTS.index("waiting")
Floats = NDArray[np.float64]


class Face(NamedTuple):
    """The least squares of the parts at the places ``chosen``; ``covariance`` of shape (chosen, chosen)."""

    chosen: tuple[int, ...]
    solution: Floats
    covariance: Floats
    chi_square: float

    @property
    def allowed(self) -> bool:
        """Whether no part costs less than nothing, and no more batches wait than there are."""
        return _allowed(self.chosen, self.solution)

    @property
    def price(self) -> float:
        """What is least for the face that is kept: chi-square, and more for parts that grow with the dataset."""
        return self.chi_square + PENALTY * sum(PARTS[part].startswith("data") for part in self.chosen)

    @property
    def coefficients(self) -> Floats:
        """Those of all parts, shape (parts,)."""
        whole = np.zeros(len(PARTS))
        whole[list(self.chosen)] = self.solution
        return whole

    def extremes(self, row: Floats, limit: float) -> Iterator[float]:
        """Least and most of ``row @ coefficients`` with a chi-square of ``limit``, where they lie on this face."""
        part = row[list(self.chosen)]
        spread = self.covariance @ part
        length = math.sqrt(max(0.0, float(part @ spread)))
        step = math.sqrt(limit - self.chi_square) / length if length else 0.0
        for solution in (self.solution - step * spread, self.solution + step * spread):
            if _allowed(self.chosen, solution):
                yield float(part @ solution)


@dataclass(frozen=True)
class Term:
    """The coefficients that were kept, and the faces with others that are near enough; ``kept`` of them count."""

    coefficients: Floats
    faces: tuple[Face, ...] = ()
    limit: float = 0.0
    kept: Floats | None = None

    def of_parts(self, kept: Floats) -> Term:
        """The same of those parts alone for which ``kept``, of shape (parts,), is 1."""
        return replace(self, coefficients=self.coefficients * kept, kept=kept)

    def reach(self, row: Floats) -> tuple[float, float]:
        """How much less and how much more than ``row @ coefficients`` it may be, both zero or more."""
        value = float(row @ self.coefficients)
        row = row if self.kept is None else row * self.kept
        ends = [end for face in self.faces for end in face.extremes(row, self.limit)]
        return max(0.0, value - min(ends, default=value)), max(0.0, max(ends, default=value) - value)


def faces_of(rows: Floats, known: Floats, free: Sequence[int]) -> list[Face]:
    """Every subset of the parts ``free`` that can be told apart; ``rows`` and ``known`` in units of the noise.

    ``rows`` has the shape (readings, parts), ``known`` (readings,).
    """
    scale = np.abs(rows).max(axis=0)  # bytes and numbers of processes are ten powers of ten apart
    there = [part for part in free if scale[part]]
    scaled = rows / np.where(scale, scale, 1.0)
    nothing = Face((), np.zeros(0), np.zeros((0, 0)), float(known @ known))
    found = [nothing]
    for chosen in (each for count in range(1, len(there) + 1) for each in combinations(there, count)):
        taken = scaled[:, chosen]
        solution, _, rank, _ = np.linalg.lstsq(taken, known, rcond=1e-9)
        if rank == len(chosen):
            own, chi_square = scale[list(chosen)], float(np.sum((taken @ solution - known) ** 2))
            covariance = np.linalg.inv(taken.T @ taken) / np.outer(own, own)
            found.append(Face(chosen, solution / own, covariance, chi_square))
    return found


def best_of(faces: Sequence[Face]) -> Face:
    """The allowed face with the least price."""
    return min((face for face in faces if face.allowed), key=lambda face: face.price)


def limit_of(faces: Sequence[Face], best: Face, readings: int) -> float:
    """Up to which chi-square coefficients explain ``readings`` nearly as well; more where residuals are large."""
    least = min(face.chi_square for face in faces if face.allowed)
    return least + NEAR * max(1.0, best.chi_square / max(1, readings - len(best.chosen)))


def term_of(faces: Sequence[Face], best: Face, limit: float) -> Term:
    """What was kept, with its bounds."""
    return Term(best.coefficients, tuple(face for face in faces if face.chi_square <= limit), limit)


def _allowed(chosen: tuple[int, ...], solution: Floats) -> bool:
    if len(solution) and solution.min() < 0:
        return False
    return WAITING not in chosen or float(solution[chosen.index(WAITING)]) <= 1 + 1e-9
