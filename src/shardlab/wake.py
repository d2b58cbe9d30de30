"""Semaphores in shared memory: processes wait for each other asleep in the kernel, and see what was written.

POSIX semaphores, called through ctypes. A post wakes a waiter in about 12 us through a futex, an uncontended
post or wait costs 0.2 us, and POSIX promises that what was written before a post is seen after the wait that
it ends, on any processor: no memory order of our own has to be right.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.errors import RunFailed

STRIDE = 64  # bytes from one semaphore to the next: a cache line, and at least sizeof(sem_t) of any libc


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class Semaphores:
    """``count`` semaphores in a writable buffer of ``count * STRIDE`` bytes that several processes map shared.

    Exactly one process calls :meth:`reset`, before any other waits or posts.
    """

    def __init__(self, buffer: NDArray[np.uint8], count: int) -> None:
        assert buffer.nbytes >= count * STRIDE
        self.count = count
        self._buffer = buffer  # keeps the mapping
        self._address = buffer.ctypes.data
        self._libc = _libc()
        self._clock, self._timed_wait = time.CLOCK_REALTIME, self._libc.sem_timedwait
        if hasattr(self._libc, "sem_clockwait"):  # by a clock that nobody sets
            self._clock = time.CLOCK_MONOTONIC
            self._timed_wait = partial(_clock_wait, self._libc, time.CLOCK_MONOTONIC)

    def reset(self, values: dict[int, int] | None = None) -> None:
        """All at zero, or at ``values[number]``."""
        for number in range(self.count):
            value = (values or {}).get(number, 0)
            if self._libc.sem_init(self._at(number), 1, value) != 0:
                raise RunFailed(f"this system has no semaphores between processes: {_reason()}")

    def post(self, number: int) -> None:
        """Let one waiter go on, now or when it comes. Safe in a destructor and in any thread."""
        self._libc.sem_post(self._at(number))

    def wait(self, number: int, timeout_s: float) -> bool:
        """Sleep until a post; False when none came within ``timeout_s``. A signal's handler runs meanwhile."""
        if self._libc.sem_trywait(self._at(number)) == 0:
            return True
        if timeout_s <= 0:
            return False
        end = time.clock_gettime(self._clock) + timeout_s
        deadline = _Timespec(int(end), int(end % 1 * 1e9))
        while self._timed_wait(self._at(number), ctypes.byref(deadline)) != 0:
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False
            if ctypes.get_errno() != errno.EINTR:
                raise RunFailed(f"waiting on a semaphore failed: {_reason()}")
        return True

    def _at(self, number: int) -> int:
        return self._address + number * STRIDE


def _clock_wait(libc: Any, clock: int, semaphore: int, deadline: Any) -> Any:
    return libc.sem_clockwait(semaphore, clock, deadline)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("sem_init", "sem_post", "sem_trywait", "sem_timedwait"):
        if not hasattr(libc, name):
            raise RunFailed(f"this system's C library has no {name}: --sampler ring needs Linux")
    libc.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    libc.sem_post.argtypes = libc.sem_trywait.argtypes = (ctypes.c_void_p,)
    libc.sem_timedwait.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    if hasattr(libc, "sem_clockwait"):
        libc.sem_clockwait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    return libc


def _reason() -> str:
    return os.strerror(ctypes.get_errno())
