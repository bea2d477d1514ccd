"""Find raw objects that nothing else uses, and delete them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root
from loader.dataset.log.denies import DenyList
from loader.dataset.log.state import Deny
from loader.dataset.tables.parquet import TableFile, get_table, parse_table
from loader.errors import InvalidRuntime, InvalidStore, ObjectNotFound
from loader.storage import Store, open_store

from ...denied.cells import cell_texts, json_object, texts
from ...denied.find import all_datasets
from ...denied.hashed_names import TAKEN_DOWN, mark
from ...denied.keys_tables import keys_files, waiting_tables
from ...denied.readable_versions import WholeVersions, read_whole_versions
from ...denied.record import Place, TakedownRecord
from ...denied.sources import composite_objects, list_twice, plain_uri, why_unreadable
from .pipeline_files import is_hint

Uris = Mapping[str, Collection[str]]
"""Dataset -> URIs of its denied samples' raw objects."""


class FilesBeside(Protocol):
    """Signature of `penstock.formats.files_beside.files_beside`."""

    def __call__(
        self, alone: Mapping[str, Collection[str]], refused: dict[str, str], /
    ) -> dict[str, list[str]]:
        """Return the sidecar files that only these raw objects need; adds objects that must stay to `refused`."""


@dataclass(frozen=True, slots=True)
class RawDeletion:
    """Deletes raw objects and their sidecar files."""

    delete: Callable[[str], None]
    """Deletes the object at a URI."""
    files_beside: FilesBeside
    """Finds raw objects' sidecar files."""
    why_unreadable: Callable[[str, Collection[str]], str] = why_unreadable
    """Returns why the object at a URI, below one of these locations, cannot be deleted now; "" if it can."""


def delete_object(uri: str) -> None:
    """Delete an object, which may be missing. Raises: InvalidStore if the URI is invalid; StoreError."""
    place, slash, name = plain_uri(uri).rpartition("/")
    if not slash or not name:
        raise InvalidStore(
            f"{uri!r} is not a path or URL of an object, so it cannot be deleted; leave --delete-raw out"
        )
    open_store(place or "/", None).delete_many([name])


def objects_named(root: Root, names: Collection[str], dataset: str = "") -> list[str]:
    """Return the sorted URIs of raw objects with a sidecar file of one of these names (keys or URIs).

    dataset: "" for all. Reads the batch manifests.
    """
    asked = set(names)
    return sorted(
        one.uri
        for of in ([dataset] if dataset else all_datasets(root))
        for one in composite_objects(root.store, of)
        if not asked.isdisjoint(one.names)
    )


def check_whole(root: Root, deny: Deny) -> None:
    """Raise InvalidRuntime if a takedown names a sidecar file of a raw object that no takedown names.

    The takedown was then requested after the object's discovery. Costs as `objects_named`.
    """
    for dataset in all_datasets(root):
        own = DenyList([deny], dataset)
        every = DenyList(root.state.denies, dataset)
        for joined in composite_objects(root.store, dataset):
            is_whole = any(every.denying_entry("raw", name) for name in (joined.key, joined.uri))
            if not is_whole and any(own.denying_entry("raw", name) for name in joined.names):
                raise InvalidRuntime(
                    f"takedown {deny.n} names a file of the raw object {joined.uri}, whose samples none takes down: "
                    f"penstock takedown request --raw {joined.uri}, then run both",
                    what=f"takedown {deny.n}",
                    where=joined.uri,
                )


def raw_places(deny: Deny, uris: Uris, these: Collection[str], *, deleted: bool) -> Iterator[Place]:
    """Yield record entries for these raw objects, one per dataset."""
    for dataset, cut_of in uris.items():
        for uri in sorted(set(cut_of) & set(these)):
            yield {
                "check": "raw",
                "what": "raw object at its source",
                "of": dataset,
                "mark": mark(deny.salt, dataset, uri),
                "deleted": deleted,
            }


def deleted_raw(record: TakedownRecord, deny: Deny, uris: Uris) -> set[str]:
    """Return the URIs of raw objects recorded as deleted."""
    deleted = {place["mark"] for place in record.having("raw") if place["deleted"]}
    return {
        uri for dataset, cut_of in uris.items() for uri in cut_of if mark(deny.salt, dataset, uri) in deleted
    }


def shared_raw_objects(root: Root, uris: Uris) -> set[str]:
    """Return the raw objects from which something that stays was or will be cut.

    - Samples in any dataset that no takedown denies, published or waiting.
    - Batches in other datasets' pipelines.

    Reads every version's keys, the samples of open transactions, and each pipeline's tables and records.
    """
    asked = {uri: plain_uri(uri) for cut_of in uris.values() for uri in cut_of}
    plain = frozenset(asked.values())

    def match_uris(text: str) -> set[str]:
        if TAKEN_DOWN in text:
            # An earlier release removed a name from this URI: it may mean any URI that fits.
            pieces = plain_uri(text).split(TAKEN_DOWN)
            return {uri for uri in plain if _fits(uri, pieces)}
        return {plain_uri(text)} & plain

    own = {of: set(map(plain_uri, cut_of)) for of, cut_of in uris.items()}
    used = _raw_uses(root, match_uris, own) if plain else set()
    return {uri for uri in asked if asked[uri] in used}


def shared_marks(root: Root, deny: Deny, places: Iterable[Place]) -> set[str]:
    """Return the marks (hashed URIs) of raw objects that something still needs. Costs as `shared_raw_objects`.

    places: entries of `raw_places`.
    """
    marks_by_dataset: dict[str, set[str]] = {}
    for place in places:
        marks_by_dataset.setdefault(place["of"], set()).add(place["mark"])
    if not marks_by_dataset:
        return set()
    requested: set[str] = set().union(*marks_by_dataset.values())

    def match_marks(text: str) -> set[str]:
        # Marks are hashes of URIs as they were recorded, with the scheme of a file or without.
        plain = plain_uri(text)
        spellings = (plain, f"file://{plain}")
        # A mark depends on its dataset too, and any dataset may use the object.
        marks = {mark(deny.salt, dataset, uri) for dataset in marks_by_dataset for uri in spellings}
        return marks & requested

    return _raw_uses(root, match_marks, marks_by_dataset)


Meant = Callable[[str], set[str]]
"""Text that names a raw object -> the requested objects that it may mean: their URIs, or their marks."""


def _raw_uses(root: Root, meant: Meant, own: Mapping[str, set[str]]) -> set[str]:
    """Return the requested raw objects that something needs. own: dataset -> objects that its pipeline may name."""
    used: set[str] = set()
    for dataset in all_datasets(root):
        tests = DenyList(root.state.denies, dataset)
        # Unpublished parts first: those published meanwhile are then found in a version.
        for table in waiting_tables(root, dataset):
            used |= _staying(table, tests, meant)
        used |= _of_versions(root, dataset, tests, meant)
        used |= _of_pipeline(root.store, dataset, meant) - own.get(dataset, set())
    return used


def _fits(uri: str, pieces: list[str]) -> bool:
    """Return whether a URI consists of these pieces in order, with text between them."""
    # Linear in the URI's length, since the object's owner decides how many pieces there are.
    first = pieces[0]
    last = pieces[-1]
    if not (uri.startswith(first) and uri.endswith(last)):
        return False
    at = len(first)
    for piece in pieces[1:-1]:
        position = uri.find(piece, at + 1)  # the earliest match leaves the most to the next pieces
        if position < 0:
            return False
        at = position + len(piece)
    return len(uri) - len(last) > at


def _of_versions(root: Root, dataset: str, tests: DenyList, meant: Meant) -> set[str]:
    def version_uses(versions: WholeVersions) -> set[str]:
        files = {entry["path"]: entry for _, version in versions for entry in keys_files(version)}
        out: set[str] = set()
        for entry in files.values():
            columns = [name for name in tests.columns if name in entry["columns"]]
            out |= _staying(get_table(root.store, TableFile.from_json(entry), columns), tests, meant)
        return out

    return read_whole_versions(root, dataset, version_uses)


def _staying(table: pa.Table, tests: DenyList, meant: Meant) -> set[str]:
    """Return the requested raw objects with a sample in the table that no takedown denies."""
    if "raw_uri" not in table.column_names:
        return set()
    # Per distinct URI: a raw object may have millions of samples.
    distinct_uris = pc.unique(table["raw_uri"]).drop_null()
    meanings = {uri: meant(uri) for uri in distinct_uris.to_pylist()}
    requested = pa.array([uri for uri, objects in meanings.items() if objects], pa.string())
    rows = table.filter(pc.is_in(table["raw_uri"], value_set=requested))
    entries = tests.denying_entries(rows)  # [rows], 0 if none denies
    stays = pa.array(entries == 0, pa.bool_())
    uris = rows["raw_uri"].filter(stays).to_pylist()
    return set().union(*(meanings[uri] for uri in uris))


def _of_pipeline(store: Store, dataset: str, meant: Meant) -> set[str]:
    out: set[str] = set()
    for place in (f"tables/{dataset}/", f"stages/{dataset}/"):
        # A record that one listing misses could cost a raw object that is needed.
        for info in list_twice(store, place):
            if info.key.endswith((".parquet", ".json")) and not is_hint(info.key):
                with suppress(ObjectNotFound):  # replaced or deleted meanwhile
                    out = out.union(*map(meant, set(_object_texts(store, info.key))))
    return out


def _object_texts(store: Store, path: str) -> Iterator[str]:
    data = store.get(path).data
    if path.endswith(".parquet"):
        yield from cell_texts(parse_table(data, path))
    else:
        yield from texts(json_object(data, path, store.url))
