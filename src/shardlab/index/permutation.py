"""A keyed permutation of ``range(n)``, computed where it is needed: no list of indices, at any n.

From 2^16 on it is a Feistel network on the two digits of a position, the low one of k bits and the high one
in ``range(b)``, with ``2^k * b >= n`` as tight as that allows::

    position = high * 2^k + low        high' = (high + F(low)) mod b        low' = low ^ F(high')

Four such pairs of rounds, each half under a key of its own, are a bijection of ``range(2^k * b)``. Of these
numbers less than one in b lies beyond n; a result out there is fed in again until it is inside ("cycle walk"),
which leaves a bijection of ``range(n)``. The low digit changes fastest, so the high one is moved first.

Below 2^16 so few values pass through each half that few rounds are measurably biased. There it is a true
permutation: the numbers sorted by their hashes, at most 128 KiB.

Sources: Black, Rogaway: Ciphers with arbitrary finite domains, 2002 (mixed radix, cycle walk); Lemire: Fast
random integer generation in an interval, 2019. Multipliers are those of Wellons' lowbias32 and SplitMix64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.index.mixing import mix2

TABLE_BELOW = 1 << 16
MOST = 1 << 62  # largest n: the domain must stay below 2^63
BLOCK = 1 << 15  # indices at once: scratch stays in the second-level cache, whatever was asked for

_PAIRS = 4
_HIGH_BITS = 12  # of the high digit at most; the rest of a word are hash bits when it is reduced to range(b)
_NARROW_BITS = 32 + _HIGH_BITS  # up to here both digits fit 32-bit words, which are twice as fast
_FACTORS = {32: (0x7FEB352D, 0x846CA68B), 64: (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)}
_MASK = (1 << 64) - 1

_Word = NDArray[Any]  # of uint32 or uint64
_Move = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def key_of(seed: int, epoch: int) -> int:
    """The 64-bit key of an epoch's order: a hash of the pair.

    Not of the sum: under ``seed + epoch`` runs with seeds s and s + 1 share all epochs but one.
    """
    pair = np.array([[seed & _MASK], [epoch & _MASK]], dtype=np.uint64)
    return int(mix2(pair[0], pair[1])[0])


class Permutation:
    """A bijection of ``range(n)`` that follows from ``(n, key)`` alone, on every machine.

    >>> order = Permutation(10, key_of(seed=0, epoch=0)).chunk(0, 10)
    >>> sorted(order.tolist()) == list(range(10))
    True
    """

    def __init__(self, n: int, key: int) -> None:
        if not 0 <= n <= MOST:
            raise ValueError(f"a permutation needs 0 <= n <= 2^62, but got {n}")
        self.n, self.key = n, key & _MASK
        self._map = _Table(n, self.key) if n < TABLE_BELOW else _Feistel(n, self.key)

    def permute(self, positions: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The index at each position, same shape. Raises IndexError for a position outside ``range(n)``."""
        return self._moved(positions, self._map.forward)

    def invert(self, indices: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The position of each index: the inverse of :meth:`permute`."""
        return self._moved(indices, self._map.backward)

    def chunk(self, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at positions ``start`` to ``stop - 1``: int64[stop - start]."""
        if not 0 <= start <= stop <= self.n:
            raise IndexError(f"positions [{start}, {stop}) are not all in range({self.n})")
        return self._map.forward(np.arange(start, stop, dtype=np.int64))

    def _moved(self, numbers: NDArray[np.integer[Any]], move: _Move) -> NDArray[np.int64]:
        given = np.asarray(numbers)
        if given.dtype.kind not in "iu":
            raise TypeError(f"positions are integers, but got {given.dtype}")
        if given.size and (given.min() < 0 or given.max() >= self.n):
            raise IndexError(f"[{given.min()}, {given.max()}] is not all in range({self.n})")
        return move(given.astype(np.int64, copy=False).ravel()).reshape(given.shape)


class _Table:
    """``range(n)`` sorted by a keyed hash. ``n < 2^16``."""

    def __init__(self, n: int, key: int) -> None:
        numbers = np.arange(n, dtype=np.uint64)
        hashes = mix2(np.array([key], np.uint64), numbers)
        # The number itself in the low 16 bits: sorting values is three times as fast as sorting places.
        # 48 bits of hash are left, so two agree once in 10^5 tables or less, and then stay in order.
        hashes &= np.uint64(_MASK - 0xFFFF)
        hashes |= numbers
        hashes.sort()
        self.table = hashes.astype(np.uint16)  # keeps the low 16 bits
        self.inverse: NDArray[np.uint16] | None = None

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.table[positions].astype(np.int64)

    def backward(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.inverse is None:
            inverse = np.empty_like(self.table)
            inverse[self.table] = np.arange(len(self.table), dtype=np.uint16)
            self.inverse = inverse
        return self.inverse[indices].astype(np.int64)


class _Feistel:
    """The network of the module's docstring. All arithmetic is that of unsigned words, which wrap."""

    def __init__(self, n: int, key: int) -> None:
        bits = (n - 1).bit_length()
        self.n = n
        self.low_bits = max((bits + 1) // 2, bits - _HIGH_BITS)
        radix = -(-n >> self.low_bits)  # of the high digit, rounded up
        width = 32 if bits <= _NARROW_BITS else 64
        word: Any = np.uint32 if width == 32 else np.uint64
        hashes = mix2(np.array([key], np.uint64), np.arange(2 * _PAIRS, dtype=np.uint64)).astype(word)
        self.keys = list(zip(hashes[::2], hashes[1::2], strict=True))
        self.factors = [word(factor) for factor in _FACTORS[width]]
        self.fold, self.radix = word(width // 2 - 1), word(radix)
        hash_bits = width - (radix - 1).bit_length()  # as many as can be multiplied by the radix
        self.to_hash, self.to_high = word(width - hash_bits), word(hash_bits)
        self.to_low, self.word = word(width - self.low_bits), word

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._inside(positions, self._encrypt)

    def backward(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._inside(indices, self._decrypt)

    def _inside(self, numbers: NDArray[np.int64], once: _Move) -> NDArray[np.int64]:
        """Block by block, and again for those that left range(n)."""
        out = np.empty_like(numbers)
        for first in range(0, len(numbers), BLOCK):
            out[first : first + BLOCK] = once(numbers[first : first + BLOCK])
        outside = np.flatnonzero(out >= self.n)
        while outside.size:
            again = once(out[outside])
            out[outside] = again
            outside = outside[again >= self.n]
        return out

    def _encrypt(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        high, low, amount, scratch = self._digits(numbers)
        for key_high, key_low in self.keys:
            self._amount(low, key_high, amount, scratch)
            np.add(high, amount, out=high)
            np.subtract(high, self.radix, out=amount)
            np.minimum(high, amount, out=high)  # below the radix the difference wraps to something large
            self._bits(high, key_low, amount, scratch)
            np.bitwise_xor(low, amount, out=low)
        return self._number(high, low)

    def _decrypt(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        high, low, amount, scratch = self._digits(numbers)
        for key_high, key_low in reversed(self.keys):
            self._bits(high, key_low, amount, scratch)
            np.bitwise_xor(low, amount, out=low)
            self._amount(low, key_high, amount, scratch)
            np.subtract(high, amount, out=high)  # where that wraps, adding the radix wraps back
            np.add(high, self.radix, out=amount)
            np.minimum(high, amount, out=high)
        return self._number(high, low)

    def _amount(self, low: _Word, key: Any, out: _Word, scratch: _Word) -> None:
        """A number in ``range(radix)`` for each low digit."""
        self._hash(low, key, out, scratch)
        np.right_shift(out, self.to_hash, out=out)
        np.multiply(out, self.radix, out=out)
        np.right_shift(out, self.to_high, out=out)

    def _bits(self, high: _Word, key: Any, out: _Word, scratch: _Word) -> None:
        """``low_bits`` bits for each high digit."""
        self._hash(high, key, out, scratch)
        np.right_shift(out, self.to_low, out=out)

    def _hash(self, half: _Word, key: Any, out: _Word, scratch: _Word) -> None:
        """A hash of each half; its upper bits are the good ones."""
        np.bitwise_xor(half, key, out=out)
        np.multiply(out, self.factors[0], out=out)
        np.right_shift(out, self.fold, out=scratch)
        np.bitwise_xor(out, scratch, out=out)
        np.multiply(out, self.factors[1], out=out)

    def _digits(self, numbers: NDArray[np.int64]) -> tuple[_Word, _Word, _Word, _Word]:
        """High digit, low digit, and two arrays to compute in."""
        high = np.right_shift(numbers, np.int64(self.low_bits)).astype(self.word)
        low = np.bitwise_and(numbers, np.int64((1 << self.low_bits) - 1)).astype(self.word)
        return high, low, np.empty_like(low), np.empty_like(low)

    def _number(self, high: _Word, low: _Word) -> NDArray[np.int64]:
        number = np.left_shift(high.astype(np.int64), np.int64(self.low_bits))
        return np.bitwise_or(number, low.astype(np.int64), out=number)
