"""Edits of objects that no version protects.

Cards, gate pages, plans, decisions of runs, views, packs, lists, windows, norms, shingles, ledgers and exclusions.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from loader.dataset.log.entries import canonical
from loader.dataset.log.state import VersionRecord
from loader.dataset.names import card_folder
from loader.dataset.tables.parquet import parse_table, table_facts
from loader.storage import Store

from ...denied.cells import OWN, WORDS, json_object
from ...denied.folder_reads import read_folder
from ...denied.hashed_names import TAKEN_DOWN, Marks
from ...denied.record import Place, add_to_record
from ...search.overlap.protected_texts import FOLDER as PROTECTED
from ...search.overlap.protected_texts import protected_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Changes to objects that no version protects."""

    puts: Mapping[str, bytes] = field(default_factory=dict)
    """Path -> its new bytes."""
    deletes: tuple[str, ...] = ()
    """Paths to delete permanently."""
    remade: tuple[str, ...] = ()
    """Paths of views, packs and pages to delete, which may be regenerated."""


def apply_edits(store: Store, n: int, dataset: str, edits: Edits) -> list[str]:
    """Record the edits, then apply them. Returns the paths. Idempotent."""
    places: list[Place] = [
        {"check": "replaced", "what": "an object without a name any more", "of": dataset, "path": path}
        for path in edits.puts
    ]
    places += [
        {"check": "absent", "what": "an object of no version", "of": dataset, "path": path}
        for path in edits.deletes
    ]
    places += [
        {
            "check": "remade",
            "what": "a view, pack or page, made again if asked for",
            "of": dataset,
            "path": path,
        }
        for path in edits.remade
    ]
    # Before any change: after a kill, a proof still checks each path.
    add_to_record(store, n, places)
    for path, data in edits.puts.items():
        store.put(path, data)
    # Delete what only plans name before the plans: after a kill, the next run finds the rest through them.
    for paths in (edits.remade, edits.deletes):
        if paths:
            store.delete_many(list(paths))
    return [*edits.puts, *edits.remade, *edits.deletes]


FOLDER = "exclusions/"


def exclusion_edits(store: Store, dataset: str, marks: Marks) -> Edits:
    """Return the edits of a dataset's exclusion records. Reads each record."""
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    for path, data in read_folder(store, f"{FOLDER}{dataset}/"):
        if not path.endswith(".json"):
            continue
        body = json_object(data, path, store.url)
        edited = scrub_exclusion(body, marks)
        if edited is None:
            deletes.append(path)
        elif edited != body:
            puts[path] = canonical(edited)
    return Edits(puts=puts, deletes=tuple(deletes))


def scrub_exclusion(body: Mapping[str, Any], marks: Marks) -> dict[str, Any] | None:
    """Return a record without denied samples: an equal one if it has none, None if no sample is left."""
    # A withdrawal has keys, an exclusion samples.
    member = "samples"
    if "keys" in body:
        member = "keys"
    named = body.get(member)
    if not isinstance(named, list):  # damaged
        named = []
    remaining = []
    for item in named:
        sample = item
        if not isinstance(item, Mapping):
            sample = {"key": item}
        if not _is_taken(sample, marks):
            remaining.append(item)
    if named and not remaining:
        return None
    edited = dict(body)
    if named:
        edited[member] = remaining
    for name in WORDS:
        if isinstance(body.get(name), str):
            edited[name] = marks.without(body[name])
    return edited


def _is_taken(sample: Mapping[str, Any], marks: Marks) -> bool:
    return any(
        isinstance(value, str) and value and name in OWN and marks.takes(OWN[name], value)
        for name, value in sample.items()
    )


_VIEW = re.compile(rb'"w-([0-9a-f]{64})"')
_LIST = re.compile(rb'"list":"([0-9a-f]{64})"')
_VERSION = re.compile(rb"v-[0-9a-f]{64}")
_HASH = re.compile(rb"[0-9a-f]{64}")


def page_edits(store: Store, dataset: str, marks: Marks, *, everything: bool) -> Edits:
    """Return the deletions of a dataset's gate pages whose text names a denied sample. Reads each page.

    everything: delete all others too, since any image may show a sample.
    """
    named: list[str] = []
    others: list[str] = []
    for path, data in read_folder(store, f"gates/{dataset}/"):
        if page_names(data, marks):
            named.append(path)
        else:
            others.append(path)
    return Edits(deletes=tuple(named), remade=tuple(others) if everything else ())


def page_names(data: bytes, marks: Marks) -> bool:
    """Return whether a text on an HTML page is or contains a denied name."""
    page = _Texts()
    page.feed(data.decode(errors="replace"))
    page.close()
    return any(marks.names(text) for text in page.texts)


class _Texts(HTMLParser):
    """A page's visible texts, unescaped, and its images' alternative texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: set[str] = set()

    def handle_data(self, data: str) -> None:
        # A page joins several keys with commas.
        self.texts |= {data.strip(), *data.strip().split(", ")}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts |= {value for name, value in attrs if value and name in ("alt", "title")}


def edit_derived(store: Store, versions: Iterable[VersionRecord], marks: Marks) -> Edits:
    """Return the edits of objects derived from these versions.

    Deletes cards, norms, shingles, plans, and the views, lists, packs and windows that no other plan names; rewrites
    ledgers and decisions. Reads each plan, pack, table of windows, norm, ledger and decision, 32 at once.
    """
    records = list(versions)
    if not records:
        return Edits()
    deletes = [info.key for folder in card_folders(records) for info in store.list(folder)]
    ids = {one.id for one in records}
    shingle_tables = {protected_path(one.id) for one in records}
    views: set[str] = set()
    lists: set[str] = set()
    kept: set[str] = set()  # hashes that the other plans name
    for path, data in read_folder(store, "plans/"):
        if names_version(data, ids):
            deletes.append(path)
            views |= {match.decode() for match in _VIEW.findall(data)}
            lists |= {match.decode() for match in _LIST.findall(data)}
        else:
            kept |= {match.decode() for match in _HASH.findall(data)}
    remade = _table_paths(store, "views/", views - kept)
    # Shingles of a denied text are hashes, which a holder of the text could find.
    remade += [info.key for info in store.list(PROTECTED) if info.key in shingle_tables]
    for folder in ("packs/", "windows/"):
        for path, data in read_folder(store, folder):
            content = table_facts(parse_table(data, path)).get("content_sha256")
            if content not in kept:  # None: checksums of pieces, beside a table
                remade.append(path)
    for path, data in read_folder(store, "norms/"):
        if table_facts(parse_table(data, path)).get("version") in ids:
            remade.append(path)
    # Only lists that a plan of these versions names: they cannot be regenerated.
    remade += _table_paths(store, "lists/", lists - kept)
    puts = _ledgers(store, ids, marks) | _decisions(store, marks)
    return Edits(puts=puts, deletes=tuple(deletes), remade=tuple(remade))


def _table_paths(store: Store, folder: str, names: Collection[str]) -> list[str]:
    """Return the paths of the tables with these names. folder: with a `/` at its end. names: without `.parquet`."""
    paths = []
    for info in store.list(folder):
        name = info.key.removeprefix(folder).removesuffix(".parquet")
        if name in names:
            paths.append(info.key)
    return paths


def card_folders(versions: Iterable[VersionRecord]) -> tuple[str, ...]:
    """Return the folders of these versions' cards, whose images show samples."""
    return tuple(f"{card_folder(one.dataset, one.number, one.id)}/" for one in versions)


def names_version(data: bytes, ids: Collection[str]) -> bool:
    """Return whether a plan is for one of these versions."""
    return any(match.decode() in ids for match in _VERSION.findall(data))


def _ledgers(store: Store, ids: set[str], marks: Marks) -> dict[str, bytes]:
    puts = {}
    for path, data in read_folder(store, "ledgers/"):
        edited = scrub_ledger(data, ids, marks)
        if edited != data:
            puts[path] = edited
    return puts


def _decisions(store: Store, marks: Marks) -> dict[str, bytes]:
    puts = {}
    for path, data in read_folder(store, "follows/"):
        edited = scrub_decision(data, marks)
        if edited != data:
            puts[path] = edited
    return puts


def scrub_decision(data: bytes, marks: Marks) -> bytes:
    """Return a record of `loader.online` without denied names; the same bytes if there are none.

    Only the names of environments, which it counts by, come from samples. Its rows are numbers.
    """
    try:
        body = json.loads(data)
        by = body["counts"]["by"]
        edited = [[marks.without(env), *numbers] for env, *numbers in by]
    except (ValueError, RecursionError, TypeError, LookupError):
        return data  # a record of `loader.follow`, which names plans only, or a damaged one
    if edited == by:
        return data
    body["counts"]["by"] = edited
    return canonical(body)


def scrub_ledger(data: bytes, ids: Collection[str], marks: Marks) -> bytes:
    """Return a ledger without denied names in lines about these versions; the same bytes if there are none."""
    return b"".join(_line(line, ids, marks) for line in data.splitlines(keepends=True))


def _line(data: bytes, ids: Collection[str], marks: Marks) -> bytes:
    try:
        line = json.loads(data)  # lenient, unlike other readers: everything readable is searched
    except (ValueError, RecursionError):
        return data
    if not isinstance(line, dict) or line.get("version_id") not in ids:
        return data
    new = dict(line)
    for name in ("key", "substitute"):
        if isinstance(line.get(name), str) and marks.has(line[name]):
            new[name] = TAKEN_DOWN
    if isinstance(line.get("error"), str):
        of_theirs = new.get("key") != line.get("key")
        new["error"] = TAKEN_DOWN if of_theirs else marks.without(line["error"])
    if new == line:
        return data
    # A lone surrogate, which only an escape can spell, stays an escape.
    return (
        json.dumps(new, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"
    )
