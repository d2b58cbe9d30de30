"""The random numbers of a process: torch's, its accelerator's, NumPy's and Python's, saved and put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from shardlab.engine._flatten import Change, Tensors
from shardlab.errors import UsageError


def random_parts() -> Tensors:
    """The states of this process's generators: torch, its accelerator where in use, NumPy's and Python's."""
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - users draw from it, whatever it is
    if state["bit_generator"] != "MT19937":
        raise UsageError(
            "NumPy's global generator must be its own to be saved", state["bit_generator"], ["MT19937"],
            "leave np.random.set_bit_generator alone and draw from np.random.Generator",
        )  # fmt: skip
    _, words, gauss = random.getstate()
    inner = state["state"]
    parts = {
        "torch": torch.get_rng_state(),
        "numpy.words": torch.tensor([*inner["key"].tolist(), inner["pos"]]),
        "numpy.gauss": torch.tensor([state["has_gauss"], state["gauss"]], dtype=torch.float64),
        "python.words": torch.tensor(words),
        "python.gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        parts["cuda"] = torch.cuda.get_rng_state()
    return parts


def random_change(parts: Tensors, key: int) -> Change:
    """From ``parts``; what they lack is seeded with ``key``. Raises ValueError and such for a broken state."""
    if not parts:
        return lambda: seed(key)
    *words, position = parts["numpy.words"].tolist()
    has_gauss, gauss = parts["numpy.gauss"].tolist()
    of_numpy = ("MT19937", np.array(words, np.uint32), int(position), int(has_gauss), gauss)
    has_gauss, gauss = parts["python.gauss"].tolist()
    of_python = (3, tuple(parts["python.words"].tolist()), gauss if has_gauss else None)
    if not 0 <= position <= len(words):  # NumPy would read there
        raise ValueError(f"NumPy's generator at word {position} of {len(words)}")
    np.random.RandomState().set_state(of_numpy)
    random.Random().setstate(of_python)
    torch.Generator().set_state(parts["torch"])

    def change() -> None:
        seed(key)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        torch.set_rng_state(parts["torch"])
        if "cuda" in parts and torch.cuda.is_available():
            torch.cuda.set_rng_state(parts["cuda"])

    return change


def seed(key: int) -> None:
    """Seed all generators of this process with a 64-bit key."""
    torch.manual_seed(key)
    np.random.seed([key >> 32, key & 0xFFFFFFFF])  # noqa: NPY002
    random.seed(key)
