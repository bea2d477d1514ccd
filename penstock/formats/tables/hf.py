"""Hugging Face datasets: `save_to_disk` folders, and Parquet in the Hub's layout."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

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
    saved: dict[str, str] = {}
    for key in sorted(keys):
        if key == _STATE or key.endswith(f"/{_STATE}"):
            folder = key.removesuffix(_STATE)
            above, slash, split = folder.rstrip("/").rpartition("/")
            split = split if f"{above}{slash}{_SPLITS}" in keys else ""
            saved |= {f"{folder}{name}": split for name in _data_files(store, key)}
    stated = StatedCounts()
    for key in sorted(saved.keys() - keys):
        stated.lacks(f"{store.url} has no {key!r}, which its {_STATE} lists", key)
    for key in sorted(key for key in keys if key == _SPLITS or key.endswith(f"/{_SPLITS}")):
        folder = key.removesuffix(_SPLITS)
        for split in _split_names(store, key):
            state_key = f"{folder}{split}/{_STATE}"
            if state_key not in keys:
                stated.lacks(
                    f"{store.url}/{key} states the split {split!r}, which has no {_STATE}", state_key
                )
    tables = [info for info in infos if info.key.lower().endswith(".parquet")]
    if saved and tables:
        raise InvalidStore(
            f"{store.url} has a dataset of save_to_disk ({min(saved)}) and Parquet ({tables[0].key}): name the folder "
            "of one"
        )
    if saved:
        readable = arrow.batches(store, [info for info in infos if info.key in saved], options)
        return _with_splits(readable._replace(stated=stated), saved.__getitem__)
    return _with_splits(parquet.tables(store, tables, options), split_of)


def _data_files(store: Store, key: str) -> list[str]:
    try:
        state = parse_json_object(store.get(key).data)
        files = [one["filename"] for one in state["_data_files"]]
        if not all(isinstance(name, str) and "/" not in name for name in files):
            raise TypeError("a file's name is no name")
    except (DamagedJson, KeyError, TypeError) as error:
        raise Corrupt(f"{store.url}/{key} is not the state of a dataset: {error!r}") from error
    return files


def _split_names(store: Store, key: str) -> list[str]:
    try:
        splits: list[str] = parse_json_object(store.get(key).data)["splits"]
        if type(splits) is not list or not all(isinstance(name, str) and "/" not in name for name in splits):
            raise TypeError("splits is no list of names")
    except (DamagedJson, KeyError, TypeError) as error:
        raise Corrupt(f"{store.url}/{key} names no splits of a dataset: {error!r}") from error
    return splits


def _with_splits(readable: Readable, split_of: Callable[[str], str]) -> Readable:
    return readable._replace(samples=partial(_samples, readable.samples, split_of))


def _samples(
    samples: Callable[[ImportRun], Iterator[ReadSample]], split_of: Callable[[str], str], run: ImportRun
) -> Iterator[ReadSample]:
    split = split_of(run.info.key)
    source: Mapping[str, str] = {"split": split} if split else {}
    for sample in samples(run):
        yield sample._replace(source={**source, **sample.source})


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> FoundObjects:
    """Return the Parquet files. Raises: InvalidStore for a `save_to_disk` folder."""
    saved = next((info.key for info in infos if info.key.rpartition("/")[2] == "state.json"), None)
    if saved is not None:
        raise InvalidStore(
            f"{store.url} has a dataset of save_to_disk ({saved}), whose splits are in files of its own: import it "
            "(penstock import hf), save it with to_parquet, or register a split's files (penstock register arrow)"
        )
    return objects_with_splits(store, infos, options, split_of)
