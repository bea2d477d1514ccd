"""Verify a root: its log, versions, and objects named after their content or containing their name or a checksum."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from loader import Root, Version
from loader.api.report import FORMAT, Report
from loader.dataset.log.dataset_starts import parse_dataset_start
from loader.dataset.log.entries import REPAIRS, entry_key, entry_number
from loader.dataset.log.leases import list_leases
from loader.dataset.log.marker import FOLDERS as ROOT_FOLDERS
from loader.dataset.log.marker import check_root
from loader.dataset.log.start_notes import START_SUFFIX, parse_start_notes
from loader.dataset.log.state import State, VersionRecord
from loader.dataset.shards.seals import parse_seal
from loader.dataset.shards.shard import crc32c
from loader.dataset.statistics.norm import parse_norm
from loader.dataset.tables.manifest import differences, read_manifest, references, table_references
from loader.dataset.tables.parquet import parse_stored, table_facts
from loader.dataset.versions.stored_list import parse_list
from loader.dataset.versions.window_tables import check_windows
from loader.errors import FormatTooNew, ObjectNotFound, PenstockError, VersionRetired
from loader.json_text import DamagedJson, parse_json_object
from loader.order.sources.pack_table import PackTable
from loader.run.trail.trail import parse_start
from loader.storage import Store
from loader.storage.store import Refusals, list_place

from ...exclusion_records import parse
from ...progress import progress
from ...search.overlap.protected_texts import parse_protected
from .decisions import check_decisions
from .log import check_log
from .segments import segment_problem
from .shard import Problem
from .slices import slice_problem
from .version import check_version

if TYPE_CHECKING:
    from ...compute.cluster import Cluster

AGAIN = "delete it to rebuild it"
_CARD = re.compile(r"cards/([^/]+)/([0-9]{6})-(v-[0-9a-f]{64})/card\.json")
_NAMED = re.compile(
    r"(?:takedowns/[0-9]{12}/|gates/[^/]+/.*-|trails/.*-)([0-9a-f]{16})\.(?:json|html|parquet)"
)
_START = re.compile(r"trails/[^/]+/start-[0-9a-f]{16}\.json")
_REPORT = re.compile(r"reports/training/[^/]+/runs/[^/]+/[0-9a-f]{32}\.json")


def check_stored(store: Store, key: str, state: State) -> Iterator[Problem]:
    """Yield the problem with an object below one of `CHECKS`, if any. Costs at most one request."""
    folder = key.partition("/")[0]
    check = CHECKS.get(folder)
    if folder == "slices":
        check = partial(slice_problem, store)
    if folder in ("search", "maps"):
        check = partial(segment_problem, store)
    if check is None or (key.startswith("cards/") and not key.endswith("/card.json")):
        return
    try:
        what = check(key, store.get(key).data, state)
    except ObjectNotFound as error:
        # A collector or takedown deletes some of these: an object that is no longer listed is not a problem.
        what = ""
        if any(info.key == key for info in store.list(key)):
            what = str(error)
    except (PenstockError, OSError) as error:
        what = str(error)
    except (ValueError, LookupError, TypeError) as error:
        what = f"it cannot be read: {type(error).__name__} {error}"
    if what:
        yield Problem(address=key, what=what)


def _plan(key: str, data: bytes, state: State) -> str:
    if key.endswith(START_SUFFIX):
        return _start_notes(data, state)
    id = f"p-{hashlib.sha256(data).hexdigest()}"
    if key != f"plans/{id}.json":
        return (
            f"its content belongs to plans/{id}.json: it was edited or renamed; restore it, or save it again"
        )
    return ""


def _start_notes(data: bytes, state: State) -> str:
    return _wrong_manifest(parse_start_notes(data), state)


def _dataset_start(_: str, data: bytes, state: State) -> str:
    guesses = parse_dataset_start(data).values()
    return _wrong_manifest(dict(guesses), state)


def _wrong_manifest(paths: Mapping[str, str], state: State) -> str:
    for id, path in paths.items():
        record = state.by_id(id)
        if record is not None and record.manifest != path:
            return f"it states {path} for {record.name}, the log {record.manifest}: delete it; starts go on without"
    return ""


def _view(key: str, data: bytes, _: State) -> str:
    table = parse_stored(data, key, key)
    if "crc32c" not in table.column_names:
        return ""  # from a release without checksums
    rows = zip(*(table[name].to_pylist() for name in ("first_ordinal", "bits", "crc32c")), strict=True)
    wrong = [first for first, bits, crc in rows if crc32c(bits) != crc]
    if wrong:
        return f"the bits from ordinal {wrong[0]} on are damaged; {AGAIN}"
    return ""


def _pack(key: str, data: bytes, _: State) -> str:
    table = parse_stored(data, key, key)
    stated = table_facts(table).get("content_sha256")
    if key.endswith(".checks.parquet") or stated is None:
        return ""  # pages have checksums, and each row is compared with the index before it is used
    columns = [
        table[name].to_numpy().astype(np.int64) for name in ("sequence", "document", "start", "length")
    ]
    actual = PackTable(*columns).sha256
    if actual == stated:
        return ""
    return f"the sha256 of its rows is {actual}, it states {stated}; {AGAIN}"


def _check_protected(key: str, data: bytes, _: State) -> str:
    parse_protected(data, key, key)
    return ""


def _windows(key: str, data: bytes, _: State) -> str:
    check_windows(data, key, key)
    return ""


def _norm(key: str, data: bytes, _: State) -> str:
    parse_norm(data, key, key)
    return ""


def _list(key: str, data: bytes, _: State) -> str:
    parse_list(data, key, key)
    return ""


def _seal(key: str, data: bytes, _: State) -> str:
    parse_seal(data, key, key)
    return ""


def _card(key: str, data: bytes, state: State) -> str:
    named = _CARD.fullmatch(key)
    if named is None:
        return ""
    of = state.by_id(named[3])
    described = parse_json_object(data)["version"]
    if of is None or (of.dataset, of.number) != (named[1], int(named[2])):
        return f"the log has no version {named[1]}@{int(named[2])} of that id"
    if described == of.id:
        return ""
    return f"it describes {described}; {AGAIN}"


def _check_names(key: str, data: bytes, _: State) -> str:
    named = _NAMED.fullmatch(key)
    actual = hashlib.sha256(data).hexdigest()[:16]
    if named is None or named[1] == actual:
        return ""
    return f"its content has sha256 {actual}...: it was edited or renamed; restore it from a mirror"


def _report(key: str, data: bytes, _: State) -> str:
    if _REPORT.fullmatch(key) is None:
        return ""
    try:
        body = parse_json_object(data)
    except DamagedJson as error:
        return f"it is not a JSON object: it was edited ({error}); restore it from a mirror"
    if body.pop("format") != FORMAT:
        return ""  # from a newer penstock, which may name reports differently
    try:
        own_key = Report.from_json(body).key
    except (TypeError, KeyError) as error:
        return f"it has other fields than a report ({error}): it was edited; restore it from a mirror"
    if key != own_key:
        return f"its content belongs to {own_key}: it was edited or renamed; restore it from a mirror"
    return ""


def _trail(key: str, data: bytes, state: State) -> str:
    if _START.fullmatch(key) is None:
        return _check_names(key, data, state)
    own_key = parse_start(data, key).key
    if key == own_key:
        return ""
    return f"its content belongs to {own_key}: it was edited or renamed; restore it from a mirror"


def _exclusion(key: str, data: bytes, _: State) -> str:
    if key.endswith(".json"):
        parse(data, key)
    return ""


CHECKS: dict[str, Callable[[str, bytes, State], str]] = {
    "plans": _plan,
    "views": _view,
    "packs": _pack,
    "lists": _list,
    "norms": _norm,
    "protected": _check_protected,
    "seals": _seal,
    "starts": _dataset_start,
    "cards": _card,
    "takedowns": _check_names,
    "gates": _check_names,
    "exclusions": _exclusion,
    "reports": _report,
    "trails": _trail,
    "windows": _windows,
}


FOLDERS = frozenset(folder.rstrip("/") for folder in ROOT_FOLDERS if folder != "log/")
"""A root's folders, besides its marker and log. Anything else is foreign."""
_HINT = re.compile(r"log/state-([0-9]{12})\.json")
SHOWN = 100
"""Most foreign objects that are named; the rest are counted."""


@dataclass(slots=True)
class RootReport:
    root: str
    """Root URL."""
    full: bool
    """True if every byte of the shards was read."""
    entries: int = 0
    """Log entries before the first damaged one."""
    versions: int = 0
    """Versions, including retired ones."""
    retired: int = 0
    """Retired versions."""
    objects: int = 0
    """Objects under the root."""
    nbytes: int = 0
    """Bytes of these objects."""
    shards: int = 0
    """Checked shards."""
    foreign: list[str] = field(default_factory=list)
    """Keys of the first foreign objects."""
    n_foreign: int = 0
    """Objects that penstock did not write."""
    unreferenced: int = 0
    """Objects under data/ that no version names."""
    unreferenced_nbytes: int = 0
    """Bytes of the unreferenced objects."""
    nothing_leased: list[str] = field(default_factory=list)
    """Keys of leases on versions that the log lacks."""
    problems: list[Problem] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def verify_root(root: Root, *, full: bool = False, cluster: "Cluster | None" = None) -> RootReport:
    """Check a root, and count its objects.

    - The log's entries, chain, rules and hints.
    - Each version's manifest against its commit.
    - The objects of each unretired version, through `check_version`.
    - Derived objects, through `check_stored`, and records under `follows/`, through `check_decisions`.

    Costs a listing of the root, a request per log entry, version, lease, record and table, and each shard's cost in
    `check_version` once. Memory: 100 bytes per object.

    cluster: reads the shards if `full` is True; None: this process.

    Raises: NotARoot; FormatTooNew; StoreError if the root cannot be listed.
    """
    check_root(root.store)
    report = RootReport(root=root.url, full=full)
    refusals = Refusals()
    infos = list_place(root.store, refuse=refusals, outside=True)
    listed = [(info.key, info.nbytes) for info in infos]
    report.objects = len(listed)
    report.nbytes = sum(nbytes for _, nbytes in listed)
    hints = {int(match[1]) for key, _ in listed if (match := _HINT.fullmatch(key))}
    numbers = {number for key, _ in listed if (number := entry_number(key)) is not None}
    state, problems = check_log(root.store, numbers, hints)
    report.entries = state.n
    report.problems.extend(problems)
    named = _versions(root, state, report, cluster)
    for key, nbytes in listed:
        if key.startswith("data/") and key not in named:
            report.unreferenced += 1
            report.unreferenced_nbytes += nbytes
        elif not _is_ours(key):
            report.n_foreign += 1
            report.foreign.extend([key] if report.n_foreign <= SHOWN else [])
    report.n_foreign += refusals.n
    report.foreign = [*report.foreign, *(name for name, _ in refusals.first)][:SHOWN]
    kept = [key for key, _ in listed if key.partition("/")[0] in {*CHECKS, "slices", "search", "maps"}]
    for key in progress(kept, "verify what is named after its content"):
        report.problems.extend(check_stored(root.store, key, state))
    records = [key for key, _ in listed if key.startswith("follows/")]
    plans = {key for key, _ in listed if key.startswith("plans/")}
    report.problems.extend(check_decisions(root.store, records, plans, state))
    report.nothing_leased = [
        lease.key
        for lease in list_leases(root.store)
        if any(version not in state.ids for version in lease.versions)
    ]
    return report


def _versions(root: Root, state: State, report: RootReport, cluster: "Cluster | None") -> set[str]:
    named: set[str] = set()
    looked_at: set[str] = set()
    log_is_sound = not report.problems
    for record in (record for versions in state.datasets.values() for record in versions):
        report.versions += 1
        report.retired += record.retired is not None
        problems = list(_manifest(root, record, named))
        if record.retired is None and not problems:
            # `open` takes a lease, so that no collector deletes the version meanwhile. A damaged log stops collectors.
            try:
                version = root.open(record.id) if log_is_sound else Version.of_record(root.store, record)
            except VersionRetired:  # it was retired since the log was read
                report.retired += 1
                continue
            version_report = check_version(version, full=report.full, seen=looked_at, cluster=cluster)
            problems = version_report.problems
            report.shards += version_report.shards
        report.problems.extend(problems)
    return named


def _manifest(root: Root, record: VersionRecord, named: set[str]) -> Iterator[Problem]:
    store = root.store
    address = f"{record.name} {record.manifest}"
    named.add(record.manifest)
    try:
        body = read_manifest(store, record.manifest, record.sha256)
    except FileNotFoundError as error:
        if record.retired is None and not _is_retired(root, record):
            yield Problem(address=address, what=str(error))
        return
    except FormatTooNew:
        raise
    except PenstockError as error:
        yield Problem(address=address, what=str(error))
        return
    yield from (
        Problem(address=entry_key(record.n), what=what) for what in differences(record, body).values()
    )
    named.update(one.path for one in table_references(body))
    with suppress(PenstockError, OSError):  # `check_version` reports the unreadable table
        named.update(one.path for one in references(store, body))


def _is_retired(root: Root, record: VersionRecord) -> bool:
    try:
        current = root.state.by_id(record.id)
    except PenstockError:  # the log is damaged, which is reported separately
        return False
    return current is not None and current.retired is not None


def _is_ours(key: str) -> bool:
    """Return whether penstock writes objects with such a key into a root."""
    is_hint = _HINT.fullmatch(key) is not None  # of the log's state: readers need not read the whole log
    if key == "penstock.json" or entry_number(key) is not None or is_hint or key.startswith(REPAIRS):
        return True
    folder, slash, _ = key.partition("/")
    return bool(slash) and folder in FOLDERS
