"""LitData: register and export chunks, and import compressed ones, which are decompressed whole.

A key is the sample's decimal index in the dataset, after the split's folder. Numbers become metadata.
An exported sample is a mapping of its fields, `key`, `metadata`, and `absent`: the fields that it lacks.
"""

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.dataset.columnar.record_batches import MAGIC, record_batches
from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.json_text import DamagedJson, canonical_json, parse_json, parse_json_object
from loader.storage import ByteRange, ObjectInfo, Store

from .exporter import (
    ExportSample,
    ExportSelection,
    Loss,
    Outbox,
    WorkUnit,
    check_value,
    in_parcels,
    metadata_json,
    put_parcel,
)
from .importer import ColumnarOptions, ImportRun, Readable, ReadSample, list_runs, with_bytes
from .litdata_index import ABSENT, DTYPES, LitDataChunk, LitDataIndex, parse_index
from .litdata_leaves import NULL, LeafValues, add_leaf, leaf_size, sample_leaves, table_rows
from .reading.exported import COLUMN_BYTES, KEY, METADATA, Exported, find_export
from .reading.indexed import (
    Int64s,
    Reader,
    check_size,
    compare_files,
    corrupt,
    list_objects,
    read_indexes,
    read_offsets,
    split_reader,
)
from .reading.object_file import ForwardReader, Unpacked, open_object
from .reading.sample import RUN_SAMPLES, ForeignRun, ForeignSample, FoundObjects
from .reading.stated_counts import StatedCounts

OBJECTS_PER_SHARD = 1
CHUNKS = re.compile(r"(^|/)chunk-\d+-\d+(\.\w+)?\.bin$")
"""Chunk names, uncompressed and compressed."""
MAKE_INDEX = (
    "litdata.optimize writes it when it ends, and litdata.merge_datasets joins the indexes of several folders"
)


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    readers = dict[str, Reader]()
    stated = StatedCounts()
    for folder, name, data in read_indexes(store, infos, CHUNKS, MAKE_INDEX):
        exported = find_export(store, folder.objects.values(), "litdata", folder=folder.prefix)
        listed = parse_index(data, name, exported)
        compare_files(stated, name, {key: one.nbytes for key, one in listed.chunks.items()}, folder)
        index = listed.with_prefix(folder.prefix)
        read = partial(samples, store, index, exported)
        readers |= dict.fromkeys(index.chunks, split_reader(folder, read, named=exported is not None))
    return list_objects(infos, readers, stated)


def samples(
    store: Store, index: LitDataIndex, exported: Exported | None, info: ObjectInfo
) -> Iterator[ForeignSample | ForeignRun]:
    chunk = index.chunks[info.key]
    reader = ForwardReader(store, info)
    try:
        check_size(store, info, chunk.nbytes)
        offsets = read_offsets(reader, chunk.n_samples, "chunk")
        if index.is_tokens:
            yield from _tokens(index, chunk, reader, offsets)
        else:
            rows = _rows(index, chunk, reader, offsets)
            for number, row in enumerate(rows, chunk.first):
                if not row.fields:
                    raise InvalidSample(
                        f"{reader.name}: sample {number} has only numbers and JSON, and nothing that could be a field",
                        what=f"sample {number}",
                        where=reader.name,
                        accepted="a value that could be a field",
                    )
                sample = ForeignSample(str(number), *row)
                yield _restore(sample, reader, exported) if exported else sample
    finally:
        reader.close()


def _rows(
    index: LitDataIndex, chunk: LitDataChunk, reader: ForwardReader, offsets: Int64s
) -> Iterator[LeafValues]:
    if offsets[-1] != reader.nbytes:  # a table holds all samples, even if leaves precede it
        yield from table_rows(reader, int(offsets[-1]), chunk.n_samples)
        return
    for begin, end in pairwise(offsets.tolist()):
        out = LeafValues({}, {})
        for leaf, place in sample_leaves(index.leaves, reader, begin, end):
            add_leaf(leaf, reader, place, out)
        yield out


def _restore(sample: ForeignSample, reader: ForwardReader, exported: Exported) -> ForeignSample:
    fields = dict(sample.fields)
    own = {KEY, METADATA, ABSENT} - exported.fields
    own_leaves = {name: fields.pop(name) for name in own if name in fields}
    if ABSENT in own_leaves:
        for name in _absent(reader, own_leaves.pop(ABSENT)):
            fields.pop(name, None)
    return exported.restored(sample._replace(fields=fields), own_leaves, reader)


def _absent(reader: ForwardReader, at: ByteRange) -> list[str]:
    try:
        names = None
        if at.nbytes <= COLUMN_BYTES:
            names = parse_json(reader.read(*at))
        if type(names) is list and all(type(name) is str for name in names):
            return names
        raise DamagedJson("it is not a list of names")
    except DamagedJson as error:
        raise corrupt(
            reader, at.offset, f"the list of fields that a sample lacks is damaged: {error}"
        ) from error


def _tokens(
    index: LitDataIndex, chunk: LitDataChunk, reader: ForwardReader, offsets: Int64s
) -> Iterator[ForeignRun]:
    (leaf,) = index.leaves
    sizes = np.diff(offsets)  # [samples], in bytes
    width = leaf_size(leaf.word)
    uneven = np.flatnonzero(sizes % width)
    if len(uneven):
        at = int(uneven[0])
        # The chunk begins with its number of samples and their offsets, uint32 each.
        raise corrupt(reader, 4 * (at + 1), f"a sample has {sizes[at]} bytes, no whole values of {leaf.word}")
    if offsets[-1] != reader.nbytes or int(sizes.sum()) != width * (chunk.n_tokens or 0):
        raise _of_others(reader, chunk, int(sizes.sum()) // width)
    for first in range(0, chunk.n_samples, RUN_SAMPLES):
        yield ForeignRun("", chunk.first + first, leaf.field, offsets[first : first + RUN_SAMPLES + 1])


def _of_others(reader: ForwardReader, chunk: LitDataChunk, n_tokens: int) -> Corrupt:
    message = f"the chunk has {n_tokens} tokens, and its index gives {chunk.n_tokens}"
    return corrupt(reader, 0, message, what="tokens", given=n_tokens, accepted=chunk.n_tokens)


OPTIONS = frozenset[str]()
MOST_CHUNK_BYTES = 2**30
"""Largest decompressed chunk, in bytes; `optimize` writes 64 MB by default."""
_FRAMED = b"LDFZ01\0\0"
_FRAMES = struct.Struct("<IIQII")
_TABLE = b"LDARW01\0"
_HEAD = struct.Struct("<8sHHIII")


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    chunks = dict[str, LitDataChunk]()
    readers = dict[str, Callable[[ImportRun], Iterator[ReadSample]]]()
    stated = StatedCounts()
    for folder, name, data in read_indexes(store, infos, CHUNKS, MAKE_INDEX):
        listed, level = _read_index(data, name)
        compare_files(stated, name, {key: one.nbytes for key, one in listed.chunks.items()}, folder)
        index = listed.with_prefix(folder.prefix)
        chunks |= index.chunks
        read = partial(_chunk_samples, store, index, level)
        readers |= dict.fromkeys(index.chunks, split_reader(folder, read, named=False))
    return list_runs(infos, chunks, readers, stated)


def _read_index(packed: bytes, name: str) -> tuple[LitDataIndex, str]:
    try:
        document = parse_json_object(packed)
        level = _level(document["config"], name)
        # As if uncompressed, for the parser of registered chunks.
        data = json.dumps(
            document | {"config": document["config"] | {"compression": None, "ipc_compression": None}}
        )
    except (DamagedJson, KeyError, TypeError) as error:
        raise Corrupt(f"{name}, byte 0: it is not an index of LitData: {error!r}") from error
    return parse_index(data.encode(), name, None), level


def _level(config: dict[str, Any], name: str) -> str:
    if config.get("ipc_compression"):
        return "table"
    codec = str(config.get("compression"))
    level = config.get("compression_level") or "chunk"
    if codec.partition(":")[0] != "zstd" or level not in ("chunk", "batch", "sample"):
        raise InvalidStore(
            f"{name}: its chunks have the compression {codec} (level {level!r}); accepted: zstd by chunk, batch or "
            "sample. Chunks without one: penstock import litdata"
        )
    return str(level)


def _chunk_samples(store: Store, index: LitDataIndex, level: str, run: ImportRun) -> Iterator[ReadSample]:
    info = run.info
    name = f"{store.url}/{run.info.key}"
    chunk = index.chunks[run.info.key]
    if level != "chunk":  # otherwise the index has the sizes before compression
        check_size(store, info, chunk.nbytes)
    with open_object(store, info) as file:
        packed = file.read()
    damaged = "is damaged: it cannot be decompressed"
    with arrow_errors(name, damaged=damaged):
        try:
            data = _UNPACK[level](packed, chunk.nbytes)
        except InvalidSample as error:
            raise InvalidSample(f"{name}: {error}") from error
        except (ValueError, struct.error) as error:
            raise Corrupt(f"{name} {damaged}: {error}") from error
    if data is None:
        raise InvalidSample(
            f"{name} has more than {MOST_CHUNK_BYTES:,} bytes decompressed: write the dataset again with "
            "smaller chunk_bytes"
        )
    plain = ObjectInfo(key=info.key, nbytes=len(data), etag="")
    own = index._replace(chunks={info.key: chunk._replace(nbytes=len(data))})
    for sample in samples(cast(Store, Unpacked(store.url, data)), own, None, plain):
        if isinstance(sample, ForeignRun):
            for number, (at, end) in enumerate(pairwise(sample.edges.tolist()), sample.first):
                yield ReadSample(str(number), {sample.field: data[at:end]}, {}, {})
            continue
        yield with_bytes(sample, data)


def _whole(packed: bytes, nbytes: int) -> bytes | None:
    return _inflate([packed], [nbytes])


def _decompress_frames(packed: bytes, nbytes: int) -> bytes | None:
    magic, version, _, n, _, n_frames = _HEAD.unpack_from(packed)
    if (magic, version) != (_FRAMED, 1):
        raise ValueError(f"it begins with {packed[:8]!r}, version {version}")
    offsets = np.frombuffer(packed, "<u4", n + 1, _HEAD.size)
    frames = [
        _FRAMES.unpack_from(packed, _HEAD.size + 4 * (n + 1) + _FRAMES.size * i) for i in range(n_frames)
    ]
    parts = [packed[at : at + size] for _, _, at, size, _ in frames]
    return _join_chunk(offsets, _inflate(parts, [frame[-1] for frame in frames]))


def _by_sample(packed: bytes, nbytes: int) -> bytes | None:
    (n,) = struct.unpack_from("<I", packed)
    cuts = np.frombuffer(packed, "<u4", n + 1, 4).tolist()
    parts = [packed[at:end] for at, end in pairwise(cuts)]
    plain = list[bytes]()
    # Frames of single samples state no sizes: the limit is for all together.
    n_left = MOST_CHUNK_BYTES
    for part in parts:
        with pa.CompressedInputStream(pa.BufferReader(part), "zstd") as stream:
            plain.append(bytes(stream.read(n_left + 1)))
        n_left -= len(plain[-1])
        if n_left < 0:
            return None
    return _join_chunk(np.cumsum([0, *map(len, plain)]), b"".join(plain))


def _table(packed: bytes, nbytes: int) -> bytes | None:
    (n,) = struct.unpack_from("<I", packed)
    end = int(np.frombuffer(packed, "<u4", n + 1, 4)[-1])
    if end == len(packed):
        return packed
    stored = packed[end:-12]
    sink = pa.BufferOutputStream()
    # Arrow decompresses whatever lengths the buffers declare: `record_batches` reads these before the buffers.
    schema, batches = record_batches(pa.BufferReader(stored), stored[: len(MAGIC)], "the chunk's table")
    nbytes_left = MOST_CHUNK_BYTES
    with pa.ipc.new_file(sink, schema) as out:
        for batch in batches:
            nbytes_left -= batch.nbytes
            if nbytes_left < 0:
                return None
            out.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    return b"".join([packed[:end], data, struct.pack("<I", len(data)), _TABLE])


_UNPACK = {"chunk": _whole, "batch": _decompress_frames, "sample": _by_sample, "table": _table}


def _inflate(parts: list[bytes], sizes: list[int]) -> bytes | None:
    if sum(sizes) > MOST_CHUNK_BYTES:
        return None
    plain = []
    for part, size in zip(parts, sizes, strict=True):
        with pa.CompressedInputStream(pa.BufferReader(part), "zstd") as stream:
            # One byte more shows that a frame is larger than stated.
            plain.append(bytes(stream.read(size + 1)))
        if len(plain[-1]) != size:
            raise ValueError(f"{len(plain[-1]):,} bytes or more come out of it, and {size:,} are stated")
    return b"".join(plain)


def _join_chunk(offsets: Any, body: bytes | None) -> bytes | None:
    """Return an uncompressed chunk. offsets: of the samples in `body`, and the last's end."""
    if body is None:
        return None
    n = len(offsets) - 1
    return np.array([n, *(offsets.astype(np.int64) + 4 * (n + 2))], "<u4").tobytes() + body


CHUNK_BYTES = 64 * 2**20
"""Largest chunk in bytes, unless one sample is larger."""
_TEXTS = {"txt": "str", "json": "json"}
_FLAT = DTYPES["numpy"][:11]
_MOST_BYTES = 2**31
_LEAF = {"type": None, "context": None, "children_spec": list[Any]()}


def losses(selection: ExportSelection) -> list[Loss]:
    """Return losses: keys, metadata and absent fields whose leaf's name is already a field."""
    own = [
        ("keys", KEY, True),
        ("metadata", METADATA, selection.columns),
        ("absence", ABSENT, selection.partial),
    ]
    return [
        Loss(what, f"its leaf would be {name!r}, which is a field: it is left out")
        for what, name, needed in own
        if name in selection.fields and needed
    ]


def units(selection: ExportSelection) -> list[WorkUnit]:
    return selection.by_part()


def write(selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    leaves = _leaves(selection)
    encoded = (_encode(sample, leaves, selection.fields) for sample in selection.samples(unit))
    chunks = list[dict[str, Any]]()
    for number, parcel in enumerate(in_parcels(encoded, CHUNK_BYTES)):
        name = f"chunk-{unit.number}-{number}.bin"
        nbytes = put_parcel(outbox, name, parcel)
        chunks.append({"chunk_bytes": nbytes, "chunk_size": len(parcel), "dim": None, "filename": name})
    return {"chunks": chunks}


def finish(selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    leaves = _leaves(selection)
    names = json.dumps(list(leaves))
    tree = {"type": "builtins.dict", "context": names, "children_spec": [_LEAF] * len(leaves)}
    config = {
        "chunk_bytes": CHUNK_BYTES,
        "chunk_size": None,
        "compression": None,
        "data_format": list(leaves.values()),
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    chunks = [chunk for unit in facts for chunk in unit["chunks"]]
    outbox.put("index.json", canonical_json({"chunks": chunks, "config": config}))


def _leaves(selection: ExportSelection) -> dict[str, str]:
    leaves = {} if KEY in selection.fields else {KEY: "str"}
    if selection.columns and METADATA not in selection.fields:
        leaves[METADATA] = "json"
    if selection.partial and ABSENT not in selection.fields:
        leaves[ABSENT] = "json"
    for name in selection.fields:
        word = name.rpartition(".")[2].lower()
        leaves[name] = _TEXTS.get(word) or (
            f"no_header_numpy:{_FLAT.index(word)}" if word in _FLAT else "bytes"
        )
    return leaves


def _encode(sample: ExportSample, leaves: dict[str, str], fields: Sequence[str]) -> bytes:
    values = list[bytes]()
    for name, encoding in leaves.items():
        if name in sample.fields:
            values.append(_value(sample, name, encoding))
        elif name in fields:
            values.append(NULL if encoding == "json" else b"")
        elif name == KEY:
            values.append(sample.key.encode())
        elif name == METADATA:
            values.append(_document(metadata_json(sample.columns)))
        else:
            values.append(_document(canonical_json([one for one in fields if one not in sample.fields])))
    sizes = [len(value) for value in values]
    # Half of an offset's 4 GiB: the sample joins a chunk that has others.
    if sum(sizes) > _MOST_BYTES:
        raise InvalidSample(
            f"sample {sample.key!r} has {sum(sizes):,} bytes; a chunk of LitData holds 4 GiB at most"
        )
    return b"".join([np.array(sizes, "<u4").tobytes(), *values])


def _value(sample: ExportSample, name: str, encoding: str) -> bytes:
    is_text = encoding in _TEXTS.values()
    item = 1
    if not (is_text or encoding == "bytes"):
        item = int(name[-1])
    data = check_value(sample, name, "LitData", is_text=is_text, item=item)
    return _document(data) if encoding == "json" else data


def _document(data: bytes) -> bytes:
    return struct.pack("<BI", 0, len(data)) + data
