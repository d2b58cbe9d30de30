"""synthetic:SIZE[:SHAPE[:DTYPE]], arrays whose content is a keyed hash of seed, index and position.

``synthetic:256MiB``, ``synthetic:1GB:784``, ``synthetic:64KiB:3x32x32:float32``. SIZE is bytes, rounded down
to whole samples, or ``n=1783``, a number of samples. A sample is one tensor; its first eight bytes say which
it is, so that what was delivered can be checked without a second copy of the data.

Word w of sample i, as the raw bytes of the integer types hold it::

    sample i   |  word 0  |  word 1  |  ...          word w = mix(mix(seed) ^ (i << 32 | w)), little-endian
               0          8          16              a last, incomplete word is cut

Floating types take the top bits of each lane of those words instead, as a number in [0, 1).
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from shardlab.dataset._arrays import ArrayDataset
from shardlab.dataset._facts import DatasetFacts
from shardlab.dataset._spec import DatasetSpec
from shardlab.dataset._units import parse_bytes, parse_count
from shardlab.errors import RunFailed, UsageError
from shardlab.index.mixing import mix

DEFAULTS = ("256MiB", "3x224x224", "uint8")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
MANTISSA_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # all of them exact in [0, 1)
CHUNK_WORDS = 1 << 14  # 128 KiB: the hash's temporaries stay in the second-level cache
_WORD = np.dtype("<u8")
_RULE = "--dataset synthetic:SIZE[:SHAPE[:DTYPE]]"

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Layout:
    """Which arrays: ``samples`` of ``shape`` and ``dtype``, content keyed by ``seed``."""

    samples: int
    shape: tuple[int, ...]
    dtype: str
    seed: int = 0

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)

    @property
    def sample_words(self) -> int:
        """Words of one sample, the last one perhaps incomplete."""
        return -(-self.sample_bytes // 8)


def open(args: str, spec: DatasetSpec) -> ArrayDataset:
    """All samples in one tensor, built in this process. Raises UsageError for wrong arguments."""
    layout = parse(args, spec.seed)
    try:
        data = torch.empty((layout.samples, *layout.shape), dtype=getattr(torch, layout.dtype))
    except RuntimeError as error:  # torch's own out-of-memory error
        raise RunFailed(f"--dataset synthetic:{args} does not fit into memory: {error}") from None
    _fill(data, layout)
    return ArrayDataset(data)


def facts(args: str, spec: DatasetSpec) -> DatasetFacts:
    """From the arguments alone."""
    layout = parse(args, spec.seed)
    sample = {"kind": "tensor", "dtype": layout.dtype, "shape": list(layout.shape)}
    return DatasetFacts(layout.samples, layout.samples * layout.sample_bytes, sample)


def parse(args: str, seed: int = 0) -> Layout:
    """``SIZE[:SHAPE[:DTYPE]]`` as a layout.

    >>> parse("n=5:2x3:float32")
    Layout(samples=5, shape=(2, 3), dtype='float32', seed=0)
    >>> parse("1000:3x7").samples  # 47 samples of 21 bytes
    47
    """
    given = args.split(":") if args else []
    if len(given) > len(DEFAULTS):
        raise UsageError(f"{_RULE} has three parts", args)
    size, shape_text, dtype = (*given, *DEFAULTS[len(given) :])
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", shape_text):
        raise UsageError(f"{_RULE}: SHAPE must be numbers of at least 1", shape_text, ["784", "3x224x224"])
    if dtype not in (*INTEGERS, *MANTISSA_BITS):
        raise UsageError(f"{_RULE}: DTYPE must be known", dtype, [*INTEGERS, *MANTISSA_BITS])
    one = Layout(1, tuple(int(n) for n in shape_text.split("x")), dtype, seed)
    if size.startswith("n="):
        samples = parse_count(size[2:], f"{_RULE}: n= must be a number of samples")
    else:
        samples = parse_bytes(size, f"{_RULE}: SIZE must be a number of bytes") // one.sample_bytes
    if one.sample_words >= 1 << 32 or samples >= 1 << 32:
        raise UsageError(f"{_RULE}: at most 2^32 samples of less than 32 GiB each", args)
    return Layout(samples, one.shape, dtype, seed)


def rows(layout: Layout, indices: NDArray[np.int64]) -> torch.Tensor:
    """The samples ``indices``, shape (len(indices), *shape), as the whole dataset holds them."""
    high = np.asarray(indices, np.uint64)[:, None] << np.uint64(32)
    words = _words(layout, high, _range(0, layout.sample_words))
    raw = np.ascontiguousarray(words.view(np.uint8)[:, : layout.sample_bytes])
    return torch.from_numpy(raw.reshape(-1)).view(getattr(torch, layout.dtype)).reshape(-1, *layout.shape)


def first_words(layout: Layout, indices: NDArray[np.int64]) -> Words:
    """First eight bytes of each of the samples, shape (len(indices),); found without building anything.

    Little-endian; a smaller sample is padded with zeros. Of samples of eight bytes and more of an integer
    type all first words differ.
    """
    words = _words(layout, np.asarray(indices, np.uint64) << np.uint64(32), np.zeros(1, np.uint64))
    return words & _mask(layout.sample_bytes)


def words_of_batch(batch: torch.Tensor) -> Words:
    """First eight bytes of each row of a delivered batch, shape (len(batch),), as `first_words` has them."""
    if not len(batch):
        return np.zeros(0, np.uint64)
    try:
        flat = np.ascontiguousarray(batch.numpy().reshape(len(batch), -1))
        raw = flat.view(np.uint8)  # (batch, bytes of a row)
    except (RuntimeError, TypeError):  # not on the processor, part of a graph, or of a dtype that only torch has
        raw = batch.detach().cpu().reshape(len(batch), -1).contiguous().view(torch.uint8).numpy()
    if raw.shape[1] % 8 == 0:
        first: Words = raw.view(_WORD)[:, 0]
        return first
    words = np.zeros((len(batch), 8), np.uint8)
    words[:, : raw.shape[1]] = raw[:, :8]
    return words.view(_WORD).reshape(-1)


def _fill(data: torch.Tensor, layout: Layout) -> None:
    """Write all samples, a chunk of rows and words at a time."""
    out = data.reshape(-1).view(torch.uint8).numpy().reshape(layout.samples, layout.sample_bytes)
    width = min(layout.sample_words, CHUNK_WORDS)
    height = max(1, CHUNK_WORDS // width)
    for start in range(0, layout.samples, height):
        index = _range(start, min(start + height, layout.samples))[:, None] << np.uint64(32)
        for word in range(0, layout.sample_words, width):
            words = _words(layout, index, _range(word, min(word + width, layout.sample_words)))
            part = out[start : start + height, 8 * word : 8 * (word + width)]  # (rows, bytes)
            part[:] = words.view(np.uint8)[:, : part.shape[1]]


def _range(start: int, stop: int) -> Words:
    return np.arange(start, stop, dtype=np.uint64)


def _words(layout: Layout, index: Words, word: Words) -> Words:
    """Words of the dataset's bytes; ``index`` (shifted by 32 bits) and ``word`` are broadcast."""
    key = mix(np.array([layout.seed], np.uint64))
    words = mix((index | word) ^ key)
    if layout.dtype in MANTISSA_BITS:
        words = _unit_floats(words, layout.dtype)
    return words if sys.byteorder == "little" else words.byteswap()


def _unit_floats(words: Words, dtype: str) -> Words:
    """Each lane of each word as a finite number of [0, 1): its top bits over 2 to their number."""
    bits = MANTISSA_BITS[dtype]
    size = int(getattr(torch, dtype).itemsize)
    lanes = words.view(f"u{size}") >> np.array(8 * size - bits, f"u{size}")
    if dtype == "bfloat16":  # the upper half of a float32; eight bits fit it without rounding
        wide = lanes.astype(np.float32) * np.float32(2.0**-bits)
        scaled = (wide.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        scaled = lanes.astype(dtype)
        scaled *= np.array(2.0**-bits, dtype)
    result: Words = scaled.view(np.uint64)
    return result


def _mask(sample_bytes: int) -> np.uint64:
    return np.uint64((1 << (8 * min(8, sample_bytes))) - 1)
