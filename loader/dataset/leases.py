"""Maintain leases and heartbeats: counters that show a collector which versions and transactions are in use.

    leases/<holder>.json       {"beat": 17, "holder": "...", "host": "...", "versions": ["v-...", ...]}
    heartbeats/<txn>.json      {"beat": 17, "holder": "..."}      an open transaction is alive

One thread renews all leases of a process and its workers, by one request per root. A failed beat is only logged:
`Fenced` at the commit protects the data.
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
from ..storage.store import Store
from ..storage.threads import begins_anew, ends_with_the_process
from .log.entries import DAMAGED, canonical
from .names import check_transaction_name

BEAT_EVERY_S = 30.0
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
            except Exception:  # noqa: BLE001 - the next may be better, and who seems dead is aborted
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
"""Longest interval between renewals, in seconds; a collector waits for days."""
JOIN_S = 1.0
"""Seconds to wait for the thread, which may be in a request."""
# From the operating system: ranks that seed `random` alike must not all renew at once.
_chance = random.SystemRandom()


class Renewed(Protocol):
    """A claim that needs renewal."""

    def beat(self) -> object:
        """Beat once; log any error, and raise nothing."""

    def close(self) -> None:
        """Release the claim and call `stop_renewing`."""


Requests = SimpleQueue[tuple[Renewed, Lock] | None]
"""Claims to close, each with a lock to release afterwards; None ends the thread."""


class Renewal:
    """Renews claims in a daemon thread that runs while there are claims."""

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)
        ends_with_the_process(self)

    def begin_anew(self) -> None:
        self._lock = RLock()  # reentrant: see `Lease`
        self._requests: Requests = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._renewed: dict[int, Renewed] = {}

    def add(self, renewed: Renewed) -> None:
        with self._lock:
            self._renewed[id(renewed)] = renewed
            if self._thread is not None:
                return
            requests: Requests = SimpleQueue()
            thread = threading.Thread(target=self._run, args=(requests,), name="penstock-leases", daemon=True)
            self._requests = requests
            self._thread = thread
        try:
            # Not under the lock: a starting thread may collect garbage, including a lease whose finalizer takes it.
            thread.start()
        except RuntimeError:
            with self._lock:
                if self._thread is thread:
                    self._thread = None  # the next `add` retries
            raise

    def remove(self, renewed: Renewed) -> None:
        with self._lock:
            self._renewed.pop(id(renewed), None)
            if self._renewed or self._thread is None:
                return
            thread = self._thread
            self._thread = None
            self.dismiss()
        if thread.ident != threading.get_ident() and thread.is_alive():
            thread.join(JOIN_S)

    def close(self, renewed: Renewed) -> None:
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
        with self._lock:
            renewed = list(self._renewed.values())
        for each in renewed:
            each.close()

    def dismiss(self) -> None:
        requests = self._requests
        self._requests = SimpleQueue()
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
                    if self._requests is requests:  # otherwise the thread must end
                        _do(each.beat, "renewed")
                next_s = _next_renewal_s()
            else:
                if request is None:
                    return
                closing, is_closed = request
                _do(closing.close, "closed")
                is_closed.release()
                del request, closing  # the thread must not keep what it closed


def _next_renewal_s() -> float:
    """Return the `monotonic` time of the next renewal. Half of the pause is random: processes start together."""
    return monotonic() + RENEW_EVERY_S * _chance.uniform(0.5, 1)


def _do(call: Callable[[], object], done: str) -> None:
    """Log any error, so that it stops neither other claims nor the next beat."""
    try:
        call()
    except Exception:  # noqa: BLE001 - it is logged
        _log.exception("a lease was not %s", done)


_RENEWAL = Renewal()
atexit.register(lambda: _RENEWAL.close_all())


def renew_in_background(renewed: Renewed) -> None:
    """Renew a claim at least every five minutes, until `stop_renewing`."""
    _RENEWAL.add(renewed)


def stop_renewing(renewed: Renewed) -> None:
    _RENEWAL.remove(renewed)


def close_in_finalizer(renewed: Renewed) -> None:
    _RENEWAL.close(renewed)


FOLDER = "leases/"
READ_AHEAD = 32


class Lease:
    """Claims the versions of one root that this process reads. Thread-safe; a forked child starts with no claims.

    `active` is True while the store has the lease. Without write permission it warns once per root: then only the
    collector's grace period and holds protect readers.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.begin_anew()
        begins_anew(self)

    def begin_anew(self) -> None:
        """Reset in a forked child: the lease in the store is the parent's."""
        # Reentrant: during a beat the garbage collector may finalize the root that owns this lease and close it.
        self._lock = RLock()
        self._forget()

    def _forget(self) -> None:
        self._versions: dict[str, None] = {}
        self._holder = ""
        self._count = 0
        self.active = False
        self._read_only = False

    @property
    def key(self) -> str:
        """Store key of the lease; "leases/.json" before the first version."""
        return f"{FOLDER}{self._holder}.json"

    def add(self, version_id: str) -> bool:
        """Claim another version by one request; False if already claimed.

        Raises: RuntimeError if no thread can be started; the next call tries again.
        """
        with self._lock:
            # (after a failed beat, the next `add` of the version tries again)
            is_stored = self.active or self._read_only
            known = version_id in self._versions and is_stored
            if not known:
                self._holder = self._holder or new_holder()
                self._versions[version_id] = None
                self.beat()
            if not self._read_only:
                renew_in_background(self)
            return not known

    def beat(self) -> bool:
        """Write the next beat with one request; False if there is nothing to claim or the store rejects it."""
        with self._lock:
            if self._read_only or not self._versions:
                return False
            self._count += 1
            body = {"beat": self._count, "holder": self._holder, "host": socket.gethostname()}
            try:
                self._store.put(self.key, canonical({**body, "versions": sorted(self._versions)}))
            except Forbidden:
                self._read_only = not self.active  # temporary loss of permission does not count
                _warn_read_only(self._store.url)
                return False
            except StoreError as e:
                _log.warning("%s in %s was not written: %s", self.key, self._store.url, e)
                return False
            self.active = True
            return True

    def close(self) -> None:
        """Release the versions by deleting the object. If that fails, the lease expires without heartbeats."""
        stop_renewing(self)
        with self._lock:
            key = self.key
            is_stored = self.active
            self._forget()
        if is_stored:
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
    """A stored lease. A changed `beat` shows that the holder is alive."""

    key: str
    """Store key."""
    holder: str
    """Process name."""
    host: str
    """Host of the process."""
    beat: int
    """Number of the beat."""
    versions: tuple[str, ...]
    """Ids of the versions that the holder reads."""
    etag: str
    """Change token of the object."""


class Leases:
    """The leases of a root. Rereading costs one listing, and each lease that changed or is missing from it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, LeaseRecord] = {}

    def read(self, also: Iterable[str] = ()) -> list[LeaseRecord]:
        etags = {info.key: info.etag for info in self._store.list(FOLDER) if info.key.endswith(".json")}
        # Listings are not snapshots: a lease that is missing from one may exist, so it is read.
        unlisted = {*self._known, *also}.difference(etags)
        current: dict[str, LeaseRecord] = {}
        for key, etag in etags.items():
            known = self._known.get(key)
            if known is not None and known.etag == etag:
                current[key] = known
        new = [key for key in (*etags, *unlisted) if key not in current]
        with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="penstock-leases") as pool:
            records = [record for record in pool.map(self._get, new) if record is not None]
        current.update({record.key: record for record in records})
        self._known = {key: current[key] for key in sorted(current)}
        return list(self._known.values())

    def _get(self, key: str) -> LeaseRecord | None:
        try:
            data, etag = self._store.get(key)
        except ObjectNotFound:  # released just now
            return None
        except InvalidStore as e:  # an invalid key name
            _log.warning("%r in %s is no lease (%s): ignored", key, self._store.url, e)
            return None
        return parse_lease(key, data, etag)


def parse_lease(key: str, data: bytes, etag: str) -> LeaseRecord:
    """Return the lease in an object. An invalid one is logged and read as beat 0 without versions, so it expires.

    Earlier releases claim one version per `leases/<version id>/<holder>.json`.
    """
    older, _, name = key.removeprefix(FOLDER).rpartition("/")
    holder = name.removesuffix(".json")
    try:
        body: Mapping[str, object] = parse_json_object(data)
        versions = [older] if older else body["versions"]
        if not isinstance(versions, list) or not all(isinstance(one, str) for one in versions):
            raise TypeError(f"versions is {versions!r}")
        beat = int(str(body["beat"]))
        host = str(body.get("host", ""))
    except DAMAGED as e:
        _log.warning("%s is no lease (%s): it claims nothing", key, e)
        return LeaseRecord(key=key, holder=holder, host="", beat=0, versions=(), etag=etag)
    return LeaseRecord(key=key, holder=holder, host=host, beat=beat, versions=tuple(versions), etag=etag)


def list_leases(store: Store) -> Iterator[LeaseRecord]:
    """Yield every lease, sorted by key. Costs one listing and one request per lease."""
    yield from Leases(store).read()
