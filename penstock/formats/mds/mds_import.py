"""Import compressed MDS shards: decompress each whole, then read it like a registered shard."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, cast

import pyarrow as pa

from loader.errors import Corrupt, InvalidSample, InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.indexed import check_indexed, check_size, folders_in, lacking_of, split_reader
from ..reading.object_file import Unpacked, opened
from .mds_registered import MAKE_INDEX, SHARDS, MdsShard, samples, shards_in

OPTIONS = frozenset[str]()
SHARD_BYTES = 2**30
"""Limit on a decompressed shard, in bytes; MDSWriter's default is 64 MiB."""
_CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}


class _Compressed(NamedTuple):
    shard: MdsShard
    nbytes: int
    codec: str


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the compressed shards that the dataset's indexes list.

    Raises: InvalidStore if a shard is not compressed, or Arrow does not have its codec.
    """
    shards, readers = dict[str, _Compressed](), dict[str, Callable[[ImportRun], Iterator[ReadSample]]]()
    lacking = list[str]()
    check_indexed(store, infos, SHARDS, MAKE_INDEX)
    for folder in folders_in(infos):
        name = f"{store.url}/{folder.index_key}"
        listed = _shards(store.get(folder.index_key).data, name)
        lacking += lacking_of(name, {key: one.nbytes for key, one in listed.items()}, folder.objects)
        here = {f"{folder.prefix}{key}": shard for key, shard in listed.items()}
        shards |= here
        readers |= dict.fromkeys(here, split_reader(folder, partial(_samples, store, here), named=False))
    return Readable(
        [info for info in infos if info.key in shards],
        lambda info: [ImportRun(info, 0, shards[info.key].shard.n_samples, shards[info.key].shard.nbytes)],
        lambda run: readers[run.info.key](run),
        lacking=lacking,
    )


def _shards(data: bytes, name: str) -> dict[str, _Compressed]:
    packed = dict[str, tuple[str, int, str]]()
    try:
        index = parse_json_object(data)
        for entry in index["shards"]:
            packed_file, before = entry.pop("zip_data"), entry["raw_data"]
            compression = str(entry.pop("compression"))
            codec = _CODECS.get(compression.partition(":")[0])
            if not packed_file or codec is None:
                raise InvalidStore(
                    f"{name}: {before['basename']} has the compression {compression}; accepted: "
                    f"{', '.join(_CODECS)}. Shards without one: penstock import mds"
                )
            packed[before["basename"]] = str(packed_file["basename"]), int(packed_file["bytes"]), codec
        plain = shards_in(json.dumps(index).encode(), name)
    except (DamagedJson, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{name}, byte 0: it is no index of MDS shards: {error!r}") from error
    entries = [(entry, *packed[entry.key]) for entry in plain]
    return {key: _Compressed(entry._replace(key=key), nbytes, codec) for entry, key, nbytes, codec in entries}


def _samples(store: Store, shards: Mapping[str, _Compressed], run: ImportRun) -> Iterator[ReadSample]:
    info, compressed = run.info, shards[run.info.key]
    shard = compressed.shard
    check_size(store, info, compressed.nbytes)
    if shard.nbytes > SHARD_BYTES:
        raise InvalidSample(
            f"{store.url}/{info.key} has {shard.nbytes:,} bytes decompressed; at most {SHARD_BYTES:,} are read: write "
            "the dataset again with a smaller size_limit"
        )
    with opened(store, info) as file:
        data = _decompressed(file.read(), compressed.codec, shard.nbytes)
    if len(data) != shard.nbytes:
        raise Corrupt(
            f"{store.url}/{info.key} becomes {len(data):,} bytes or more; its index gives {shard.nbytes:,}"
        )
    plain = ObjectInfo(key=info.key, nbytes=shard.nbytes, etag="")
    for sample in samples(cast(Store, Unpacked(store.url, data)), {info.key: shard}, None, plain):
        fields = {name: data[at.offset : at.offset + at.nbytes] for name, at in sample.fields.items()}
        yield ReadSample(sample.key, fields, sample.metadata, sample.source)


def _decompressed(data: bytes, codec: str, nbytes: int) -> bytes:
    if codec == "snappy":  # snappy data is one block, whose size must be known
        return bytes(pa.Codec(codec).decompress(data, nbytes))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return bytes(stream.read(nbytes + 1))
