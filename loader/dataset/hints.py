"""`log/state-<n>.json`: the folded state after entry n, every 256 entries, so that opening a root is cheap.

A hint is only that. It may be missing, stale or broken: then more entries are read. It is believed when its
own checksum holds and entry n has the bytes that it was folded from. Its content depends on the log alone,
so it does not matter who writes it, nor how often.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from ..errors import FormatTooNew, StoreError
from ..storage.store import Store
from .entries import canonical, entry_key
from .history import Deny, Ref, State, Txn, VersionRecord

HINT_EVERY = 256
FORMAT = 1
_PREFIX = "log/state-"
_TRIED = 8  # newest hints looked at before the log is read from its first entry
_log = logging.getLogger(__name__)


def hint_key(n: int) -> str:
    """The store key of the hint after entry n."""
    return f"{_PREFIX}{n:012d}.json"


def dump_state(state: State) -> bytes:
    """The state as canonical JSON, with its own checksum."""
    body = {
        "format": FORMAT,
        "n": state.n,
        "prev": state.prev,
        "txns": [asdict(t) for t in state.txns.values()],
        "versions": [asdict(v) for versions in state.datasets.values() for v in versions],
        "refs": [asdict(r) for r in state.refs.values()],
        "denies": [asdict(d) for d in state.denies],
        "holds": list(state.holds),
        "mirrors": list(state.mirrors),
    }
    return canonical({**body, "checksum": hashlib.sha256(canonical(body)).hexdigest()})


def load_state(data: bytes) -> State:
    """The state that `dump_state` wrote. Raises: ValueError when the bytes are not such a state;
    FormatTooNew."""
    try:
        return _load(json.loads(data))
    except (KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"not a folded state: {type(e).__name__} {e}") from e


def _load(body: dict[str, object]) -> State:
    written_by = body.get("format")
    if type(written_by) is not int or written_by < FORMAT:
        raise ValueError(f"format {written_by!r}, this package reads {FORMAT}")
    if written_by > FORMAT:
        raise FormatTooNew(f"format {written_by}, this package reads {FORMAT}")
    checksum = body.pop("checksum")
    if checksum != hashlib.sha256(canonical(body)).hexdigest():
        raise ValueError("its checksum does not hold")
    datasets: dict[str, list[VersionRecord]] = {}
    for row in _rows(body, "versions"):
        datasets.setdefault(row["dataset"], []).append(VersionRecord(**row))
    refs = [Ref(**row) for row in _rows(body, "refs")]
    denies = [{**row, "hashes": tuple(row["hashes"])} for row in _rows(body, "denies")]
    n, prev = body["n"], body["prev"]
    if type(n) is not int or not isinstance(prev, str):
        raise ValueError(f"n is {n!r} and prev {prev!r}")
    return State(
        n=n,
        prev=prev,
        txns={row["txn"]: Txn(**row) for row in _rows(body, "txns")},
        datasets={name: tuple(versions) for name, versions in datasets.items()},
        ids={v.id: (v.dataset, v.number) for versions in datasets.values() for v in versions},
        refs={(r.dataset, r.name): r for r in refs},
        denies=tuple(Deny(**row) for row in denies),
        holds=tuple(_rows(body, "holds")),
        mirrors=tuple(_rows(body, "mirrors")),
    )


def _rows(body: Mapping[str, object], name: str) -> list[dict[str, Any]]:
    rows = body[name]
    if not isinstance(rows, list):
        raise ValueError(f"{name} is no list")
    return rows


def newest_hint(store: Store) -> tuple[State, int]:
    """(the newest state that can be believed, the number of the newest hint that must not be replaced: that
    one, or a newer package's). (State(), 0) without any."""
    kept = 0
    for n in islice(reversed(_listed(store)), _TRIED):
        try:
            state = load_state(store.get(hint_key(n)).data)
            if state.n == n and hashlib.sha256(store.get(entry_key(n)).data).hexdigest() == state.prev:
                return state, max(kept, n)
            _log.warning("%s in %s does not belong to this log: ignored", hint_key(n), store.url)
        except FormatTooNew as e:
            kept = max(kept, n)
            _log.warning("%s in %s cannot be used (%s): ignored", hint_key(n), store.url, e)
        except (ValueError, StoreError) as e:
            _log.warning("%s in %s cannot be used (%s): ignored", hint_key(n), store.url, e)
    return State(), kept


def _listed(store: Store) -> list[int]:
    try:
        keys = [info.key for info in store.list(_PREFIX)]
    except StoreError as e:  # credentials that may read but not list: the log is then read from its start
        _log.warning("the hints of %s cannot be listed (%s): reading the whole log", store.url, e)
        return []
    digits = [key.removeprefix(_PREFIX).removesuffix(".json") for key in keys]
    return sorted(int(d) for d in digits if d.isascii() and d.isdigit() and len(d) == 12)


def write_hint(store: Store, state: State) -> None:
    """Put the hint, if the store lets us: nothing depends on it."""
    try:
        store.put(hint_key(state.n), dump_state(state))
    except StoreError as e:
        _log.warning("%s in %s was not written (%s)", hint_key(state.n), store.url, e)
