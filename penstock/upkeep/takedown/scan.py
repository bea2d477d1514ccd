"""Find every object under a root that a run would rewrite or delete, recorded or not."""

import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from io import BufferedReader
from itertools import groupby, islice
from typing import Any

import pyarrow as pa

from loader import Root, Version
from loader.dataset.log.state import VersionRecord
from loader.dataset.publishing.apply_denies import DenyEntries
from loader.dataset.tables.manifest import references
from loader.dataset.tables.parquet import TableFile, get_tables, parse_table, put_named_table, table_facts
from loader.dataset.writing.redact_tables import positions_to_redact, redact_rows
from loader.errors import Corrupt, ObjectNotFound, StoreError
from loader.json_text import parse_json
from loader.storage import ObjectInfo, Store, is_there
from loader.storage.external_shards import FOREIGN
from loader.storage.store import list_place
from loader.storage.threads import DaemonPool

from ...denied.cells import OWN, json_object, mark_denied_rows, may_name_samples, scrub, scrub_json, texts
from ...denied.denied_bytes import DeniedBytes, registered_objects
from ...denied.find import all_datasets, producer_names_some
from ...denied.folder_reads import AT_ONCE
from ...denied.hashed_names import Marks
from ...denied.readable_versions import WholeVersions, read_whole_versions
from ...denied.record import Place, TakedownRecord
from ..gc.needed import OURS
from .band_edits import bands_are_denied, is_of_bands
from .derived import card_folders, names_version, page_names, scrub_decision, scrub_exclusion, scrub_ledger
from .object_kinds import NEVER_REWRITTEN, StrangeObjects, has_shingles, is_free, is_searchable
from .pipeline_files import is_hint, scrub_table, with_units, without_names
from .run_records import is_rewritten, run_record_names, scrub_run_record
from .segment_edits import segment_is_denied
from .slice_edits import slice_names

PART_SAMPLES = "part-samples"


def find_leftovers(root: Root, dataset: str, marks: Marks) -> Iterator[Place]:
    """Yield record entries for objects in a dataset's transactions that no version names.

    Reads each index, table and manifest among them. The rest of a partly collected version must go too.
    """

    def transaction_names(versions: WholeVersions) -> tuple[set[str], set[str]]:
        whole = {record.txn for record, _ in versions}
        named = {record.manifest for record, _ in versions}
        for _, version in versions:
            named |= {one.path for one in references(root.store, version.manifest)}
        return whole, named

    # Read the log first, so that a version committed meanwhile is not taken for a partly collected one.
    txns = [one for one in root.state.txns.values() if one.dataset == dataset]
    whole, named = read_whole_versions(root, dataset, transaction_names)
    for txn in sorted(txns, key=lambda txn: txn.txn):
        in_part = txn.status == "committed" and txn.txn not in whole
        keys = {info.key for info in root.store.list(f"data/{txn.txn}/")}
        for path in sorted(keys - named):
            known = list(_examine(root.store, path, keys, marks, waits=txn.status == "open"))
            for object_path, what in known or (_rest(path) if in_part else ()):
                yield {"check": "absent", "what": what, "of": dataset, "path": object_path}


def _rest(path: str) -> Iterator[tuple[str, str]]:
    if re.fullmatch(OURS, path):
        yield path, "rest of a version that was collected in part"


def _examine(
    store: Store, path: str, keys: set[str], marks: Marks, *, waits: bool
) -> Iterator[tuple[str, str]]:
    """Yield (path, what) for an object, and an index's shard, with a denied sample."""
    # waits: it may still be published; if it only names samples, the next run rewrites it.
    try:
        for object_path, what in _with_marks(store, path, keys, marks, waits):
            yield object_path, f"{what} that no version names"
    except ObjectNotFound:
        return


def _with_marks(
    store: Store, path: str, keys: set[str], marks: Marks, waits: bool
) -> Iterator[tuple[str, str]]:
    if path.endswith(".parquet"):
        table = parse_table(store.get(path).data, path)
        if any(mark_denied_rows(table, marks)) or (not waits and scrub(table, marks) is not table):
            yield path, table_facts(table).get("table", "table")
            if path.endswith(".index.parquet"):
                yield path.removesuffix(".index.parquet") + ".tar", "shard"
    elif path.endswith(".json"):
        if not waits and producer_names_some(json_object(store.get(path).data, path, store.url), marks):
            yield path, "manifest"
    elif path.endswith(".tar") and path.removesuffix(".tar") + ".index.parquet" not in keys:
        with suppress(Corrupt):  # a proof names an unreadable shard
            if any(marks.takes("sample", key) for key in member_keys(store, path)):
                yield path, "shard without an index"


def member_keys(store: Store, path: str) -> Iterator[str]:
    """Yield the keys of a shard's members, as far as it is readable."""
    try:
        with (
            store.open_stream(path) as stream,
            tarfile.open(fileobj=stream, mode="r|", ignore_zeros=True) as tar,
        ):
            for member in tar:
                folder, slash, name = member.name.rpartition("/")
                yield folder + slash + name.partition(".")[0]
    except tarfile.TarError as error:
        raise Corrupt(f"{store.url}/{path} is not an archive that can be read to its end: {error}") from error


def part_samples(root: Root, dataset: str, rows: DenyEntries, marks: Marks) -> dict[str, dict[str, Any]]:
    """Return path -> redacted table, for part-samples tables with denied samples."""
    newest = root.state.newest(dataset)
    if newest is None or not rows:
        return {}
    keys = _keys(root.store, newest, rows)
    out = {}
    for place in list(find_leftovers(root, dataset, marks)):
        if place["what"].startswith(PART_SAMPLES):
            path = place["path"]
            try:
                table = parse_table(root.store.get(path).data, path)
            except ObjectNotFound:  # it was just collected
                continue
            new = scrub(redact_rows(table, positions_to_redact(table, keys)), marks)
            out[path] = put_named_table(root.store, path.rpartition("/")[0], new, PART_SAMPLES).to_json()
    return out


def _keys(store: Store, record: VersionRecord, rows: DenyEntries) -> dict[str, dict[int, str]]:
    files = [
        TableFile.from_json(one)
        for one in Version.of_record(store, record).manifest["samples"]
        if one["group"] == "keys"
    ]
    out: dict[str, dict[int, str]] = {}
    for table in get_tables(store, files, ["part", "row", "key"]):
        for at in table.to_pylist():
            if at["row"] in rows.get(at["part"], ()):
                out.setdefault(at["part"], {})[at["row"]] = at["key"]
    return out


SCANNED = (
    "data/",
    "tables/",
    "stages/",
    "exclusions/",
    "slices/",
    "search/",
    "maps/",
    "plans/",
    "protected/",
    "follows/",
    "ledgers/",
    "cards/",
    "gates/",
    "reports/",
    "log/",
    "jobs/",
    "foreign/",
    "trainings/",
)
"""Prefixes in a root that may name samples or hold their bytes."""
ELSEWHERE = {"checkpoints/": "each model that was trained on the samples has a place of its own"}
"""Prefixes with their own check."""
NOT_SEARCHED = "not searched"
"""Verdict on an object that no format of penstock has, or that is too large to search."""
_WHY = (
    "penstock takedown run --apply rewrites or deletes it, or penstock gc deletes it with its retired version"
)


Verdicts = Callable[[Iterable[ObjectInfo]], Iterator[tuple[str, str | None]]]
"""Callback: objects -> (path, `Scan.verdict`) for each, in order."""


def scan_objects(
    root: Root, record: TakedownRecord, marks: Mapping[str, Marks], verdicts: Verdicts | None = None
) -> Iterator[Place]:
    """Yield a check result for each unrecorded object that names denied samples.

    marks: dataset -> its denied names. verdicts: checks the objects; None: this process.
    """
    known = {place["path"] for place in record.having("absent")}
    refused = dict[str, str]()
    strange = StrangeObjects()

    def infos() -> Iterator[ObjectInfo]:
        for info in list_place(root.store, refuse=refused.__setitem__, outside=True):
            if info.key.startswith(SCANNED):
                if info.key not in known:
                    yield info
            elif not info.key.startswith(tuple(ELSEWHERE)) and not is_free(info.key):
                strange.add(info.key)

    looked = 0
    for path, verdict in (verdicts or Scan(root, record, marks).verdicts)(infos()):
        if verdict == NOT_SEARCHED:
            strange.add(path)
            continue
        looked += 1
        place = {"check": "scan", "what": "a table or text", "path": path}
        if verdict:
            yield {**place, "clean": False, "why": f"it could not be read: {verdict}"}
        elif verdict is not None:
            why = NEVER_REWRITTEN.get(path.partition("/")[0], _WHY)
            yield {**place, "clean": False, "why": f"it names, holds or shows a denied sample: {why}"}
    for path, why in refused.items():
        place = {"check": "scan", "what": "an object that no store can read", "path": path}
        yield {**place, "clean": False, "why": f"it could not be read: {why}"}
    yield from strange.places()
    yield {
        "check": "scan",
        "what": f"{looked} objects under {', '.join(SCANNED)}",
        "clean": True,
        "evidence": "a run would change none of the others",
    }


class Scan:
    """Checks objects for denied samples. marks: dataset -> its denied names."""

    def __init__(self, root: Root, record: TakedownRecord, marks: Mapping[str, Marks]) -> None:
        self._store: Store = root.store
        self._takedown = record
        self._marks = marks
        self._pipeline = cache(lambda name: with_units(root.store, name, marks[name]))
        self._txns = {one.txn: one.dataset for one in root.state.txns.values()}
        ids = record.versions()
        self._had: dict[str, list[VersionRecord]] = {
            name: [one for one in root.state.versions(name) if one.id in ids] for name in marks
        }
        every = [one for records in self._had.values() for one in records]
        self._ids, self._cards = {one.id for one in every}, card_folders(every)
        self._looks: Mapping[str, Callable[[str], bool]] = {
            "data": self._data,
            "tables": self._table,
            "stages": self._record,
            "exclusions": self._exclusion,
            "slices": self._slice,
            **dict.fromkeys(("search", "maps"), partial(segment_is_denied, root, record)),
            "plans": lambda path: bool(self._ids) and names_version(self._get(path), self._ids),
            "protected": lambda path: has_shingles(path, self._ids),
            "follows": self._decision,
            "ledgers": self._ledger,
            "cards": lambda path: path.startswith(self._cards),
            "gates": self._page,
            "reports": self._json_of_any,
            "log": self._json_of_any,
            "jobs": self._job,
            "foreign": self._is_adopted,
        }
        self._root = root

    def verdicts(self, infos: Iterable[ObjectInfo]) -> Iterator[tuple[str, str | None]]:
        """Yield (path, verdict) for each object, in order. Small objects of runs are read 32 at once."""
        # Others may be large, or share tables that a search reads first: one by one they bound the memory.
        with DaemonPool(AT_ONCE, "penstock-proof") as pool:
            for is_small, group in groupby(infos, key=_is_small):
                if not is_small:
                    for info in group:
                        yield info.key, self._verdict(info)
                    continue
                while block := list(islice(group, AT_ONCE)):
                    paths = [info.key for info in block]
                    verdicts = pool.map(self._verdict, block)
                    yield from zip(paths, verdicts, strict=True)

    def _verdict(self, info: ObjectInfo) -> str | None:
        return self.verdict(info.key, info.nbytes)

    def verdict(self, path: str, nbytes: int) -> str | None:
        """Return None if an object is clean, "" if it names or may show denied samples, else the error's type.

        Returns NOT_SEARCHED for an object that cannot be searched.

        nbytes: its size, or the size of all objects in its unit.
        """
        if not is_searchable(path):
            return NOT_SEARCHED
        try:
            if path.startswith("trainings/"):
                return self._training(path, nbytes)
            return "" if self._looks[path.partition("/")[0]](path) else None
        except (Corrupt, StoreError, ValueError, TypeError, AttributeError, LookupError) as error:
            # JSON with unexpected types too: a forged object must not stop a proof.
            return type(error).__name__

    def _training(self, path: str, nbytes: int) -> str | None:
        marks = [*self._marks.values()]
        if is_rewritten(path):
            return None if scrub_run_record(self._store, path, marks, nbytes) is None else ""
        names_some = run_record_names(self._store, path, marks, nbytes)
        if names_some is None:
            return NOT_SEARCHED
        return "" if names_some else None

    def _get(self, path: str) -> bytes:
        return self._store.get(path).data

    def _data(self, path: str) -> bool:
        dataset = self._txns.get(path.split("/")[1])
        marks = list(self._marks.values()) if dataset is None else [self._marks[dataset]]
        if path.endswith(".parquet"):
            table = parse_table(self._get(path), path)
            return any(
                any(mark_denied_rows(table, one)) or scrub(table, one) is not table or _counts(table, one)
                for one in marks
            )
        if path.endswith(".json"):
            body = json_object(self._get(path), path, self._store.url)
            return any(producer_names_some(body, one) for one in marks)
        if path.endswith(".tar") and not is_there(self._store, path.removesuffix(".tar") + ".index.parquet"):
            return any(one.takes("sample", key) for key in member_keys(self._store, path) for one in marks)
        return False

    def _is_adopted(self, path: str) -> bool:
        denied, registered = self._adopted
        return path in denied or path not in registered or self._denied_bytes.has_path(path)

    @cached_property
    def _denied_bytes(self) -> DeniedBytes:
        return DeniedBytes(self._store, self._root.state.denies)

    @cached_property
    def _adopted(self) -> tuple[set[str], set[str]]:
        """Return the paths of adopted objects with denied bytes, and of all that a version registers."""
        paths = {info.key for info in self._store.list(FOREIGN)}

        def search(versions: WholeVersions) -> tuple[set[str], set[str]]:
            denied: set[str] = set()
            registered: set[str] = set()
            for _, version in versions:
                if version.manifest.get("foreign"):
                    objects = registered_objects(version)
                    for shard in version.parts.shard_rows()["path"].to_pylist():
                        registered.update(item.path for item in objects.get(shard, ()))
                    denied = denied.union(*self._denied_bytes.of_version(version, paths).values())
            return denied, registered

        pairs = [read_whole_versions(self._root, dataset, search) for dataset in all_datasets(self._root)]
        return set().union(*(first for first, _ in pairs)), set().union(*(second for _, second in pairs))

    def _table(self, path: str) -> bool:
        dataset = path.split("/")[1]
        if dataset not in self._marks:
            return False
        if is_of_bands(path):
            return bands_are_denied(self._store, path, self._takedown)
        if is_hint(path):
            return False
        if path.endswith(".parquet"):
            return scrub_table(self._store, path, self._pipeline(dataset)) is not None
        if path.split("/")[2:3] == ["manifests"]:
            return self._record(path)
        body = json_object(self._get(path), path, self._store.url)
        return any(self._marks[dataset].has(text) for text in texts(body))

    def _record(self, path: str) -> bool:
        dataset = path.split("/")[1]
        if dataset not in self._marks or not path.endswith(".json"):
            return False
        body = json_object(self._get(path), path, self._store.url)
        return without_names(path, body, self._pipeline(dataset)) != body

    def _exclusion(self, path: str) -> bool:
        marks = self._marks.get(path.split("/")[1])
        if marks is None:
            return False  # no dataset of the root: a key there is another sample's
        body = json_object(self._get(path), path, self._store.url)
        return scrub_exclusion(body, marks) != body

    def _slice(self, path: str) -> bool:
        marks = self._marks.get(path.split("/")[1])
        return marks is not None and slice_names(self._get(path), path, marks)

    def _ledger(self, path: str) -> bool:
        data = self._get(path)
        return any(
            scrub_ledger(data, {one.id for one in had}, self._marks[name]) != data
            for name, had in self._had.items()
            if had
        )

    def _decision(self, path: str) -> bool:
        data = self._get(path)
        return any(scrub_decision(data, one) != data for one in self._marks.values())

    def _page(self, path: str) -> bool:
        marks = self._marks.get(path.split("/")[1])
        return marks is not None and page_names(self._get(path), marks)

    def _json_of_any(self, path: str) -> bool:
        if not path.endswith(".json"):
            return False
        body = json_object(self._get(path), path, self._store.url)
        return any(scrub_json(body, one) != body for one in self._marks.values())

    def _job(self, path: str) -> bool:
        # A whole text in JSON, or a word in a log
        try:
            data = self._get(path)
        except ObjectNotFound:
            return False
        every = self._marks.values()
        if not path.endswith((".json", ".jsonl.zst")):
            return any(one.names(data.decode(errors="replace")) for one in every)
        return any(_holds(body, one) for body in map(parse_json, _lines(data, path)) for one in every)


def _is_small(info: ObjectInfo) -> bool:
    return info.key.startswith(("follows/", "plans/"))


def _holds(body: Any, marks: Marks) -> bool:
    return any(marks.has(text) for text in texts(body)) or scrub_json(body, marks) != body


def _lines(data: bytes, path: str) -> Iterator[bytes]:
    if not path.endswith(".zst"):
        yield data
        return
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            yield from BufferedReader(stream, 2**20)
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(f"{path} is not a frame of Zstandard: {error}") from error


def _counts(table: pa.Table, marks: Marks) -> bool:
    if table_facts(table).get("table") != "stats":
        return False
    rows = table.select(["column", "categories"]).to_pylist()
    return any(
        marks.has(value)
        for row in rows
        if row["column"] in OWN or may_name_samples(row["column"])
        for value, _ in row["categories"] or ()
    )
