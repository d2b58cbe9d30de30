"""Hashes of 64-bit numbers, vectorised: every bit of the input changes about half the bits of the output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, made odd
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output for each state ``x``: a bijection of [0, 2^64), same shape, input untouched.

    The generator's increment is part of it: its finaliser alone maps 0 to 0, so that in a sum of hashes
    sample 0 would weigh nothing. Arithmetic is mod 2^64.

    Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.

    >>> f"{mix(np.zeros(1, np.uint64))[0]:x}"
    'e220a8397b1dcdaf'
    """
    # Arrays only, also for one number: numpy scalars warn when they wrap.
    state = np.array(x, dtype=np.uint64)
    np.add(state, _GAMMA, out=state)
    shifted = np.empty_like(state)
    for shift, factor in _ROUNDS:
        np.right_shift(state, shift, out=shifted)
        np.bitwise_xor(state, shifted, out=state)
        np.multiply(state, factor, out=state)
    np.right_shift(state, _LAST_SHIFT, out=shifted)
    return np.bitwise_xor(state, shifted, out=state)


def mix2(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash of each pair ``(a, b)``, broadcast; ``mix2(a, b)`` and ``mix2(b, a)`` differ.

    A bijection of ``b`` for fixed ``a``, and of ``a`` for fixed ``b``.
    """
    return mix(np.bitwise_xor(mix(a), np.asarray(b, dtype=np.uint64)))
