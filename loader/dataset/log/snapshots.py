"""Hints: `log/state-<n>.json` stores the folded state after entry n, every 256 entries, so that opening is cheap.

A hint is not part of the chain of hashes, so no reader trusts it by itself. A reader uses it only if entry n + 1
contains the same checksum of the state, and follows the same entry n. So any process may write hints. If one is
missing, stale, damaged or forged, more entries are read.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain, islice
from typing import Any

from ...errors import FormatTooNew, ObjectNotFound, StoreError
from ...storage import is_local
from ...storage.store import ObjectInfo, Objects, Store
from ...storage.threads import Together
from .entries import entry_key, parse
from .state import Deny, Hold, Primary, Ref, State, Txn, VersionRecord

HINT_EVERY = 256
FORMAT = 1
FORMAT_MOVED = 2
"""Format of a moved root's hints, which older packages must not use: they would append to the root that was left."""
MOST_AHEAD = 4 * HINT_EVERY
"""Most entries requested at once in a log without hints."""
_FOLDER = "log/"
_HINT_PREFIX = f"{_FOLDER}state-"
_TRIES = 8  # newest hints tried before the log is read from its first entry
_log = logging.getLogger(__name__)


def hint_key(n: int) -> str:
    return f"{_HINT_PREFIX}{n:012d}.json"


def dump_state(state: State) -> bytes:
    """Return the state as canonical JSON {"checksum", "format", "state"}; the checksum covers the state."""
    data = _state_json(state)
    checksum = hashlib.sha256(data).hexdigest()
    format_number = FORMAT
    if state.primary is not None:
        format_number = FORMAT_MOVED
    return _head(checksum, format_number) + data + b"}"


def state_checksum(state: State) -> str:
    """Return the SHA-256 hex of the state's JSON in a hint, which entry n + 1 holds. O(transactions)."""
    data = _state_json(state)
    return hashlib.sha256(data).hexdigest()


def _state_json(state: State) -> bytes:
    """Return the state's part of a hint. Checksums in the log cover these bytes, so a state's must never change."""
    versions = chain.from_iterable(state.datasets.values())
    txns = _plain(state.txns.values(), Txn)  # new mappings: the state's own do not change
    for txn in txns:
        # Logs without gates keep the bytes, and so the checksums, of releases that had none.
        if not txn["gated"]:
            del txn["gated"]
    body = {
        # `datasets` and `ids` follow from the versions; `last_checksum_n` is not part of the history.
        "n": state.n,
        "prev": state.prev,
        "txns": txns,
        "versions": _plain(versions, VersionRecord),
        "refs": _plain(state.refs.values(), Ref),
        "denies": _plain(state.denies, Deny),
        "holds": _plain(state.holds, Hold),
        "mirrors": state.mirrors,
    }
    if state.primary is not None:
        body["primary"] = asdict(state.primary)

    # Not `canonical`: all values come from canonical entries, and there may be 100,000 rows.
    text = json.dumps(
        body,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return text.encode()


def _head(checksum: str, format_number: int) -> bytes:
    """Return the bytes of a hint before its state."""
    return f'{{"checksum":"{checksum}","format":{format_number},"state":'.encode()


def _plain(rows: Iterable[object], kind: type) -> list[dict[str, object]]:
    # `asdict` copies each value deeply, which takes six times as long.
    names = [field.name for field in fields(kind)]
    plain_rows: list[dict[str, object]] = []
    for row in rows:
        plain_row = {name: getattr(row, name) for name in names}
        plain_rows.append(plain_row)
    return plain_rows


def load_state(data: bytes) -> State:
    """Return the state that `dump_state` wrote. Raises: ValueError for other bytes; FormatTooNew."""
    state, _ = _state_and_checksum(data)
    return state


def _state_and_checksum(data: bytes) -> tuple[State, str]:
    """Return (state, its checksum), as `load_state`."""
    try:
        hint = json.loads(data)
        format_number = hint["format"]
        checksum = hint["checksum"]
        if type(format_number) is int and format_number > FORMAT_MOVED:
            raise FormatTooNew(f"format {format_number}, this package reads up to {FORMAT_MOVED}")
        # The checksum covers the stored bytes of the state: dumping it again would cost as much as parsing it.
        head = _head(checksum, format_number)
        stored_state = data[len(head) : -1]
        stored_checksum = hashlib.sha256(stored_state).hexdigest()
        if not data.startswith(head) or stored_checksum != checksum:
            raise ValueError("its checksum does not hold")
        return _load(hint["state"]), checksum
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a folded state: {type(error).__name__} {error}") from error


def _load(body: Mapping[str, Any]) -> State:
    """Return the state from a hint's parsed JSON. Wrong members raise KeyError, TypeError or AttributeError."""
    versions: dict[str, list[VersionRecord]] = {}
    ids: dict[str, tuple[str, int]] = {}
    for row in body["versions"]:
        record = VersionRecord(**row)
        versions.setdefault(record.dataset, []).append(record)
        ids[record.id] = (record.dataset, record.number)

    refs: dict[tuple[str, str], Ref] = {}
    for row in body["refs"]:
        ref = Ref(**row)
        refs[ref.dataset, ref.name] = ref

    denies: list[Deny] = []
    for row in body["denies"]:
        hashes = tuple(row["hashes"])
        denies.append(Deny(**{**row, "hashes": hashes}))

    txns = {row["txn"]: Txn(**row) for row in body["txns"]}
    datasets = {name: tuple(records) for name, records in versions.items()}
    holds = [Hold(**row) for row in body["holds"]]
    primary = None
    if "primary" in body:
        primary = Primary(**body["primary"])
    return State(
        n=body["n"],
        prev=body["prev"],
        txns=txns,
        datasets=datasets,
        ids=ids,
        refs=refs,
        denies=tuple(denies),
        holds=tuple(holds),
        mirrors=tuple(body["mirrors"]),
        primary=primary,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogListing:
    """A listing of `log/`, used only to decide how much to request at once."""

    hints: tuple[int, ...]
    """Numbers of the hints, ascending."""
    last: int
    """Number of the newest entry; 0 if none is listed."""

    @property
    def newest_hint(self) -> int:
        """Number of the newest hint; 0 if none is listed."""
        if not self.hints:
            return 0
        return self.hints[-1]

    @property
    def n_ahead(self) -> int:
        """Number of entries to request at once after the newest hint: the listed ones and one more."""
        n_listed = max(self.last - self.newest_hint, 0)
        return min(n_listed + 1, MOST_AHEAD)

    @property
    def keys(self) -> Iterator[str]:
        """Keys of the newest hint and of the entries to request with it."""
        if self.hints:
            yield hint_key(self.newest_hint)
        first = self.newest_hint + 1
        for n in range(first, first + self.n_ahead):
            yield entry_key(n)


def list_log(store: Store) -> LogListing:
    """Return the log's listing; an empty one if the store refuses to list.

    On a disk only hints are listed, one per 256 entries: a file's `stat` costs as much as reading it.
    """
    prefix = _FOLDER
    if is_local(store):
        prefix = _HINT_PREFIX  # no entry is listed then, and `last` is 0
    try:
        keys = [info.key for info in store.list(prefix)]
    except StoreError as error:  # credentials that may read but not list
        _log.warning("the log of %s cannot be listed (%s): reading the whole log", store.url, error)
        keys = []
    hints = _numbers(keys, _HINT_PREFIX)
    entries = _numbers(keys, _FOLDER)
    return LogListing(
        hints=tuple(hints),
        last=max(entries, default=0),
    )


def _numbers(keys: Iterable[str], prefix: str) -> list[int]:
    """Return the numbers in keys of the form <prefix><12 digits>.json, ascending; other keys are ignored."""
    pattern = re.compile(f"{prefix}([0-9]{{12}})\\.json")
    numbers: list[int] = []
    for key in keys:
        match = pattern.fullmatch(key)
        if match is not None:
            number = int(match[1])
            numbers.append(number)
    return sorted(numbers)


def load_newest_hint(store: Together, hints: Sequence[int]) -> tuple[State, int]:
    """Return (state of the newest valid hint, number of the newest hint that need not be written again).

    The state is `State()` if no hint is valid, the number 0 if there is none. A hint of a newer format cannot be used
    here, but need not be written again either: a newer penstock uses it.
    """
    newest_useful = 0
    for n in islice(reversed(hints), _TRIES):
        key = hint_key(n)
        try:
            data = store.get(key).data
            state, checksum = _state_and_checksum(data)
            if state.n == n and _is_vouched(store, n, checksum):
                return state, max(newest_useful, n)
            _log.warning("%s in %s differs from its checksum in the next entry: ignored", key, store.url)
        except FormatTooNew as error:
            newest_useful = max(newest_useful, n)
            _log.warning("%s in %s cannot be used (%s): ignored", key, store.url, error)
        except (ValueError, StoreError) as error:
            _log.warning("%s in %s cannot be used (%s): ignored", key, store.url, error)
    return State(), newest_useful


def _is_vouched(store: Together, n: int, checksum: str) -> bool:
    """Return whether entry n + 1 exists and holds this checksum of the state before it."""
    try:
        data = store.peek(entry_key(n + 1)).data  # `peek`: the entry is folded next, without another request
    except ObjectNotFound:
        return False
    return parse(n + 1, data).state == checksum


def matches_log(store: Objects, state: State) -> bool:
    """Return whether the stored entry `state.n` is the one that `state` was folded from."""
    try:
        data = store.get(entry_key(state.n)).data
    except ObjectNotFound:
        return False
    return hashlib.sha256(data).hexdigest() == state.prev


def write_hint(store: Store, state: State) -> None:
    """Write the hint of `state`. A failure is only logged: readers do without."""
    try:
        store.put(hint_key(state.n), dump_state(state))
    except StoreError as error:
        _log.warning("%s in %s was not written (%s)", hint_key(state.n), store.url, error)


def old_hints(store: Store, keep: int = 4) -> list[ObjectInfo]:
    """Return all hints but the newest `keep`, for the collector."""
    hints = [info for info in store.list(_HINT_PREFIX) if _numbers([info.key], _HINT_PREFIX)]
    n_old = max(len(hints) - keep, 0)
    return hints[:n_old]
