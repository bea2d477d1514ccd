"""Write and read heartbeats: counters that show a collector which open transactions are in use.

    heartbeats/<txn>.json      {"beat": 17, "holder": "..."}      an open transaction is alive

A failed beat is only logged: `Fenced` at the commit protects the data.
"""

import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ...errors import ObjectNotFound, StoreError
from ...json_text import parse_json_object
from ...storage.store import Store
from ..names import check_transaction_name
from .entries import DAMAGED, canonical

BEAT_EVERY_S = 30.0
"""Seconds between two beats of a transaction."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat. A changed `beat` or `holder` shows that the owner is alive."""

    beat: int
    """Number of the beat."""
    holder: str
    """Name of the process (`new_holder`)."""


def new_holder() -> str:
    """Return a unique name for this process: host, process id and random digits."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60].strip("-") or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(8)}"


class _Pulse:
    """Calls `beat` every `every_s` seconds in a daemon thread, until `close`."""

    def __init__(self, beat: Callable[[], object], name: str, every_s: float) -> None:
        self._stop = threading.Event()
        self._beat = beat
        self._every_s = every_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._beat()
            except Exception:  # noqa: BLE001 - the next beat may succeed; without one, the collector aborts
                _log.exception("%s failed", threading.current_thread().name)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Heartbeat:
    """The heartbeat of an open transaction: `with Heartbeat(store, txn): upload()`.

    Its object stays in the store until the collector removes the transaction's leftovers.
    """

    def __init__(
        self, store: Store, txn: str, holder: str | None = None, every_s: float = BEAT_EVERY_S
    ) -> None:
        self.key = heartbeat_key(txn)
        self.holder = holder or new_holder()
        self.every_s = every_s
        self._store = store
        self._count = 0
        self._lock = threading.Lock()  # beats by the thread and by the caller stay in order
        self._pulse: _Pulse | None = None

    def beat(self) -> bool:
        """Write the next beat. Returns False and logs a warning if the store rejects it."""
        with self._lock:
            self._count += 1
            try:
                self._store.put(self.key, canonical({"beat": self._count, "holder": self.holder}))
            except StoreError as e:
                _log.warning("%s in %s was not written: %s", self.key, self._store.url, e)
                return False
        return True

    def start(self) -> Self:
        """Beat now, and every `every_s` seconds in the background until `close`."""
        self.beat()
        if self._pulse is None:
            self._pulse = _Pulse(self.beat, f"penstock-{self.key}", self.every_s)
        return self

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def heartbeat_key(txn: str) -> str:
    """Return the store key of a transaction's heartbeat. Raises: InvalidName."""
    return f"heartbeats/{check_transaction_name(txn)}.json"


def read_heartbeat(store: Store, txn: str) -> Beat | None:
    """Return a transaction's last beat; None if it has none. A damaged one is logged and read as beat 0."""
    key = heartbeat_key(txn)
    try:
        body = parse_json_object(store.get(key).data)
        return Beat(beat=int(body["beat"]), holder=str(body["holder"]))
    except ObjectNotFound:
        return None
    except DAMAGED as e:
        _log.warning("%s in %s is not a sign of life (%s): read as beat 0", key, store.url, e)
        return Beat(beat=0, holder="")
