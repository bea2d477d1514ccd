"""Register Megatron's indexed datasets, `<prefix>.bin` and `<prefix>.idx`; only the index is read.

A sample is a document, which is a run of sequences; its tokens are one flat field.
"""

import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.errors import Corrupt
from loader.storage import ObjectInfo, Store

from .reading.sample import RUN_SAMPLES, ForeignRun, FoundObjects
from .reading.window import ObjectWindow

Int64s = np.ndarray[Any, np.dtype[np.int64]]
HEADER_BYTES = 34
DTYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
"""Dtype code -> dtype word."""
MAGIC = b"MMIDIDX\0\0"
OBJECTS_PER_SHARD = 1
FIELD = "tokens"
LENGTHS, MODES = "sequence_lengths", "sequence_modes"
"""Metadata columns, each a list of int64 per document: length and mode of each sequence."""


class MegatronHeader(NamedTuple):
    """An index's header, which gives the offsets of its arrays."""

    word: str
    """Dtype word, such as "u2"."""
    n_sequences: int
    """Number of sequences."""
    n_documents: int
    """Number of documents."""
    has_modes: bool
    """True if each sequence has a mode."""

    @property
    def pointers(self) -> int:
        """Offset of the pointers (int64), which follow the lengths (int32)."""
        return HEADER_BYTES + 4 * self.n_sequences

    @property
    def documents(self) -> int:
        """Offset of the documents' bounds (int64)."""
        return self.pointers + 8 * self.n_sequences

    @property
    def modes(self) -> int:
        """Offset of the modes (int8)."""
        return self.documents + 8 * (self.n_documents + 1)


class Documents(NamedTuple):
    """Consecutive documents of an index."""

    first: int
    """Index of the first document."""
    bounds: Int64s
    """int64 [n + 1]: each document's first sequence, and the end of the last."""
    edges: Int64s
    """int64 [n + 1]: each document's offset in the object, and the end of the last."""
    lengths: Int64s
    """int64 [sequences]: number of values in each sequence."""
    modes: Int64s | None
    """int64 [sequences]: mode of each sequence; None if there are no modes."""


def documents_in(
    store: Store, index: ObjectInfo, data: ObjectInfo
) -> Iterator[tuple[MegatronHeader, Documents]]:
    """Yield an index's documents, at most `RUN_SAMPLES` at a time. data: the `.bin` object, which is not read."""
    windows = [ObjectWindow(store, index) for _ in range(4)]  # one per array, each read forward
    try:
        yield from _documents(windows, f"{store.url}/{data.key}", data.nbytes)
    finally:
        for window in windows:
            window.close()


def _documents(
    windows: list[ObjectWindow], name: str, nbytes: int
) -> Iterator[tuple[MegatronHeader, Documents]]:
    head = _header(windows[0])
    size, begin, at = int(head.word[1:]), 0, 0
    for first in range(0, max(head.n_documents, 1), RUN_SAMPLES):
        n = min(RUN_SAMPLES, head.n_documents - first)
        bounds = _array(windows[2], head.documents + 8 * first, n + 1, "<i8")
        wrong = np.flatnonzero(np.diff(bounds, prepend=begin) < 0)
        if bounds[0] != begin or len(wrong) or bounds[-1] > head.n_sequences:
            number = int(wrong[0]) if len(wrong) else 0 if bounds[0] != begin else n
            raise _corrupt(
                windows[2],
                head.documents + 8 * (first + number),
                f"a document ends behind sequence {bounds[number]} of {head.n_sequences}, which is not in order",
            )
        n_sequences = int(bounds[-1]) - begin
        lengths = _array(windows[0], HEADER_BYTES + 4 * begin, n_sequences, "<i4")
        ends = at + np.cumsum(lengths * size)
        pointers = _array(windows[1], head.pointers + 8 * begin, n_sequences, "<i8")
        negative, moved = np.flatnonzero(lengths < 0), np.flatnonzero(pointers != ends - lengths * size)
        if len(negative):
            raise _corrupt(
                windows[0],
                HEADER_BYTES + 4 * (begin + int(negative[0])),
                f"a sequence has the length {lengths[negative[0]]}",
            )
        if len(moved):
            raise _corrupt(
                windows[1],
                head.pointers + 8 * (begin + int(moved[0])),
                f"a sequence begins at {pointers[moved[0]]}, and not where the one before it ends",
            )
        edges = np.concatenate([[at], ends])
        modes = _array(windows[3], head.modes + begin, n_sequences, "<i1") if head.has_modes else None
        yield head, Documents(first, bounds - begin, edges[bounds - begin], lengths, modes)
        begin, at = int(bounds[-1]), int(edges[-1])
    if begin != head.n_sequences:
        raise _corrupt(
            windows[2],
            head.modes - 8,
            f"the last document ends behind sequence {begin} of {head.n_sequences}: the others are of no document. "
            "Write it again with end_document()",
        )
    if at != nbytes:
        raise _corrupt(
            windows[0],
            HEADER_BYTES,
            f"its sequences have {at:,} bytes, and {name} has {nbytes:,}: it is of another",
        )


def _header(window: ObjectWindow) -> MegatronHeader:
    data = window.read(0, HEADER_BYTES)
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        raise _corrupt(window, 0, "it is no index of Megatron: it does not begin with MMIDIDX")
    if len(data) < HEADER_BYTES:
        raise _corrupt(window, len(data), f"the index is cut: its header has {HEADER_BYTES} bytes")
    version, code, n_sequences, n_bounds = struct.unpack_from("<QBQQ", data, len(MAGIC))
    if version != 1:
        raise _corrupt(window, 9, f"the index has version {version}; accepted: 1")
    if code not in DTYPES:
        raise _corrupt(window, 17, f"no dtype has the code {code}; accepted: 1 to {max(DTYPES)}")
    expected = HEADER_BYTES + 12 * n_sequences + 8 * n_bounds
    if not n_bounds or window.nbytes not in (expected, expected + n_sequences):
        raise _corrupt(
            window,
            18,
            f"{n_sequences} sequences and {n_bounds} bounds of documents have {expected:,} bytes, with modes "
            f"{expected + n_sequences:,}, and the index has {window.nbytes:,}",
        )
    return MegatronHeader(DTYPES[code], n_sequences, n_bounds - 1, window.nbytes > expected)


def _array(window: ObjectWindow, at: int, n: int, dtype: str) -> Int64s:
    return np.frombuffer(window.read(at, n * int(dtype[2:])), dtype).astype(np.int64)


def _corrupt(window: ObjectWindow, at: int, what: str) -> Corrupt:
    return Corrupt(f"{window.name}, byte {at}: {what}")


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the `.bin` objects that have an index."""
    objects = {info.key: info for info in infos}
    indexes = {_stem(key) + ".bin": info for key, info in objects.items() if key.endswith(".idx")}
    data = [info for info in infos if info.key in indexes]
    lacking = [
        f"{store.url}/{indexes[key].key} is an index of {key}, and it is not there"
        for key in sorted(indexes.keys() - objects.keys())
    ]
    return FoundObjects(data, partial(samples, store, indexes), lacking=lacking)


def samples(store: Store, indexes: Mapping[str, ObjectInfo], info: ObjectInfo) -> Iterator[ForeignRun]:
    prefix = f"{_stem(info.key)}/" if len(indexes) > 1 else ""
    for head, documents in documents_in(store, indexes[info.key], info):
        yield ForeignRun(
            prefix, documents.first, f"{FIELD}.{head.word}", documents.edges, _metadata(documents)
        )


def _metadata(documents: Documents) -> dict[str, pa.Array]:
    bounds = pa.array(documents.bounds, pa.int32())
    out = {}
    if (np.diff(documents.bounds) != 1).any():
        out[LENGTHS] = pa.ListArray.from_arrays(bounds, pa.array(documents.lengths))
    if documents.modes is not None:
        out[MODES] = pa.ListArray.from_arrays(bounds, pa.array(documents.modes))
    return out


def _stem(key: str) -> str:
    return key[:-4]
