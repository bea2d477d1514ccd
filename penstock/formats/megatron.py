"""Megatron's indexed datasets, `<prefix>.bin` with tokens and `<prefix>.idx`.

A sample is a document, a run of sequences; its tokens are one flat field. Registering reads only the index. An export
keeps the file names of registered documents; otherwise each part becomes a pair of files.
"""

import io
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.dataset.versions.samples_table import import_polars
from loader.errors import Corrupt, InvalidSample, LossyExport
from loader.keywords import is_whole_number
from loader.storage import ObjectInfo, Store

from .exporter import ExportSample, ExportSelection, Loss, Outbox, WorkUnit
from .reading.object_file import ForwardReader
from .reading.sample import RUN_SAMPLES, ForeignRun, FoundObjects
from .reading.stated_counts import StatedCounts

Int64s = np.ndarray[Any, np.dtype[np.int64]]
HEADER_BYTES = 34
DTYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
"""Code -> dtype word."""
MAGIC = b"MMIDIDX\0\0"
OBJECTS_PER_SHARD = 1
FIELD = "tokens"
LENGTHS = "sequence_lengths"
MODES = "sequence_modes"
"""Metadata columns, int64 lists per document: each sequence's length and mode."""


class MegatronHeader(NamedTuple):
    """An index's header, with its arrays' offsets."""

    word: str
    """Dtype, such as "u2"."""
    n_sequences: int
    """Number of sequences."""
    n_documents: int
    """Number of documents."""
    has_modes: bool
    """True if each sequence has a mode."""

    @property
    def pointers(self) -> int:
        """Offset of the pointers (int64), after the lengths (int32)."""
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
    """Consecutive documents."""

    first: int
    """Index of the first."""
    bounds: Int64s
    """int64 [n + 1]: documents' first sequences, and the last's end."""
    edges: Int64s
    """int64 [n + 1]: documents' offsets, and the last's end."""
    lengths: Int64s
    """int64 [sequences]: values of each."""
    modes: Int64s | None
    """int64 [sequences], or None."""


def index_documents(
    store: Store, index: ObjectInfo, data: ObjectInfo
) -> Iterator[tuple[MegatronHeader, Documents]]:
    """Yield an index's documents, at most `RUN_SAMPLES` at a time. data: the `.bin` object, unread."""
    readers = [ForwardReader(store, index) for _ in range(4)]  # one per array, each read forward
    try:
        yield from _documents(readers, f"{store.url}/{data.key}", data.nbytes)
    finally:
        for reader in readers:
            reader.close()


def _documents(
    readers: list[ForwardReader], name: str, nbytes: int
) -> Iterator[tuple[MegatronHeader, Documents]]:
    head = _read_header(readers[0])
    begin = 0  # first sequence of the next documents
    at = 0  # its offset in the `.bin` object
    for first in range(0, max(head.n_documents, 1), RUN_SAMPLES):
        n = min(RUN_SAMPLES, head.n_documents - first)
        bounds = _bounds(readers[2], head, first, n, begin)
        n_sequences = int(bounds[-1]) - begin
        lengths, edges = _sequence_edges(readers, head, begin, n_sequences, at)
        modes = None
        if head.has_modes:
            modes = _array(readers[3], head.modes + begin, n_sequences, "<i1")
        inner = bounds - begin  # int64 [n + 1]: bounds as indexes of `lengths`
        yield head, Documents(first, inner, edges[inner], lengths, modes)
        begin = int(bounds[-1])
        at = int(edges[-1])
    if begin != head.n_sequences:
        raise _corrupt(
            readers[2],
            head.modes - 8,
            f"the last document ends after sequence {begin} of {head.n_sequences}: the others are of no document. "
            "Write it again with end_document()",
            what="last document",
            given=begin,
            accepted=head.n_sequences,
        )
    if at != nbytes:
        message = f"its sequences have {at:,} bytes, and {name} has {nbytes:,}: it is of another"
        raise _corrupt(readers[0], HEADER_BYTES, message, what="sequences", given=at, accepted=nbytes)


def _bounds(reader: ForwardReader, head: MegatronHeader, first: int, n: int, begin: int) -> Int64s:
    """Return the sequence bounds of `n` documents, int64 [n + 1]. begin: the first document's sequence."""
    offset = head.documents + 8 * first
    bounds = _array(reader, offset, n + 1, "<i8")
    wrong = np.flatnonzero(np.diff(bounds, prepend=begin) < 0)  # bounds below the one before
    if len(wrong):
        number = int(wrong[0])
    elif bounds[0] != begin:
        number = 0
    elif bounds[-1] > head.n_sequences:
        number = n
    else:
        return bounds
    message = f"a document ends after sequence {bounds[number]} of {head.n_sequences}, which is not in order"
    raise _corrupt(reader, offset + 8 * number, message, what="end of a document", given=bounds[number])


def _sequence_edges(
    readers: list[ForwardReader], head: MegatronHeader, begin: int, n: int, at: int
) -> tuple[Int64s, Int64s]:
    """Return the lengths of `n` sequences from `begin` on, int64 [n], and their offsets, int64 [n + 1]."""
    lengths_offset = HEADER_BYTES + 4 * begin
    lengths = _array(readers[0], lengths_offset, n, "<i4")
    sizes = lengths * int(head.word[1:])  # int64 [n]: bytes
    ends = at + np.cumsum(sizes)
    pointers_offset = head.pointers + 8 * begin
    pointers = _array(readers[1], pointers_offset, n, "<i8")
    negative = np.flatnonzero(lengths < 0)
    if len(negative):
        number = int(negative[0])
        message = f"a sequence has the length {lengths[number]}"
        at_byte = lengths_offset + 4 * number
        raise _corrupt(readers[0], at_byte, message, what="length of a sequence", given=lengths[number])
    moved = np.flatnonzero(pointers != ends - sizes)
    if len(moved):
        number = int(moved[0])
        message = f"a sequence begins at {pointers[number]}, and not where the one before it ends"
        at_byte = pointers_offset + 8 * number
        raise _corrupt(readers[1], at_byte, message, what="begin of a sequence", given=pointers[number])
    return lengths, np.concatenate([[at], ends])


def _read_header(reader: ForwardReader) -> MegatronHeader:
    data = reader.read(0, HEADER_BYTES)
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        message = "it is not an index of Megatron: it does not begin with MMIDIDX"
        raise _corrupt(reader, 0, message, what="magic", accepted="MMIDIDX")
    if len(data) < HEADER_BYTES:
        raise _corrupt(reader, len(data), f"the index is cut: its header has {HEADER_BYTES} bytes")
    version, code, n_sequences, n_bounds = struct.unpack_from("<QBQQ", data, len(MAGIC))
    if version != 1:
        message = f"the index has version {version}; accepted: 1"
        raise _corrupt(reader, 9, message, what="version", given=version, accepted=1)
    if code not in DTYPES:
        message = f"no dtype has the code {code}; accepted: 1 to {max(DTYPES)}"
        raise _corrupt(reader, 17, message, what="dtype", given=code, accepted=f"1 to {max(DTYPES)}")
    # A sequence has a length (int32) and a pointer (int64); a mode is one byte.
    without_modes = HEADER_BYTES + 12 * n_sequences + 8 * n_bounds
    with_modes = without_modes + n_sequences
    if not n_bounds or reader.nbytes not in (without_modes, with_modes):
        raise _corrupt(
            reader,
            18,
            f"{n_sequences} sequences and {n_bounds} bounds of documents have {without_modes:,} bytes, with modes "
            f"{with_modes:,}, and the index has {reader.nbytes:,}",
            what="size",
            given=reader.nbytes,
            accepted=[without_modes, with_modes],
        )
    return MegatronHeader(
        word=DTYPES[code],
        n_sequences=n_sequences,
        n_documents=n_bounds - 1,
        has_modes=reader.nbytes > without_modes,
    )


def _array(reader: ForwardReader, at: int, n: int, dtype: str) -> Int64s:
    data = reader.read(at, n * int(dtype[2:]))
    return np.frombuffer(data, dtype).astype(np.int64)


def _corrupt(reader: ForwardReader, at: int, problem: str, **fields: object) -> Corrupt:
    where = f"{reader.name}, byte {at}"
    return Corrupt(f"{where}: {problem}", where=where, **fields)


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    objects = {info.key: info for info in infos}
    indexes = {_stem(key) + ".bin": info for key, info in objects.items() if key.endswith(".idx")}
    data = [info for info in infos if info.key in indexes]
    stated = StatedCounts()
    for key in sorted(indexes.keys() - objects.keys()):
        stated.lacks(f"{store.url}/{indexes[key].key} is an index of {key}, and it is not there", key)
    return FoundObjects(data, partial(samples, store, indexes), stated=stated)


def samples(store: Store, indexes: Mapping[str, ObjectInfo], info: ObjectInfo) -> Iterator[ForeignRun]:
    prefix = ""
    if len(indexes) > 1:
        prefix = f"{_stem(info.key)}/"
    for head, documents in index_documents(store, indexes[info.key], info):
        field = f"{FIELD}.{head.word}"
        yield ForeignRun(prefix, documents.first, field, documents.edges, _metadata(documents))


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


_CODES = {word: code for code, word in DTYPES.items()}
_NPY = "npy"
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileUnit(WorkUnit):
    stem: str
    is_registered: bool  # it has the documents of one registered file, whose name `stem` is


class _MegatronIndex:
    def __init__(self, word: str) -> None:
        self.word = word
        self._lengths = array("i")
        self._bounds = array("q", [0])
        self._modes = array("b")

    def add(self, lengths: Sequence[int], modes: Sequence[int]) -> None:
        """Add a document. lengths, modes: one number per sequence; modes may be empty."""
        self._lengths.extend(lengths)
        self._modes.extend(modes)
        self._bounds.append(len(self._lengths))

    def write(self, outbox: Outbox, key: str) -> None:
        lengths = np.array(self._lengths, "<i4")
        sizes = lengths.astype("<i8") * int(self.word[1:])
        edges = np.concatenate([[0], np.cumsum(sizes)])  # [sequences + 1]
        pointers = edges[: len(lengths)].astype("<i8")
        with outbox.file(key) as file:
            file.write(MAGIC + np.uint64(1).tobytes() + bytes([_CODES[self.word]]))
            file.write(np.array([len(lengths), len(self._bounds)], "<u8").tobytes())
            file.write(lengths.tobytes())
            file.write(pointers.tobytes())
            file.write(np.array(self._bounds, "<i8").tobytes())
            file.write(self._modes.tobytes())


def losses(selection: ExportSelection) -> list[Loss]:
    """Return everything but the tokens as losses. Raises: LossyExport if the token field is ambiguous."""
    files = _units(selection)
    tokens = _token_fields(selection)
    other_fields = [name for name in selection.fields if name not in tokens]
    losses = [Loss(f"field {name!r}", "Megatron holds tokens: it is left out") for name in other_fields]
    lacking = selection.n_samples - sum(len(unit.ordinals) for unit in files)
    if lacking:
        losses.append(
            Loss(f"{lacking} samples", f"they have no field {', '.join(tokens)}: they are left out")
        )
    stored_columns = {LENGTHS, MODES}
    if files[0].is_registered:
        stored_columns.add("raw_key")
    other_columns = [name for name in selection.columns if name not in stored_columns]
    losses += [Loss(f"column {name!r}", "Megatron has no columns: it is left out") for name in other_columns]
    if not _has_number_files(selection, files):
        losses.append(Loss("keys", "Megatron counts documents: their numbers are other keys"))
    return losses


def units(selection: ExportSelection) -> list[WorkUnit]:
    return [*_units(selection)]


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Write a pair of files. Raises: InvalidSample if Megatron cannot represent a document."""
    assert isinstance(unit, _FileUnit)
    index: _MegatronIndex | None = None
    has_modes = False
    with outbox.file(f"{unit.stem}.bin") as file:
        for number, sample in enumerate(selection.samples(unit)):
            word, values = _tokens(sample, unit.fields[0])
            if index is None:  # the first document decides for the file
                index = _MegatronIndex(word)
                has_modes = MODES in sample.columns
            if word != index.word:
                raise _refusal(sample, f"is of {word}, and those before it are of {index.word}")
            if (MODES in sample.columns) != has_modes:
                raise _refusal(sample, f"and the {number} before it: some have {MODES}, some have not")
            lengths, modes = _sequences(sample, len(values))
            index.add(lengths, modes)
            file.write(values.tobytes())
    assert index is not None
    index.write(outbox, f"{unit.stem}.idx")
    return {}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Write nothing."""


def _token_fields(selection: ExportSelection) -> list[str]:
    names = [name for name in selection.fields if name.rpartition(".")[2] in (*_CODES, _NPY)]
    if not names:
        raise LossyExport(
            f"megatron holds one field of tokens, such as tokens.u2 ({', '.join(sorted(_CODES))}, or {_NPY} of one "
            f"dimension), and {selection.version.name} has none"
        )
    return names


def _units(selection: ExportSelection) -> list[_FileUnit]:
    tokens = _token_fields(selection)
    pieces: list[tuple[str, Any]] = []  # (token field, ordinals) of each part
    for unit in selection.by_part():
        if not len(unit.ordinals):
            continue
        fields = [name for name in unit.fields if name in tokens]
        if len(fields) > 1:
            raise LossyExport(
                f"megatron holds one field of tokens, and samples of {selection.version.name} have "
                f"{', '.join(fields)}: leave all but one out (--without)"
            )
        if fields:
            pieces.append((fields[0], unit.ordinals))
    registered_files = _registered_files(selection, pieces)
    units: list[_FileUnit] = []
    for piece, (field, ordinals) in enumerate(pieces):
        if registered_files and piece and registered_files[piece] == registered_files[piece - 1]:
            last = units.pop()  # several parts have the documents of one registered file
            ordinals = np.concatenate([last.ordinals, ordinals])
        number = len(units)
        stem = f"{number:06d}"
        if registered_files:
            stem = registered_files[piece].removesuffix(".bin")
        unit = _FileUnit(
            number=number, fields=(field,), ordinals=ordinals, stem=stem, is_registered=bool(registered_files)
        )
        units.append(unit)
    return units


def _registered_files(selection: ExportSelection, pieces: Sequence[tuple[str, Any]]) -> list[str]:
    """Return each piece's registered `.bin` key; empty unless every file is one run of pieces."""
    if "raw_key" not in selection.columns:
        return []
    names: list[str] = []
    for _, ordinals in pieces:
        origins = selection.frame["raw_key"].gather(ordinals)
        if origins.null_count() or origins.n_unique() > 1 or not origins[0].endswith(".bin"):
            return []
        names.append(origins[0])
    n_runs = sum(1 for _ in groupby(names))
    if n_runs > len(set(names)):
        return []
    return names


def _has_number_files(selection: ExportSelection, files: Sequence[_FileUnit]) -> bool:
    pl = import_polars()
    keys = selection.version.samples().select("key").collect()["key"]
    for unit in files:
        expected = pl.Series(np.arange(len(unit.ordinals))).cast(pl.String)
        if len(files) > 1:
            expected = f"{unit.stem}/" + expected
        if (keys.gather(unit.ordinals) != expected).any():
            return False
    return True


def _tokens(sample: ExportSample, field: str) -> tuple[str, Any]:
    """Return the dtype word and the values [n] of a sample's tokens."""
    data = sample.fields[field]
    word = field.rpartition(".")[2]
    if word != _NPY:
        if len(data) % int(word[1:]):
            raise _refusal(sample, f"has {len(data)} bytes, no whole values of {word}")
        return word, np.frombuffer(data, f"<{word}")
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise _refusal(sample, f"is not npy: {error}") from error
    word = f"{array.dtype.kind}{array.dtype.itemsize}"
    if array.ndim != 1 or word not in _CODES:
        raise _refusal(sample, f"is of {array.dtype}, of {array.ndim} dimensions")
    return word, array.astype(f"<{word}")


def _sequences(sample: ExportSample, n: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the lengths and modes of a sample's sequences. n: number of its values."""
    lengths = sample.columns.get(LENGTHS, [n])
    modes = sample.columns.get(MODES, [])
    _check_numbers(sample, LENGTHS, lengths, 0, _MOST)
    _check_numbers(sample, MODES, modes, -128, 127)
    is_whole = sum(lengths) == n
    if MODES in sample.columns:
        is_whole &= len(modes) == len(lengths)
    if not is_whole:
        raise _refusal(
            sample,
            f"has {n} values, but its {LENGTHS} and {MODES} describe a different number: leave these out (--without)",
        )
    return lengths, modes


def _check_numbers(sample: ExportSample, name: str, values: Any, least: int, most: int) -> None:
    if isinstance(values, list) and all(is_whole_number(v, least, most) for v in values):
        return
    raise _refusal(sample, f"with {name} {str(values)[:80]}: leave the column out (--without), or cut it")


def _refusal(sample: ExportSample, what: str) -> InvalidSample:
    return InvalidSample(f"document {sample.key!r} {what}; Megatron cannot hold it")
