"""Signs of life: a publisher's heartbeat, a reader's lease. Small objects that count, and carry no time.

    heartbeats/<txn>.json                    {"beat": 17, "holder": "..."}   an open transaction is worked on
    leases/<version id>/<holder>.json        the same                        a version is being read

A collector compares what it saw with what it sees later, on its own clock: no writer's clock is trusted. So a
beat that cannot be written is logged and never fatal; `Fenced` at the commit is what protects the data.
"""

import json
import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Self

from ..errors import Forbidden, InvalidName, ObjectNotFound, StoreError
from ..storage.store import Store
from .entries import canonical

BEAT_EVERY_S = 30.0
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One sign of life. Moved means: another `beat` or another `holder` than the one seen before."""

    beat: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A lease that is in the store: `holder` reads the version `version_id`."""

    version_id: str
    holder: str
    beat: Beat


def new_holder() -> str:
    """A name for this process that no other has: for people the host and process id, then chance."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60].strip("-") or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(8)}"


class _Pulse:
    """Calls `beat` every `every_s` in a background thread until closed."""

    def __init__(self, beat: Callable[[], object], name: str, every_s: float) -> None:
        self._stop = threading.Event()
        self._beat, self._every_s = beat, every_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._beat()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class _Sign:
    """An object that is put again and again, with a counter; the base of both signs of life."""

    def __init__(self, store: Store, key: str, holder: str, every_s: float) -> None:
        self.key, self.holder, self.every_s = key, holder, every_s
        self._store = store
        self._count = 0
        self._lock = threading.Lock()  # beats from the thread and from the caller never overtake each other
        self._pulse: _Pulse | None = None

    def beat(self) -> bool:
        """Put the next beat; False (and a logged warning) when the store refused it."""
        with self._lock:
            self._count += 1
            try:
                self._store.put(self.key, canonical({"beat": self._count, "holder": self.holder}))
            except StoreError as e:
                self._failed(e)
                return False
        return True

    def start(self) -> Self:
        """Beat now, and in the background every `every_s` seconds until `close`."""
        self.beat()
        if self._pulse is None:
            self._pulse = _Pulse(self.beat, f"penstock-{self.key}", self.every_s)
        return self

    def close(self) -> None:
        """Stop beating; the thread has ended when this returns."""
        if self._pulse is not None:
            self._pulse.close()
            self._pulse = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _failed(self, error: StoreError) -> None:
        _log.warning("%s in %s was not written: %s", self.key, self._store.url, error)


class Heartbeat(_Sign):
    """The heartbeat of an open transaction: `with Heartbeat(store, txn): upload()`. It is left in the store:
    the collector removes it with the transaction's leftovers."""

    def __init__(
        self, store: Store, txn: str, holder: str | None = None, every_s: float = BEAT_EVERY_S
    ) -> None:
        super().__init__(store, f"heartbeats/{_segment(txn)}.json", holder or new_holder(), every_s)


class Lease(_Sign):
    """A reader's claim on a version: `with Lease(store, version_id): read()`; removed on close.

    Without the right to write (Forbidden) there is one warning per root and then no lease: such readers are
    protected by the collector's grace and by holds only. `active` says whether the lease was written.
    """

    def __init__(
        self, store: Store, version_id: str, holder: str | None = None, every_s: float = BEAT_EVERY_S
    ) -> None:
        name = holder or new_holder()
        super().__init__(store, f"leases/{_segment(version_id)}/{_segment(name)}.json", name, every_s)
        self.active = False
        self._read_only = False

    def beat(self) -> bool:
        """Write or renew the lease; False when the store refused it."""
        if self._read_only:
            return False
        written = super().beat()
        self.active = self.active or written
        return written

    def close(self) -> None:
        """Stop renewing and remove the lease."""
        super().close()
        if self._read_only or self._count == 0:
            return
        self.active = False
        try:
            self._store.delete_many([self.key])
        except StoreError as e:  # it stops moving, so the collector sees through it
            _log.warning("%s in %s was not removed: %s", self.key, self._store.url, e)

    def _failed(self, error: StoreError) -> None:
        if isinstance(error, Forbidden):
            self._read_only = True
            _warn_read_only(self._store.url)
        else:
            super()._failed(error)


@cache
def _warn_read_only(url: str) -> None:
    _log.warning(
        "%s may not be written with these credentials: versions are read without a lease; they stay as long "
        "as the collector's grace or a hold keeps them",
        url,
    )


def _segment(name: str) -> str:
    if not _SEGMENT.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be part of a key: 1 to 200 of A-Z a-z 0-9 . _ -, the first no sign"
        )
    return name


def _read(store: Store, key: str) -> Beat | None:
    try:
        body = json.loads(store.get(key).data)
        return Beat(beat=int(body["beat"]), holder=str(body["holder"]))
    except ObjectNotFound:
        return None
    except (ValueError, KeyError, TypeError) as e:
        _log.warning("%s in %s is no sign of life (%s): read as beat 0", key, store.url, e)
        return Beat(beat=0, holder="")


def read_heartbeat(store: Store, txn: str) -> Beat | None:
    """The newest beat of a transaction; None when it never had one. Raises: StoreError."""
    return _read(store, f"heartbeats/{_segment(txn)}.json")


def list_leases(store: Store) -> Iterator[LeaseRecord]:
    """Every lease in the store, by version. Raises: StoreError."""
    for info in store.list("leases/"):
        version_id, _, name = info.key.removeprefix("leases/").partition("/")
        beat = _read(store, info.key)
        if beat is not None and name.endswith(".json"):
            yield LeaseRecord(version_id=version_id, holder=name.removesuffix(".json"), beat=beat)
