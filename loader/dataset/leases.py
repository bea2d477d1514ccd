"""Leases and heartbeats: counters that show a collector which versions and transactions are in use.

    leases/<holder>.json       {"beat": 17, "holder": "...", "host": "...", "versions": ["v-...", ...]}
    heartbeats/<txn>.json      {"beat": 17, "holder": "..."}      an open transaction is alive

One thread renews a process's leases: one object and one request per root, for its workers too. A collector compares two
readings on its own clock, so no writer's clock counts. A failed beat is logged and never fatal: `Fenced` at the commit
protects the data.
"""

import atexit
import logging
import os
import random
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from time import monotonic
from typing import Protocol, Self

from ..errors import Forbidden, InvalidStore, ObjectNotFound, StoreError
from ..json_text import parse_json_object
from ..storage.shared.threads import begins_anew, ends_with_the_process
from ..storage.store import Store
from .log.entries import DAMAGED, canonical
from .names import check_transaction_name

BEAT_EVERY_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One sign of life. It has moved when `beat` or `holder` changed."""

    beat: int
    """Number of the beat."""
    holder: str
    """Name of the process (`new_holder`)."""


def new_holder() -> str:
    """Return a unique name for this process: host, process id and random digits."""
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
            try:
                self._beat()
            except Exception:  # noqa: BLE001 - the next may be better, and who seems dead is aborted
                _log.exception("%s failed", threading.current_thread().name)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Heartbeat:
    """The heartbeat of an open transaction: `with Heartbeat(store, txn): upload()`.

    It stays in the store until the collector removes the transaction's leftovers.
    """

    def __init__(
        self, store: Store, txn: str, holder: str | None = None, every_s: float = BEAT_EVERY_S
    ) -> None:
        self.key, self.holder, self.every_s = heartbeat_key(txn), holder or new_holder(), every_s
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
                _log.warning("%s in %s was not written: %s", self.key, self._store.url, e)
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

    def __exit__(self, *_: object) -> None:
        self.close()


def heartbeat_key(txn: str) -> str:
    """Return the store key of a transaction's heartbeat. Raises: InvalidName."""
    return f"heartbeats/{check_transaction_name(txn)}.json"


def read_heartbeat(store: Store, txn: str) -> Beat | None:
    """Return the newest beat of a transaction; None without any."""
    key = heartbeat_key(txn)
    try:
        body = parse_json_object(store.get(key).data)
        return Beat(beat=int(body["beat"]), holder=str(body["holder"]))
    except ObjectNotFound:
        return None
    except DAMAGED as e:
        _log.warning("%s in %s is no sign of life (%s): read as beat 0", key, store.url, e)
        return Beat(beat=0, holder="")


RENEW_EVERY_S = 300.0
"""Most seconds between renewals; a collector waits for days."""
JOIN_S = 1.0
"""Seconds to wait for the thread, which may be in a request."""
# Of the operating system: ranks that seed `random` alike must not all renew in one moment.
_chance = random.SystemRandom()


class Renewed(Protocol):
    """A claim that is renewed."""

    def beat(self) -> object:
        """Beat once; log any error, and raise nothing."""

    def close(self) -> None:
        """Give the claim back, and call `stop_renewing`."""


Requests = SimpleQueue[tuple[Renewed, Lock] | None]
"""Claims to close, each with a lock to release then; None ends the thread."""


class Renewal:
    """Renews claims in a daemon thread, which runs while there are any."""

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)
        ends_with_the_process(self)

    def begin_anew(self) -> None:
        """Forget all claims and the thread, as in a forked child."""
        self._lock = RLock()  # reentrant: see `Lease`
        self._requests: Requests = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._renewed: dict[int, Renewed] = {}

    def add(self, renewed: Renewed) -> None:
        """Renew a claim from now on. Raises: RuntimeError if no thread can be started."""
        with self._lock:
            self._renewed[id(renewed)] = renewed
            if self._thread is not None:
                return
            requests: Requests = SimpleQueue()
            thread = threading.Thread(target=self._run, args=(requests,), name="penstock-leases", daemon=True)
            self._requests, self._thread = requests, thread
        try:
            # Not under the lock: a thread that begins may collect garbage, and with it another lease, which takes it.
            thread.start()
        except RuntimeError:
            with self._lock:
                if self._thread is thread:
                    self._thread = None  # the next to be added tries again
            raise

    def remove(self, renewed: Renewed) -> None:
        """Stop renewing a claim; with the last one the thread ends."""
        with self._lock:
            self._renewed.pop(id(renewed), None)
            if self._renewed or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self.dismiss()
        if thread.ident != threading.get_ident() and thread.is_alive():
            thread.join(JOIN_S)

    def close(self, renewed: Renewed) -> None:
        """Close a claim in the thread, and wait a moment for it."""
        # For finalizers: the garbage collector may run one while this thread holds a lock that a request needs.
        thread = self._thread
        if id(renewed) not in self._renewed or thread is None:
            renewed.close()
            return
        is_closed = Lock()
        is_closed.acquire()
        self._requests.put((renewed, is_closed))
        if thread.ident != threading.get_ident():
            is_closed.acquire(timeout=JOIN_S)

    def close_all(self) -> None:
        """Close every claim, as at the end of the process."""
        with self._lock:
            renewed = list(self._renewed.values())
        for each in renewed:
            each.close()

    def dismiss(self) -> None:
        """Let the thread end. Does not wait."""
        requests, self._requests = self._requests, SimpleQueue()
        requests.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self, requests: Requests) -> None:
        next_s = _next_renewal_s()
        while True:
            try:
                request = requests.get(timeout=max(0.0, next_s - monotonic()))
            except Empty:
                with self._lock:
                    renewed = list(self._renewed.values())
                for each in renewed:
                    if self._requests is requests:  # else the thread is to end
                        _do(each.beat, "renewed")
                next_s = _next_renewal_s()
            else:
                if request is None:
                    return
                _do(request[0].close, "closed")
                request[1].release()
                del request  # the thread must not keep what it closed


def _next_renewal_s() -> float:
    """Return the time (`monotonic`) of the next renewal. Half of the pause is chance: processes start together."""
    return monotonic() + RENEW_EVERY_S * _chance.uniform(0.5, 1)


def _do(call: Callable[[], object], done: str) -> None:
    """Log any error: it ends nothing for the other claims, nor the next beat."""
    try:
        call()
    except Exception:  # noqa: BLE001 - it is logged
        _log.exception("a lease was not %s", done)


_RENEWAL = Renewal()
atexit.register(lambda: _RENEWAL.close_all())


def renew_in_background(renewed: Renewed) -> None:
    """Renew a claim every five minutes at most, until `stop_renewing`."""
    _RENEWAL.add(renewed)


def stop_renewing(renewed: Renewed) -> None:
    """Stop renewing a claim."""
    _RENEWAL.remove(renewed)


def close_in_finalizer(renewed: Renewed) -> None:
    """Close a claim whose owner was collected."""
    _RENEWAL.close(renewed)


FOLDER = "leases/"
READ_AHEAD = 32


class Lease:
    """The versions of one root that this process reads. Thread-safe; a forked child begins without any.

    `active` is True while the store has it. Without the right to write (Forbidden) it logs one warning per root and
    claims nothing: only the collector's grace and holds protect such readers. The next beat repairs any other failure.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Begin anew in a forked child: the lease in the store is the parent's."""
        # Reentrant: in the middle of a beat the garbage collector may find the root that has this lease, and close it.
        self._lock = RLock()
        self._forget()

    def _forget(self) -> None:
        self._versions: dict[str, None] = {}
        self._holder, self._count = "", 0
        self.active = self._read_only = False

    @property
    def key(self) -> str:
        """Store key of the lease; "leases/.json" before the first version."""
        return f"{FOLDER}{self._holder}.json"

    def add(self, version_id: str) -> bool:
        """Claim a version as well, by one request; False if the store has it already.

        Raises: RuntimeError if no thread can be started; the next call tries again.
        """
        with self._lock:
            known = version_id in self._versions and (self.active or self._read_only)
            if not known:
                self._holder = self._holder or new_holder()
                self._versions[version_id] = None
                self.beat()
            if not self._read_only:
                renew_in_background(self)
            return not known

    def beat(self) -> bool:
        """Write it with the next number, by one request; False if there is nothing to claim or the store refused."""
        with self._lock:
            if self._read_only or not self._versions:
                return False
            self._count += 1
            body = {"beat": self._count, "holder": self._holder, "host": socket.gethostname()}
            try:
                self._store.put(self.key, canonical({**body, "versions": sorted(self._versions)}))
            except Forbidden:
                self._read_only = not self.active  # rights that come and go are not this
                _warn_read_only(self._store.url)
                return False
            except StoreError as e:
                _log.warning("%s in %s was not written: %s", self.key, self._store.url, e)
                return False
            self.active = True
            return True

    def close(self) -> None:
        """Give the versions back by deleting the object. If that fails, it stops moving."""
        stop_renewing(self)
        with self._lock:
            key, there = self.key, self.active
            self._forget()
        if there:
            try:
                self._store.delete_many([key])
            except StoreError as e:
                _log.warning("%s in %s was not removed: %s", key, self._store.url, e)


@cache
def _warn_read_only(url: str) -> None:
    _log.warning(
        "%s may not be written with these credentials: versions are read without a lease; they stay as long "
        "as the collector's grace or a hold keeps them",
        url,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A stored lease. It has moved when its `beat` changed."""

    key: str
    """Store key."""
    holder: str
    """Name of the process."""
    host: str
    """Host of the process."""
    beat: int
    """Number of the beat."""
    versions: tuple[str, ...]
    """Ids of the versions that it reads."""
    etag: str
    """Change token of the object."""


class Leases:
    """The leases of a root, read again cheaply: one listing, then each lease that moved or is missing there.

    A listing does not prove that a lease was released: such a lease is read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, LeaseRecord] = {}

    def read(self, also: Iterable[str] = ()) -> list[LeaseRecord]:
        """Return every lease, by key. also: keys that were seen earlier."""
        there = {info.key: info.etag for info in self._store.list(FOLDER) if info.key.endswith(".json")}
        unlisted = {*self._known, *also}.difference(there)
        new = [*(key for key, etag in there.items() if not self._holds(key, etag)), *unlisted]
        with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-leases") as pool:
            fetched = dict(zip(new, pool.map(self._get, new), strict=True))
        every = sorted({*there, *unlisted})
        kept = {key: fetched[key] if key in fetched else self._known[key] for key in every}
        self._known = {key: one for key, one in kept.items() if one is not None}
        return list(self._known.values())

    def _holds(self, key: str, etag: str) -> bool:
        return key in self._known and self._known[key].etag == etag

    def _get(self, key: str) -> LeaseRecord | None:
        try:
            data, etag = self._store.get(key)
        except ObjectNotFound:  # given back this moment
            return None
        except InvalidStore as e:  # of a name that no key may have
            _log.warning("%r in %s is no lease (%s): ignored", key, self._store.url, e)
            return None
        return parse_lease(key, data, etag)


def parse_lease(key: str, data: bytes, etag: str) -> LeaseRecord:
    """Return the lease of an object; an invalid one is logged and read as beat 0 without versions, so that it expires.

    An earlier penstock claims one version by `leases/<version id>/<holder>.json`, without `versions`.
    """
    older, _, name = key.removeprefix(FOLDER).rpartition("/")
    holder = name.removesuffix(".json")
    try:
        body: Mapping[str, object] = parse_json_object(data)
        versions = [older] if older else body["versions"]
        if not isinstance(versions, list) or not all(isinstance(one, str) for one in versions):
            raise TypeError(f"versions is {versions!r}")
        beat, host = int(str(body["beat"])), str(body.get("host", ""))
    except DAMAGED as e:
        _log.warning("%s is no lease (%s): it claims nothing", key, e)
        versions, beat, host = [], 0, ""
    return LeaseRecord(key=key, holder=holder, host=host, beat=beat, versions=tuple(versions), etag=etag)


def list_leases(store: Store) -> Iterator[LeaseRecord]:
    """Yield every lease by key: a listing, and a request each."""
    yield from Leases(store).read()
