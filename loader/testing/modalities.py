"""The conformance suite for modalities: rules for every decoder and encoder of a field.

class TestPoints(ModalityConformance):
    @pytest.fixture
    def modality(self) -> Modality:
        return Modality(decode=decode, samples=[bytes(24)], encode=encode, values=[np.zeros((2, 3), "<f4")])
"""

import mmap
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..errors import DecodeFailed, InvalidField
from ..modalities import Buffer, Decoder
from ..storage.threads import DaemonPool


def damaged(data: bytes, seed: int, n: int = 100) -> Iterator[bytes]:
    """Yield `n` truncations, from nothing to all but the last byte, and `n` copies with 1 to 5 bytes changed.

    n: number of truncations, 2 or more. Empty data has no damaged copy.
    """
    if not data:  # nothing to cut or to change
        return
    # Spread over the whole length: a format's headers and its last block fail differently.
    for share in range(n):
        length = (len(data) - 1) * share // (n - 1)
        yield data[:length]
    # Seeded, so that a failure repeats.
    rng = np.random.default_rng(seed)
    for _ in range(n):
        copy = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            copy[place] = rng.integers(256)
        yield bytes(copy)


FIELD = "a.field"


@dataclass(frozen=True, slots=True, kw_only=True)
class Modality:
    """A decoder, an encoder, and examples for both."""

    decode: Decoder
    """The decoder."""
    samples: Sequence[bytes]
    """One or more byte strings that it decodes."""
    garbage: bytes | None = b"\xff\xfe\x00\x01 no such format"
    """Bytes that it rejects, or None."""
    encode: Callable[[str, Any], Buffer] | None = None
    """The encoder: (field, value) -> bytes, or None."""
    values: Sequence[object] = ()
    """Values that survive encoding and decoding. The encoder rejects a plain `object()`."""


class ModalityConformance:
    """Tests for decoding and encoding one field. Extend it with a fixture `modality` that returns a `Modality`."""

    def test_garbage_is_refused_with_a_reason(self, modality: Modality) -> None:
        # Such a decoder accepts any bytes, so it has only to end without an error.
        if modality.garbage is None:
            for n in range(9):
                modality.decode(bytes(n), None)
            return
        with pytest.raises(DecodeFailed) as caught:
            modality.decode(modality.garbage, None)
        assert len(str(caught.value)) > 10  # a reason, not a bare name

    def test_damaged_bytes_are_decoded_or_refused(self, modality: Modality) -> None:
        for data in damaged(modality.samples[0], seed=1, n=20):
            with suppress(DecodeFailed):  # any other error ends the test
                modality.decode(data, None)

    # Stores return bytes, scratch buffers and mapped files.
    def test_every_kind_of_buffer_decodes_alike(self, modality: Modality, tmp_path: Path) -> None:
        path = tmp_path / "field"
        for data in modality.samples:
            expected = modality.decode(data, None)
            path.write_bytes(data)
            for buffer in (bytearray(data), memoryview(data)):
                assert same(modality.decode(buffer, None), expected), type(buffer)
            if not data:  # an empty file cannot be mapped
                continue
            # The loader maps files of local stores.
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                assert same(modality.decode(mapped, None), expected), type(mapped)

    def test_value_outlives_its_bytes(self, modality: Modality) -> None:
        for data in modality.samples:
            buffer = bytearray(data)
            value = modality.decode(buffer, None)
            buffer[:] = bytes(len(buffer))  # the caller may reuse its buffer
            assert same(value, modality.decode(data, None))

    def test_same_bytes_and_numbers_give_the_same_value(self, modality: Modality) -> None:
        for data in modality.samples:
            first = modality.decode(data, np.random.default_rng(7))
            second = modality.decode(data, np.random.default_rng(7))
            assert same(first, second)

    def test_many_threads_decode_alike(self, modality: Modality) -> None:
        # A loader decodes in several threads with one decoder.
        with DaemonPool(4, "penstock-testing") as pool:
            for data in modality.samples:
                expected = modality.decode(data, None)
                decoded = pool.map(lambda again: modality.decode(again, None), [data] * 8)
                assert all(same(value, expected) for value in decoded)

    def test_it_pickles(self, modality: Modality) -> None:
        # A loader sends its decoders to worker processes.
        again: Decoder = pickle.loads(pickle.dumps(modality.decode))  # noqa: S301 - our own bytes
        for data in modality.samples:
            assert same(again(data, None), modality.decode(data, None))

    def test_values_come_back(self, modality: Modality) -> None:
        for value in modality.values:
            assert modality.encode is not None  # values need an encoder
            data = bytes(modality.encode(FIELD, value))
            # A rerun must store the same bytes.
            assert data == bytes(modality.encode(FIELD, value))
            assert same(modality.decode(data, None), value)

    def test_other_values_are_refused_by_name(self, modality: Modality) -> None:
        if modality.encode is not None:
            with pytest.raises(InvalidField) as caught:
                modality.encode(FIELD, object())
            assert repr(FIELD) in str(caught.value)


def same(first: object, other: object) -> bool:
    """Return whether two decoded values have the same type and are equal: arrays with their dtype, bit for bit."""
    # Python equates 1, 1.0 and True, which a batch does not.
    if type(first) is not type(other):
        return False
    if isinstance(first, np.ndarray) and isinstance(other, np.ndarray):
        if first.dtype != other.dtype or first.shape != other.shape:
            return False
        return first.tobytes() == other.tobytes()  # NaN equals itself
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        if first.keys() != other.keys():
            return False
        return all(same(first[name], other[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(other, list | tuple):
        if len(first) != len(other):
            return False
        return all(map(same, first, other))
    is_nan = isinstance(first, float | np.floating) and first != first
    if is_nan:
        return bool(other != other)
    return first == other
