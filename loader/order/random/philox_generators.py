"""Philox generators by key: one per thread, reset for each sample unless a caller keeps it.

A new generator holds the interpreter's lock for 4 us, resetting an old one for 0.4 us.

Rejected: a generator created at its first draw; detecting that draw costs more than resetting a generator.
"""

from __future__ import annotations

import logging
import struct
import threading
from functools import cache
from sys import getrefcount
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

logger = logging.getLogger(__name__)

_POINTERS = struct.Struct("@PP")
"""Beginning of numpy's Philox state: addresses of the counter and the key."""
_REST = struct.Struct("@i4QiI2Q4Q")
"""The fields after them: buffer position, buffer, half-word flag, half, key, counter."""
_NBYTES = _POINTERS.size + _REST.size
_KEY_AT = 64
"""Offset of the key in the state, in bytes."""
_COUNTER_AT = 80
"""Offset of the counter."""
_EMPTY_BUFFER = (4, 0, 0, 0, 0, 0, 0)
"""Buffer position to half. The position is after the buffer's four words: the first draw fills it."""
_COUNTER = (0, 0, 0, 0)


class PhiloxKey(ISeedSequence):
    """A Philox key in the form of numpy's seed sequence; `Philox(key=...)` takes twice as long."""

    def __init__(self, first: int, second: int) -> None:
        self.words = (first, second)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> np.ndarray[Any, Any]:
        assert n_words == 2
        assert np.dtype(dtype) == np.uint64
        return np.array(self.words, np.uint64)


class _ReusableGenerator:
    """A generator that is reset for each sample, by writing to numpy's memory."""

    __slots__ = ("_bits", "_generator", "_key", "_memory", "_references")

    def __init__(self) -> None:
        self._key = PhiloxKey(0, 0)
        self._bits = _philox(self._key)
        self._memory = _state_memory(self._bits)
        # A caller may keep the generator, its bit generator or its seed sequence. They are counted here and in `reset`
        # under the same names: one more local name in only one of them would be one more reference.
        generator = np.random.Generator(self._bits)
        self._generator = generator
        self._references = (getrefcount(generator), getrefcount(self._bits), getrefcount(self._key))

    def reset(self, first: int, second: int) -> np.random.Generator | None:
        """Return the generator, reset to this key; None while a caller keeps it or one of its parts."""
        # This local reference counts, too: if a signal handler draws here, it gets None.
        generator = self._generator
        # Compare one by one. If a caller keeps the generator (+1) and restores a state with another seed sequence, its
        # key is dropped (-1), and the sum is unchanged.
        references = (getrefcount(generator), getrefcount(self._bits), getrefcount(self._key))
        if references != self._references:
            return None
        self._key.words = (first, second)
        _REST.pack_into(self._memory, _POINTERS.size, *_EMPTY_BUFFER, first, second, *_COUNTER)
        return generator


class _ThreadGenerators(threading.local):
    reusable: _ReusableGenerator | None = None


_thread_generators = _ThreadGenerators()


def philox_generator(first: int, second: int) -> np.random.Generator:
    """Return a Philox generator with this key, at its first draw. Reuse the thread's unless a caller keeps it."""
    reusable = _thread_generators.reusable
    if reusable is not None:
        generator = reusable.reset(first, second)
        if generator is not None:
            return generator

    # The thread's first, or a caller keeps the former one: leave that to the caller.
    if _has_known_layout():
        reusable = _ReusableGenerator()
        _thread_generators.reusable = reusable
        generator = reusable.reset(first, second)
        if generator is not None:  # None if a signal handler kept it in between
            return generator

    key = PhiloxKey(first, second)
    return np.random.Generator(_philox(key))


@cache
def _has_known_layout() -> bool:
    """Return whether numpy's state lies in memory as `_POINTERS` and `_REST` say. Logs a warning if not."""
    if _layout_matches():
        return True
    logger.warning(
        "numpy %s has an unknown memory layout of Philox: each sample gets a new generator, which "
        "holds the interpreter's lock longer. Its draws are the same",
        np.__version__,
    )
    return False


def _layout_matches() -> bool:
    bits = _philox(PhiloxKey(5, 6))
    address = bits.ctypes.state_address
    last_address = id(bits) + type(bits).__basicsize__ - _NBYTES
    lies_in_object = id(bits) < address <= last_address
    if not lies_in_object:  # to read the memory could end the process
        return False

    # A new generator.
    memory = _state_memory(bits)
    pointers = (address + _COUNTER_AT, address + _KEY_AT)
    if _unpack_state(memory) != (*pointers, *_EMPTY_BUFFER, 5, 6, *_COUNTER):
        return False

    # Each field gets a value of its own, so that no two can change places.
    bits.state = {
        "bit_generator": "Philox",
        "state": {
            "counter": np.arange(1, 5, dtype=np.uint64),
            "key": np.array([15, 16], np.uint64),
        },
        "buffer": np.arange(7, 11, dtype=np.uint64),
        "buffer_pos": 2,
        "has_uint32": 1,
        "uinteger": 11,
    }
    buffer = (2, 7, 8, 9, 10, 1, 11)
    return _unpack_state(memory) == (*pointers, *buffer, 15, 16, 1, 2, 3, 4)


def _unpack_state(memory: memoryview) -> tuple[int, ...]:
    pointers = _POINTERS.unpack_from(memory)
    rest = _REST.unpack_from(memory, _POINTERS.size)
    return pointers + rest


def _philox(key: PhiloxKey) -> np.random.Philox:
    return np.random.Philox(key)  # type: ignore[arg-type]  # any ISeedSequence


def _state_memory(bits: np.random.Philox) -> memoryview:
    """Return numpy's own memory of the generator's state, writable."""
    import ctypes

    address = bits.ctypes.state_address
    state = (ctypes.c_char * _NBYTES).from_address(address)
    return memoryview(state).cast("B")
