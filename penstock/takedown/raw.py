"""Raw objects at their source, which is not the root's: who else needs them, and deleting them."""

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.denied import DenyList
from loader.dataset.history import Deny
from loader.dataset.parquet import TableFile, get_table, parse_table
from loader.errors import InvalidStore, ObjectNotFound
from loader.storage import Store, open_store

from ..stage_records import settled_path
from .find import all_datasets, keys_files
from .lifecycle import AHEAD
from .marks import mark
from .record import Place, Record
from .scan import object_texts
from .whole import Whole, over_whole

Uris = Mapping[str, Collection[str]]
"""Dataset -> the raw objects that its samples which are taken down were cut of."""


def delete_object(uri: str) -> None:
    """Delete it; one that is not there is no error. Raises: InvalidStore for what is no path or URL; StoreError."""
    place, slash, name = _plain(uri).rpartition("/")
    if not slash or not name:
        raise InvalidStore(
            f"{uri!r} is no path or URL of an object, so it cannot be deleted; leave --delete-raw out"
        )
    open_store(place or "/", None).delete_many([name])


def raw_places(deny: Deny, uris: Uris, these: Collection[str], *, deleted: bool) -> Iterator[Place]:
    """These raw objects as a record has them: one for each dataset that had samples of it."""
    for dataset, cut_of in uris.items():
        for uri in sorted(set(cut_of) & set(these)):
            yield {
                "check": "raw",
                "what": "raw object at its source",
                "of": dataset,
                "mark": mark(deny.salt, dataset, uri),
                "deleted": deleted,
            }


def deleted_raw(record: Record, deny: Deny, uris: Uris) -> set[str]:
    """Those that are on record as deleted."""
    gone = {place["mark"] for place in record.having("raw") if place["deleted"]}
    return {uri for dataset, some in uris.items() for uri in some if mark(deny.salt, dataset, uri) in gone}


def used_by_others(root: Root, uris: Uris) -> set[str]:
    """Those that something which stays was cut of, or is to be: samples of any dataset that no takedown denies, in a
    version or in a part that waits to be published, and batches of other datasets' pipelines, cut or not.

    Without raw objects it costs nothing. Else it reads the keys of every version, what open transactions have of
    samples, and each table and record of a pipeline. Raises: Corrupt; StoreError.
    """
    asked = {uri: _plain(uri) for some in uris.values() for uri in some}
    plain, used = frozenset(asked.values()), set[str]()
    for dataset in all_datasets(root) if plain else ():
        mine = set(map(_plain, uris.get(dataset, ())))
        # Parts first: what is published while we look is in a version then.
        used |= _of_parts(root, dataset, plain)
        used |= _of_versions(root, dataset, plain)
        used |= _of_pipeline(root.store, dataset, plain - mine)  # its own are forgotten there
    return {uri for uri in asked if asked[uri] in used}


def _plain(uri: str) -> str:
    """One spelling of a local path."""
    return uri.removeprefix("file://")


def _of_versions(root: Root, dataset: str, asked: Collection[str]) -> set[str]:
    tests = DenyList(root.state.denies, dataset)

    def used(versions: Whole) -> set[str]:
        files = {entry["path"]: entry for _, version in versions for entry in keys_files(version)}
        out: set[str] = set()
        for entry in files.values():
            columns = [name for name in tests.columns if name in entry["columns"]]
            out |= _staying(get_table(root.store, TableFile.from_json(entry), columns), tests, asked)
        return out

    return over_whole(root, dataset, used)


def _of_parts(root: Root, dataset: str, asked: Collection[str]) -> set[str]:
    tests = DenyList(root.state.denies, dataset)
    out: set[str] = set()
    for txn in root.state.txns.values():
        waits = txn.dataset == dataset and txn.status == "open"
        for info in root.store.list(f"data/{txn.txn}/") if waits else ():
            if info.key.endswith(".parquet") and not info.key.endswith(".index.parquet"):
                try:
                    table = parse_table(root.store.get(info.key).data, info.key)
                except ObjectNotFound:  # the transaction was aborted, and this collected
                    continue
                out |= _staying(table, tests, asked)
    return out


def _staying(table: pa.Table, tests: DenyList, asked: Collection[str]) -> set[str]:
    """Those that samples in this table were cut of which no takedown denies."""
    if "raw_uri" not in table.column_names:
        return set()
    spellings = sorted({*asked, *(f"file://{uri}" for uri in asked)})
    rows = table.filter(pc.is_in(table["raw_uri"], value_set=pa.array(spellings, pa.string())))
    stays = pa.array(tests.entries(rows) == 0, pa.bool_())
    return set(map(_plain, rows["raw_uri"].filter(stays).to_pylist()))


def _of_pipeline(store: Store, dataset: str, asked: frozenset[str]) -> set[str]:
    """Those that a table, record or manifest of a batch names."""
    out: set[str] = set()
    for place in (f"tables/{dataset}/", f"stages/{dataset}/") if asked else ():
        for info in store.list(place):
            hint = info.key == settled_path(dataset) or f"/{AHEAD}/" in info.key
            if hint or not info.key.endswith((".parquet", ".json")):
                continue
            try:
                out |= asked.intersection(map(_plain, object_texts(store, info.key)))
            except ObjectNotFound:  # replaced, or done with
                continue
    return out
