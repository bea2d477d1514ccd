"""Compare the records of a TensorFlow Datasets folder with the numbers in its `dataset_info.json`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loader.dataset.columnar.shard_names import shard_set
from loader.errors import Corrupt
from loader.json_text import DamagedJson, parse_json_object
from loader.limits import beyond
from loader.storage import ObjectInfo, Store

from ..reading.stated_counts import StatedCounts

INFO = "dataset_info.json"
MOST_BYTES = 16 * 2**20
"""Largest `dataset_info.json`, in bytes. A million record files take 10 MB."""
_SPLIT = re.compile(r"-([A-Za-z0-9_.]+)\.tfrecord-")


def stated_records(store: Store, infos: Sequence[ObjectInfo], stated: StatedCounts) -> dict[str, int]:
    """Return object key -> stated number of records; add the splits without a file to `stated`.

    Costs a request per `dataset_info.json`. Raises: Corrupt if one is damaged.
    """
    described = [info for info in infos if info.key.rpartition("/")[2] == INFO]
    if not described:
        return {}
    keys_of = dict[str, list[str]]()
    for info in infos:
        folder, slash, _ = info.key.rpartition("/")
        keys_of.setdefault(f"{folder}{slash}", []).append(info.key)
    records = dict[str, int]()
    for info in described:
        folder = info.key.removesuffix(INFO)
        records |= _records_in(store, info, folder, keys_of[folder], stated)
    return records


def _records_in(
    store: Store, info: ObjectInfo, folder: str, keys: Sequence[str], stated: StatedCounts
) -> dict[str, int]:
    where = f"{store.url}/{info.key}"
    body, splits = _splits(store, info, where)
    files_of = dict[str, list[str]]()
    for key in keys:
        if match := _SPLIT.search(key.removeprefix(folder)):
            files_of.setdefault(match[1], []).append(key)
    records = dict[str, int]()
    if not files_of:
        return records  # of another file format, whose files are not read
    for split, lengths in splits.items():
        n_records = sum(lengths)
        if split not in files_of and n_records:
            name = f"{body.get('name', '')}-{split}.tfrecord-{0:05d}-of-{len(lengths):05d}"
            text = f"{where} states {n_records:,} records of the split {split!r}, which has no file"
            stated.lacks(text, f"{folder}{name}")
        for key in files_of.get(split, ()):
            member = shard_set(key)
            if member is not None and int(member[0].total) == len(lengths) > member[1]:
                records[key] = lengths[member[1]]
    return records


def _splits(store: Store, info: ObjectInfo, where: str) -> tuple[Mapping[str, Any], dict[str, list[int]]]:
    """Return the document, and split -> number of records of each file."""
    if info.nbytes > MOST_BYTES:
        raise Corrupt(beyond(where, info.nbytes, "bytes", MOST_BYTES))
    splits = dict[str, list[int]]()
    try:
        body = parse_json_object(store.get(info.key).data)
        for split in body.get("splits", ()):
            # Protobuf writes 64-bit numbers as text, and leaves out an empty list.
            splits[str(split["name"])] = [_count(n) for n in split.get("shardLengths", ())]
    except (AttributeError, DamagedJson, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{where} is no dataset_info.json of TensorFlow Datasets: {error!r}") from error
    return body, splits


def _count(value: Any) -> int:
    if type(value) not in (int, str) or not re.fullmatch(r"\d{1,15}", str(value)):
        raise ValueError(f"{str(value)[:40]!r} is no number of records")
    return int(value)
