"""Register Megatron's indexed datasets, `<prefix>.bin` and `<prefix>.idx`; only the index is read.

A sample is a document: the sequences between two bounds of the index. Its tokens are one flat field, named
after their dtype. If a document is not one sequence, a metadata column has the lengths of its sequences.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from loader.storage import ObjectInfo, Store

from .megatron_index import Documents, documents_in
from .reading.sample import ForeignRun, FoundObjects

OBJECTS_PER_SHARD = 1
FIELD = "tokens"
LENGTHS, MODES = "sequence_lengths", "sequence_modes"
"""Metadata columns, lists of int64: number of values, and mode, of each sequence of a document."""


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
    """Yield the documents of a `.bin`, in order. Raises: as `documents_in`."""
    prefix = f"{_stem(info.key)}/" if len(indexes) > 1 else ""
    for head, documents in documents_in(store, indexes[info.key], info):
        yield ForeignRun(
            prefix, documents.first, f"{FIELD}.{head.word}", documents.edges, _metadata(documents)
        )


def _metadata(documents: Documents) -> dict[str, pa.Array]:
    """Return the columns of documents; none if each is one sequence without a mode."""
    bounds = pa.array(documents.bounds, pa.int32())
    out = {}
    if (np.diff(documents.bounds) != 1).any():
        out[LENGTHS] = pa.ListArray.from_arrays(bounds, pa.array(documents.lengths))
    if documents.modes is not None:
        out[MODES] = pa.ListArray.from_arrays(bounds, pa.array(documents.modes))
    return out


def _stem(key: str) -> str:
    return key[:-4]
