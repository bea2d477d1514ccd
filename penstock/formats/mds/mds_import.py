"""Compressed MDS shards of MosaicML streaming: each is decompressed whole, then read as `mds`, which can be registered.

Keys, fields and columns are those of `mds`, and so are places and their splits.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, cast

import pyarrow as pa

from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ObjectInfo, Store

from ..importing.importer import Options, Readable, ReadSample, Run
from ..reading.indexed import check_indexed, check_size, folders_in, lacking_of, split_reader
from ..reading.object_file import Unpacked, opened
from .mds_index import MdsShard, shards_in
from .mds_registered import MAKE_INDEX, SHARDS, samples

OPTIONS = frozenset[str]()
SHARD_BYTES = 2**30
"""Bytes of a shard that is decompressed, at most: it is held in memory. MDSWriter's default is 64 MiB."""
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}
"""Name in the index, without a level -> Arrow's name."""


class _Compressed(NamedTuple):
    """A shard, whose key is that of the compressed object."""

    shard: MdsShard
    """The shard as it was before."""
    nbytes: int
    """Size of the compressed object in bytes."""
    codec: str
    """Arrow's name of its compression."""


def find_objects(store: Store, infos: list[ObjectInfo], options: Options) -> Readable:
    """Return the compressed shards that the index lists, or of splits.

    Raises: InvalidStore where one is not compressed, or as no codec of Arrow's does; Corrupt; StoreError.
    """
    shards, readers = dict[str, _Compressed](), dict[str, Callable[[Run], Iterator[ReadSample]]]()
    lacking = list[str]()
    check_indexed(store, infos, SHARDS, MAKE_INDEX)
    for folder in folders_in(infos):
        name = f"{store.url}/{folder.index_key}"
        listed = _shards(store.get(folder.index_key).data, name)
        lacking += lacking_of(name, {key: one.nbytes for key, one in listed.items()}, folder.objects)
        shards |= (found := {f"{folder.prefix}{key}": shard for key, shard in listed.items()})
        readers |= dict.fromkeys(found, split_reader(folder, partial(_samples, store, found), named=False))
    return Readable(
        [info for info in infos if info.key in shards],
        lambda info: [Run(info, 0, shards[info.key].shard.n_samples, shards[info.key].shard.nbytes)],
        lambda run: readers[run.info.key](run),
        lacking=lacking,
    )


def _shards(data: bytes, name: str) -> dict[str, _Compressed]:
    """Return the shards of an index by their objects. Raises: Corrupt; InvalidStore."""
    packed = dict[str, tuple[str, int, str]]()
    try:
        index = parse_json_object(data)
        for one in index["shards"]:
            told, before = one.pop("zip_data"), one["raw_data"]
            compression = str(one.pop("compression"))
            codec = _CODECS.get(compression.partition(":")[0])
            if not told or codec is None:
                raise InvalidStore(
                    f"{name}: {before['basename']} has the compression {compression}; accepted: "
                    f"{', '.join(_CODECS)}. Shards without one: penstock import mds"
                )
            packed[before["basename"]] = str(told["basename"]), int(told["bytes"]), codec
        found = shards_in(json.dumps(index).encode(), name)
    except (DamagedJson, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{name}, byte 0: it is no index of MDS shards: {error!r}") from error
    told_of = [(one, *packed[one.key]) for one in found]
    return {key: _Compressed(one._replace(key=key), nbytes, codec) for one, key, nbytes, codec in told_of}


def _samples(store: Store, shards: Mapping[str, _Compressed], run: Run) -> Iterator[ReadSample]:
    """Yield the samples. Raises: Corrupt with the byte, decompressed; InvalidSample; Changed; StoreError."""
    info, told = run.info, shards[run.info.key]
    shard = told.shard
    check_size(store, info, told.nbytes)
    if shard.nbytes > SHARD_BYTES:
        raise InvalidSample(
            f"{store.url}/{info.key} has {shard.nbytes:,} bytes decompressed; at most {SHARD_BYTES:,} are read: write "
            "the dataset again with a smaller size_limit"
        )
    with opened(store, info) as file:
        data = _decompressed(file.read(), told.codec, shard.nbytes)
    if len(data) != shard.nbytes:
        raise Corrupt(
            f"{store.url}/{info.key} becomes {len(data):,} bytes or more; its index says {shard.nbytes:,}"
        )
    plain = ObjectInfo(key=info.key, nbytes=shard.nbytes, etag="")
    for one in samples(cast(Store, Unpacked(store.url, data)), {info.key: shard}, None, plain):
        fields = {name: data[at.offset : at.offset + at.nbytes] for name, at in one.fields.items()}
        yield ReadSample(one.key, fields, one.metadata, one.source)


def _decompressed(data: bytes, codec: str, nbytes: int) -> bytes:
    """Return the bytes, at most one more than are due. Raises: ArrowException; OSError."""
    if codec == "snappy":  # a block, whose size must be known
        return bytes(pa.Codec(codec).decompress(data, nbytes))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return bytes(stream.read(nbytes + 1))
