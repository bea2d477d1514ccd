"""Hints: `log/state-<n>.json` stores the folded state after entry n, every 256 entries, so that opening is cheap.

If a hint is missing, stale, damaged or forged, more entries are read: entry n + 1 must contain the state's checksum and
follow the same entry n. Any process may write hints.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
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
FORMAT, FORMAT_MOVED = 1, 2
"""Hint formats: normal, and for a moved root, whose hints older packages must not use."""
MOST_COMING = 4 * HINT_EVERY
"""Most entries requested at once in a log without hints."""
_FOLDER = "log/"
_PREFIX = f"{_FOLDER}state-"
_TRIED = 8  # newest hints tried before the log is read from its first entry
_log = logging.getLogger(__name__)


def hint_key(n: int) -> str:
    return f"{_PREFIX}{n:012d}.json"


def dump_state(state: State) -> bytes:
    """Return the state as canonical JSON {"checksum", "format", "state"}; the checksum covers the state."""
    data = _state_json(state)
    written_by = FORMAT if state.primary is None else FORMAT_MOVED
    return _head(hashlib.sha256(data).hexdigest(), written_by) + data + b"}"


def state_checksum(state: State) -> str:
    """Return the SHA-256 hex of the state's JSON in a hint, which entry n + 1 holds. O(transactions)."""
    return hashlib.sha256(_state_json(state)).hexdigest()


def _state_json(state: State) -> bytes:
    body = {
        "n": state.n,
        "prev": state.prev,
        "txns": [_without_false(row) for row in _plain(state.txns.values(), Txn)],
        "versions": _plain(chain.from_iterable(state.datasets.values()), VersionRecord),
        "refs": _plain(state.refs.values(), Ref),
        "denies": _plain(state.denies, Deny),
        "holds": _plain(state.holds, Hold),
        "mirrors": state.mirrors,
    }
    if state.primary is not None:
        body["primary"] = asdict(state.primary)
    # Not `canonical`: all values come from canonical entries, and there may be 100,000 rows.
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _head(checksum: str, written_by: int) -> bytes:
    return f'{{"checksum":"{checksum}","format":{written_by},"state":'.encode()


def _plain(rows: Iterable[object], kind: type) -> list[dict[str, object]]:
    names = [f.name for f in fields(kind)]
    return [{name: getattr(row, name) for name in names} for row in rows]


def _without_false(txn: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in txn.items() if name != "gated" or value}


def load_state(data: bytes) -> State:
    """Return the state that `dump_state` wrote. Raises: ValueError for other bytes; FormatTooNew."""
    return _state_and_checksum(data)[0]


def _state_and_checksum(data: bytes) -> tuple[State, str]:
    try:
        whole = json.loads(data)
        written_by, checksum = whole["format"], whole["checksum"]
        if type(written_by) is int and written_by > FORMAT_MOVED:
            raise FormatTooNew(f"format {written_by}, this package reads up to {FORMAT_MOVED}")
        head = _head(checksum, written_by)
        if not data.startswith(head) or hashlib.sha256(data[len(head) : -1]).hexdigest() != checksum:
            raise ValueError("its checksum does not hold")
        return _load(whole["state"]), checksum
    except (KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"not a folded state: {type(e).__name__} {e}") from e


def _load(body: dict[str, Any]) -> State:
    datasets: dict[str, list[VersionRecord]] = {}
    for row in body["versions"]:
        datasets.setdefault(row["dataset"], []).append(VersionRecord(**row))
    refs = [Ref(**row) for row in body["refs"]]
    return State(
        n=body["n"],
        prev=body["prev"],
        txns={row["txn"]: Txn(**row) for row in body["txns"]},
        datasets={name: tuple(versions) for name, versions in datasets.items()},
        ids={v.id: (v.dataset, v.number) for versions in datasets.values() for v in versions},
        refs={(r.dataset, r.name): r for r in refs},
        denies=tuple(Deny(**{**row, "hashes": tuple(row["hashes"])}) for row in body["denies"]),
        holds=tuple(Hold(**row) for row in body["holds"]),
        mirrors=tuple(body["mirrors"]),
        primary=Primary(**body["primary"]) if "primary" in body else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A listing of `log/`, used only to decide how much to request at once."""

    hints: tuple[int, ...]
    """Numbers of the hints, ascending."""
    last: int
    """Number of the newest entry; 0 if none is listed."""

    @property
    def after(self) -> int:
        return self.hints[-1] if self.hints else 0

    @property
    def coming(self) -> int:
        """Number of entries to request at once after `after`: the listed ones and one more."""
        return min(max(self.last - self.after, 0) + 1, MOST_COMING)

    @property
    def keys(self) -> Iterator[str]:
        if self.hints:
            yield hint_key(self.after)
        yield from map(entry_key, range(self.after + 1, self.after + 1 + self.coming))


def listed(store: Store) -> Listed:
    """Return the log's listing; an empty one if the store refuses to list.

    On a disk only hints are listed, one per 256 entries: a file's `stat` costs as much as reading it.
    """
    try:
        names = [info.key for info in store.list(_PREFIX if is_local(store) else _FOLDER)]
    except StoreError as e:  # credentials that may read but not list
        _log.warning("the log of %s cannot be listed (%s): reading the whole log", store.url, e)
        names = []
    return Listed(hints=tuple(_numbers(names, _PREFIX)), last=max(_numbers(names, _FOLDER), default=0))


def _numbers(keys: Iterable[str], prefix: str) -> list[int]:
    name = re.compile(f"{prefix}([0-9]{{12}})\\.json")
    return sorted(int(match[1]) for key in keys if (match := name.fullmatch(key)))


def newest_hint(store: Together, hints: Sequence[int]) -> tuple[State, int]:
    """Return (newest valid state, number of the newest hint to keep); (State(), 0) if no hint is valid."""
    kept = 0
    for n in islice(reversed(hints), _TRIED):
        try:
            state, checksum = _state_and_checksum(store.get(hint_key(n)).data)
            if state.n == n and _vouched(store, n, checksum):
                return state, max(kept, n)
            _log.warning(
                "%s in %s differs from its checksum in the next entry: ignored", hint_key(n), store.url
            )
        except FormatTooNew as e:
            kept = max(kept, n)
            _log.warning("%s in %s cannot be used (%s): ignored", hint_key(n), store.url, e)
        except (ValueError, StoreError) as e:
            _log.warning("%s in %s cannot be used (%s): ignored", hint_key(n), store.url, e)
    return State(), kept


def _vouched(store: Together, n: int, checksum: str) -> bool:
    """Return whether entry n + 1 exists and holds this checksum of the state before it."""
    try:
        return parse(n + 1, store.peek(entry_key(n + 1)).data).state == checksum
    except ObjectNotFound:
        return False


def belongs(store: Objects, state: State) -> bool:
    try:
        return hashlib.sha256(store.get(entry_key(state.n)).data).hexdigest() == state.prev
    except ObjectNotFound:
        return False


def write_hint(store: Store, state: State) -> None:
    try:
        store.put(hint_key(state.n), dump_state(state))
    except StoreError as e:
        _log.warning("%s in %s was not written (%s)", hint_key(state.n), store.url, e)


def old_hints(store: Store, keep: int = 4) -> list[ObjectInfo]:
    there = [info for info in store.list(_PREFIX) if _numbers([info.key], _PREFIX)]
    return there[: max(len(there) - keep, 0)]
