"""Hugging Face datasets: `save_to_disk` folders, and Parquet in the Hub's layout."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from loader.dataset.columnar.choices import ColumnarOptions, split_of
from loader.errors import Corrupt, InvalidStore
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ObjectInfo, Store

from ..importer import ImportRun, Readable, ReadSample
from ..reading.sample import FoundObjects
from ..reading.stated_counts import StatedCounts
from . import arrow, parquet
from .parquet import objects_with_splits

OPTIONS = frozenset({"key", "fields"})
_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def find_readable(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the data files. Raises: InvalidStore if both layouts are present."""
    keys = {info.key for info in infos}
    split_by_key = _list_saved(store, keys)
    stated = StatedCounts()
    for key in sorted(split_by_key.keys() - keys):
        stated.lacks(f"{store.url} has no {key!r}, which its {_STATE} lists", key)
    for key in _keys_named(keys, _SPLITS):
        folder = key.removesuffix(_SPLITS)
        for split in _split_names(store, key):
            state_key = f"{folder}{split}/{_STATE}"
            if state_key not in keys:
                stated.lacks(
                    f"{store.url}/{key} states the split {split!r}, which has no {_STATE}", state_key
                )
    tables = [info for info in infos if info.key.lower().endswith(".parquet")]
    if not split_by_key:
        return _with_splits(parquet.tables(store, tables, options), split_of)
    if tables:
        raise InvalidStore(
            f"{store.url} has a dataset of save_to_disk ({min(split_by_key)}) and Parquet ({tables[0].key}): name the "
            "folder of one",
            what="datasets",
            where=store.url,
            given=[min(split_by_key), tables[0].key],
            accepted="one of them",
        )
    saved = [info for info in infos if info.key in split_by_key]
    readable = arrow.batches(store, saved, options)
    return _with_splits(readable._replace(stated=stated), split_by_key.__getitem__)


def _list_saved(store: Store, keys: Collection[str]) -> dict[str, str]:
    """Return the key of each file that `save_to_disk` lists -> its split, "" for none."""
    split_by_key: dict[str, str] = {}
    for key in _keys_named(keys, _STATE):
        folder = key.removesuffix(_STATE)
        parent, slash, split = folder.rstrip("/").rpartition("/")
        if f"{parent}{slash}{_SPLITS}" not in keys:
            split = ""  # a dataset without splits
        for name in _data_files(store, key):
            split_by_key[f"{folder}{name}"] = split
    return split_by_key


def _keys_named(keys: Collection[str], name: str) -> list[str]:
    """Return the keys of objects with a name, in any folder, sorted."""
    return sorted(key for key in keys if key.rpartition("/")[2] == name)


def _data_files(store: Store, key: str) -> list[str]:
    """Return the names of a split's Arrow files, beside its `state.json`."""
    try:
        state = parse_json_object(store.get(key).data)
        files = [file["filename"] for file in state["_data_files"]]
        if not _are_names(files):
            raise TypeError("a file's name is not a name")
    except (DamagedJson, KeyError, TypeError) as error:
        message = f"{store.url}/{key} is not the state of a dataset: {error!r}"
        raise Corrupt(message, where=f"{store.url}/{key}", accepted="the state of a dataset") from error
    return files


def _split_names(store: Store, key: str) -> list[str]:
    """Return the splits that a `dataset_dict.json` lists, each a folder beside it."""
    try:
        splits: list[str] = parse_json_object(store.get(key).data)["splits"]
        if type(splits) is not list or not _are_names(splits):
            raise TypeError("splits is not a list of names")
    except (DamagedJson, KeyError, TypeError) as error:
        raise Corrupt(f"{store.url}/{key} names no splits of a dataset: {error!r}") from error
    return splits


def _are_names(values: list[Any]) -> bool:
    return all(isinstance(value, str) and "/" not in value for value in values)


def _with_splits(readable: Readable, split_of: Callable[[str], str]) -> Readable:
    """Return a reader whose samples have the split of their object. split_of: object key -> split, "" for none."""
    return readable._replace(samples=partial(_samples, readable.samples, split_of))


def _samples(
    samples: Callable[[ImportRun], Iterator[ReadSample]], split_of: Callable[[str], str], run: ImportRun
) -> Iterator[ReadSample]:
    source: dict[str, str] = {}
    split = split_of(run.info.key)
    if split:
        source["split"] = split
    for sample in samples(run):
        yield sample._replace(source={**source, **sample.source})


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> FoundObjects:
    """Return the Parquet files. Raises: InvalidStore for a `save_to_disk` folder."""
    for info in infos:
        if info.key.rpartition("/")[2] == _STATE:
            message = (
                f"{store.url} has a dataset of save_to_disk ({info.key}), whose splits are in files of its own: import "
                "it (penstock import hf), save it with to_parquet, or register a split's files (penstock register "
                "arrow)"
            )
            raise InvalidStore(message, what="save_to_disk", where=store.url, given=info.key)
    return objects_with_splits(store, infos, options, split_of)
