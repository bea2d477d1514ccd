"""Compare the records of a TensorFlow Datasets folder with the numbers in its `dataset_info.json`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from loader.dataset.columnar.shard_names import shard_set
from loader.errors import Corrupt
from loader.json_text import DamagedJson, parse_json_object
from loader.limits import limit_message
from loader.storage import ObjectInfo, Store

from ..reading.stated_counts import StatedCounts

INFO = "dataset_info.json"
MOST_BYTES = 16 * 2**20
"""Largest `dataset_info.json`, in bytes. A million record files take 10 MB."""
_SPLIT = re.compile(r"-([A-Za-z0-9_.]+)\.tfrecord-")


def count_records(store: Store, infos: Sequence[ObjectInfo], stated: StatedCounts) -> dict[str, int]:
    """Return object key -> stated number of records; add the splits without a file to `stated`.

    Costs a request per `dataset_info.json`. Raises: Corrupt if one is damaged.
    """
    described = [info for info in infos if info.key.rpartition("/")[2] == INFO]
    if not described:
        return {}
    keys_by_folder: dict[str, list[str]] = {}
    for info in infos:
        folder, slash, _ = info.key.rpartition("/")
        keys_by_folder.setdefault(f"{folder}{slash}", []).append(info.key)
    records: dict[str, int] = {}
    for info in described:
        folder = info.key.removesuffix(INFO)
        records |= _folder_records(store, info, folder, keys_by_folder[folder], stated)
    return records


def _folder_records(
    store: Store, info: ObjectInfo, folder: str, keys: Sequence[str], stated: StatedCounts
) -> dict[str, int]:
    """Return key -> stated number of records, of one folder. keys: the folder's objects."""
    where = f"{store.url}/{info.key}"
    body = _document(store, info, where)
    lengths_by_split = _lengths_by_split(body, where)
    keys_by_split: dict[str, list[str]] = {}
    for key in keys:
        match = _SPLIT.search(key.removeprefix(folder))
        if match:
            keys_by_split.setdefault(match[1], []).append(key)
    records: dict[str, int] = {}
    if not keys_by_split:
        return records  # of another file format, whose files are not read
    for split, lengths in lengths_by_split.items():
        n_records = sum(lengths)
        if split not in keys_by_split and n_records:
            first_file = f"{body.get('name', '')}-{split}.tfrecord-{0:05d}-of-{len(lengths):05d}"
            stated.lacks(
                f"{where} states {n_records:,} records of the split {split!r}, which has no file",
                f"{folder}{first_file}",
            )
        for key in keys_by_split.get(split, ()):
            number = _file_number(key, len(lengths))
            if number is not None:
                records[key] = lengths[number]
    return records


def _file_number(key: str, n_files: int) -> int | None:
    """Return the number in a file's name; None if its set has not `n_files` files."""
    member = shard_set(key)
    if member is None:
        return None
    names, number = member
    if int(names.total) != n_files or number >= n_files:
        return None
    return number


def _document(store: Store, info: ObjectInfo, where: str) -> Mapping[str, Any]:
    if info.nbytes > MOST_BYTES:
        raise Corrupt(limit_message(where, info.nbytes, "bytes", MOST_BYTES))
    try:
        return parse_json_object(store.get(info.key).data)
    except (DamagedJson, TypeError, ValueError) as error:
        raise _damage_error(where, error) from error


def _lengths_by_split(body: Mapping[str, Any], where: str) -> dict[str, list[int]]:
    """Return split -> number of records of each file."""
    lengths: dict[str, list[int]] = {}
    try:
        for split in body.get("splits", ()):
            # Protobuf writes 64-bit numbers as text, and leaves out an empty list.
            lengths[str(split["name"])] = [_count(n) for n in split.get("shardLengths", ())]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damage_error(where, error) from error
    return lengths


def _damage_error(where: str, error: Exception) -> Corrupt:
    return Corrupt(f"{where} is not a dataset_info.json of TensorFlow Datasets: {error!r}")


def _count(value: Any) -> int:
    if type(value) not in (int, str) or not re.fullmatch(r"\d{1,15}", str(value)):
        raise ValueError(f"{str(value)[:40]!r} is not a number of records")
    return int(value)
