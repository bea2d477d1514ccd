"""Register LitData chunks by the dataset's index, and by the offsets and sizes in each chunk.

A sample's key is its decimal index in the dataset, after the split's folder. Numbers become metadata.
"""

import itertools
import re
from collections.abc import Iterator
from functools import partial

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.json_text import DamagedJson, parse_json
from loader.storage import ByteRange, ObjectInfo, Store

from ..reading.exported import COLUMN_BYTES, KEY, METADATA, Exported, exported_at
from ..reading.indexed import (
    Int64s,
    Reader,
    check_indexed,
    check_size,
    corrupt,
    folders_in,
    lacking_of,
    listed_objects,
    offsets_in,
    split_reader,
)
from ..reading.sample import RUN_SAMPLES, ForeignRun, ForeignSample, FoundObjects
from ..reading.window import ObjectWindow
from .litdata_index import ABSENT, LitDataChunk, LitDataIndex, index_of
from .litdata_leaves import LeafValues, put, size_of, table_rows, values_at

OBJECTS_PER_SHARD = 1
CHUNKS = re.compile(r"(^|/)chunk-\d+-\d+(\.\w+)?\.bin$")
"""Pattern for chunk names, uncompressed and compressed."""
MAKE_INDEX = (
    "litdata.optimize writes it when it ends, and litdata.merge_datasets joins the indexes of several folders"
)


def find_objects(store: Store, infos: list[ObjectInfo]) -> FoundObjects:
    """Return the chunks that the dataset's indexes list."""
    check_indexed(store, infos, CHUNKS, MAKE_INDEX)
    readers, lacking = dict[str, Reader](), list[str]()
    for folder in folders_in(infos):
        exported = exported_at(store, folder.objects.values(), "litdata", folder=folder.prefix)
        name = f"{store.url}/{folder.index_key}"
        listed = index_of(store.get(folder.index_key).data, name, exported)
        lacking += lacking_of(name, {key: one.nbytes for key, one in listed.chunks.items()}, folder.objects)
        index = listed.below(folder.prefix)
        read = partial(samples, store, index, exported)
        readers |= dict.fromkeys(index.chunks, split_reader(folder, read, named=exported is not None))
    return listed_objects(infos, readers, lacking)


def samples(
    store: Store, index: LitDataIndex, exported: Exported | None, info: ObjectInfo
) -> Iterator[ForeignSample | ForeignRun]:
    chunk, window = index.chunks[info.key], ObjectWindow(store, info)
    try:
        check_size(store, info, chunk.nbytes)
        offsets = offsets_in(window, chunk.n_samples, "chunk")
        if index.is_tokens:
            yield from _tokens(index, chunk, window, offsets)
        else:
            rows = _rows(index, chunk, window, offsets)
            for number, row in enumerate(rows, chunk.first):
                if not row.fields:
                    raise InvalidSample(
                        f"{window.name}: sample {number} has only numbers and JSON, and nothing that could be a field"
                    )
                sample = ForeignSample(str(number), *row)
                yield _restored(sample, window, exported) if exported else sample
    finally:
        window.close()


def _rows(
    index: LitDataIndex, chunk: LitDataChunk, window: ObjectWindow, offsets: Int64s
) -> Iterator[LeafValues]:
    if offsets[-1] != window.nbytes:  # a table holds all samples, even if leaves precede it
        yield from table_rows(window, int(offsets[-1]), chunk.n_samples)
        return
    for begin, end in itertools.pairwise(offsets.tolist()):
        out = LeafValues({}, {})
        for leaf, place in values_at(index.leaves, window, begin, end):
            put(leaf, window, place, out)
        yield out


def _restored(sample: ForeignSample, window: ObjectWindow, exported: Exported) -> ForeignSample:
    fields = dict(sample.fields)
    own = {KEY, METADATA, ABSENT} - exported.fields
    own_leaves = {name: fields.pop(name) for name in own if name in fields}
    if ABSENT in own_leaves:
        for name in _absent(window, own_leaves.pop(ABSENT)):
            fields.pop(name, None)
    return exported.restored(sample._replace(fields=fields), own_leaves, window)


def _absent(window: ObjectWindow, at: ByteRange) -> list[str]:
    try:
        names = parse_json(window.read(*at)) if at.nbytes <= COLUMN_BYTES else None
        if type(names) is list and all(type(name) is str for name in names):
            return names
        raise DamagedJson("it is no list of names")
    except DamagedJson as error:
        raise corrupt(
            window, at.offset, f"the list of fields that a sample lacks is damaged: {error}"
        ) from error


def _tokens(
    index: LitDataIndex, chunk: LitDataChunk, window: ObjectWindow, offsets: Int64s
) -> Iterator[ForeignRun]:
    (leaf,), sizes = index.leaves, np.diff(offsets)
    width = size_of(leaf.word)
    wrong = np.flatnonzero(sizes % width)
    if len(wrong):
        at = int(wrong[0])
        raise corrupt(window, 4 * (at + 1), f"a sample has {sizes[at]} bytes, no whole values of {leaf.word}")
    if offsets[-1] != window.nbytes or int(sizes.sum()) != width * (chunk.n_tokens or 0):
        raise _of_others(window, chunk, int(sizes.sum()) // width)
    for first in range(0, chunk.n_samples, RUN_SAMPLES):
        yield ForeignRun("", chunk.first + first, leaf.field, offsets[first : first + RUN_SAMPLES + 1])


def _of_others(window: ObjectWindow, chunk: LitDataChunk, n_tokens: int) -> Corrupt:
    return corrupt(window, 0, f"the chunk has {n_tokens} tokens, and its index gives {chunk.n_tokens}")
