"""Maintain leases: counters that show a collector which versions are in use.

    leases/<holder>.json       {"beat": 17, "holder": "...", "host": "...", "versions": ["v-...", ...]}

One thread renews all leases of a process and its workers, by one request per root. A failed beat is only logged.
"""

import atexit
import logging
import random
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, RLock
from time import monotonic
from typing import Protocol

from ...errors import Forbidden, InvalidStore, ObjectNotFound, StoreError
from ...json_text import parse_json_object
from ...storage.store import Store
from ...storage.threads import AwaitedThread, DaemonPool, begins_anew, ends_with_the_process
from .entries import DAMAGED, canonical
from .heartbeats import new_holder

_log = logging.getLogger(__name__)


RENEW_EVERY_S = 300.0
"""Longest interval between renewals, in seconds; a collector waits for days."""
JOIN_S = 1.0
"""Seconds to wait for the thread, which may be in a request."""
# From the operating system: ranks that seed `random` alike must not all renew at once.
_chance = random.SystemRandom()


class Renewable(Protocol):
    """A claim that needs renewal."""

    def beat(self) -> object:
        """Beat once; log any error, and raise nothing."""

    def close(self) -> None:
        """Release the claim and call `stop_renewing`."""


Requests = SimpleQueue[tuple[Renewable, Lock] | None]
"""Claims to close, each with a lock to release afterwards; None ends the thread."""


class Renewal:
    """Renews claims in a daemon thread that runs while there are claims."""

    def __init__(self) -> None:
        self.begin_anew()
        begins_anew(self)
        ends_with_the_process(self)

    def begin_anew(self) -> None:
        """Reset in a forked child, which has no such thread."""
        self._lock = RLock()  # reentrant: see `Lease`
        self._requests: Requests = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._claims: dict[int, Renewable] = {}

    def add(self, claim: Renewable) -> None:
        """Renew this claim too. Raises: RuntimeError if no thread can be started."""
        with self._lock:
            self._claims[id(claim)] = claim
            if self._thread is not None:
                return
            requests: Requests = SimpleQueue()
            thread = AwaitedThread(self._run, (requests,), name="penstock-leases")
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

    def remove(self, claim: Renewable) -> None:
        """Stop renewing this claim; without any, the thread ends."""
        with self._lock:
            self._claims.pop(id(claim), None)
            if self._claims or self._thread is None:
                return
            thread = self._thread
            self._thread = None
            self.dismiss()
        # The thread itself comes here when it closes a claim.
        if thread.ident != threading.get_ident() and thread.is_alive():
            thread.join(JOIN_S)

    def close(self, claim: Renewable) -> None:
        """Close a claim in the thread, and wait a little for it. For finalizers."""
        # The garbage collector may run one while its thread holds a lock that a request needs.
        thread = self._thread
        if id(claim) not in self._claims or thread is None:
            claim.close()
            return
        is_closed = Lock()
        is_closed.acquire()  # the thread releases it
        self._requests.put((claim, is_closed))
        if thread.ident != threading.get_ident():
            is_closed.acquire(timeout=JOIN_S)

    def close_all(self) -> None:
        with self._lock:
            claims = list(self._claims.values())
        for claim in claims:
            claim.close()

    def dismiss(self) -> None:
        """End the thread after its present request. A new queue: the next thread gets none of its requests."""
        requests = self._requests
        self._requests = SimpleQueue()
        requests.put(None)

    def _run(self, requests: Requests) -> None:
        next_s = _next_renewal_s()
        while True:
            try:
                request = requests.get(timeout=max(0.0, next_s - monotonic()))
            except Empty:
                with self._lock:
                    claims = list(self._claims.values())
                for claim in claims:
                    if self._requests is requests:  # otherwise `dismiss` has ended this thread
                        _call_safely(claim.beat, "renewed")
                next_s = _next_renewal_s()
            else:
                if request is None:
                    return
                closing, is_closed = request
                _call_safely(closing.close, "closed")
                is_closed.release()
                del request, closing  # the thread must not keep what it closed


def _next_renewal_s() -> float:
    """Return the `monotonic` time of the next renewal. Half of the pause is random: processes start together."""
    return monotonic() + RENEW_EVERY_S * _chance.uniform(0.5, 1)


def _call_safely(call: Callable[[], object], action: str) -> None:
    """Call, and log any error, so that it stops neither other claims nor the next beat. action: for the message."""
    try:
        call()
    except Exception:  # noqa: BLE001 - it is logged
        _log.exception("a lease was not %s", action)


_RENEWAL = Renewal()
atexit.register(lambda: _RENEWAL.close_all())


def renew_in_background(claim: Renewable) -> None:
    """Renew a claim at least every five minutes, until `stop_renewing`."""
    _RENEWAL.add(claim)


def stop_renewing(claim: Renewable) -> None:
    """End `renew_in_background` for a claim; its object stays until it expires."""
    _RENEWAL.remove(claim)


def close_in_finalizer(claim: Renewable) -> None:
    """Close a claim from a finalizer, which must not send a request itself."""
    _RENEWAL.close(claim)


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
        """Reset to no claims. The next claim chooses a new holder, and with it a new object."""
        self._versions: dict[str, None] = {}  # ids of the claimed versions, with those only proposed
        # Ids in the lease object, from the last successful beat. A failed beat leaves them: `_versions` has more then.
        self._stored: frozenset[str] = frozenset()
        self._proposed: dict[str, int] = {}  # version that no `add` claims yet -> threads that propose it
        self._holder = ""  # before the first claim
        self._count = 0  # of the newest beat, also if the store rejected it
        self.active = False
        self._read_only = False  # True: the store forbids the lease, and no further beat is tried

    @property
    def key(self) -> str:
        """Store key of the lease; "leases/.json" before the first version."""
        return f"{FOLDER}{self._holder}.json"

    def add(self, version_id: str) -> bool:
        """Claim another version by one request; False if already claimed. If True, read the log again.

        Raises: RuntimeError if no thread can be started; the next call tries again.
        """
        with self._lock:
            # After a failed beat, the next `add` of the version tries again.
            is_new = version_id not in self._versions or not self._is_stored([version_id])
            if is_new:
                self._holder = self._holder or new_holder()
                self._versions[version_id] = None
                self.beat()
            elif version_id in self._proposed:
                # Stored, perhaps a moment ago: the caller reads the log again, as after a claim of its own.
                is_new = True
            self._proposed.pop(version_id, None)
            if not self._read_only:
                renew_in_background(self)
            return is_new

    def propose(self, version_ids: Collection[str]) -> bool:
        """Claim versions that a stored plan names, by one request; False if all are claimed already.

        If True, read the log, then `confirm` the versions that it has and `withdraw` the others. Raises: as `add`.
        """
        with self._lock:
            is_stored = self._is_stored(version_ids)
            unclaimed = [version for version in version_ids if version not in self._versions]
            pending = [version for version in version_ids if version in self._proposed]
            if is_stored and not unclaimed and not pending:
                return False
            for version in (*unclaimed, *pending):
                # Counted: another thread may propose the same version, and withdraw it.
                self._proposed[version] = self._proposed.get(version, 0) + 1
                self._versions[version] = None
            if unclaimed or not is_stored:
                self._holder = self._holder or new_holder()
                self.beat()
            if not self._read_only:
                renew_in_background(self)
            return True

    def _is_stored(self, version_ids: Collection[str]) -> bool:
        """Return whether the store's lease has the versions. A read-only root has none, and is not tried again."""
        if self._read_only:
            return True
        return self._stored.issuperset(version_ids)

    def confirm(self, version_ids: Collection[str]) -> None:
        """Make proposed versions ordinary claims. No request."""
        with self._lock:
            for version in version_ids:
                self._proposed.pop(version, None)

    def withdraw(self, version_ids: Collection[str]) -> None:
        """Release proposed versions that no other thread proposes, by one request; none if that changes nothing."""
        with self._lock:
            released = self._end_proposals(version_ids)
            self._release(released)

    def drop(self, version_ids: Collection[str]) -> None:
        """Release the same versions with the next beat, before an `add`. No request."""
        with self._lock:
            for version in self._end_proposals(version_ids):
                del self._versions[version]

    def _end_proposals(self, version_ids: Collection[str]) -> list[str]:
        """Return the versions that no thread proposes any more."""
        released: list[str] = []
        for version in version_ids:
            n_proposals = self._proposed.pop(version, 0)
            if n_proposals > 1:
                self._proposed[version] = n_proposals - 1
            elif n_proposals == 1:
                released.append(version)
        return released

    def keep(self, version_ids: Collection[str]) -> None:
        """Release all versions but these and proposed ones, by one request; none if that changes nothing."""
        with self._lock:
            kept = {*version_ids, *self._proposed}
            self._release([version for version in self._versions if version not in kept])

    def _release(self, version_ids: Collection[str]) -> None:
        if not version_ids:
            return
        for version in version_ids:
            del self._versions[version]
        if self._versions:
            self.beat()
        else:
            self.close()

    def beat(self) -> bool:
        """Write the next beat with one request; False if there is nothing to claim or the store rejects it."""
        with self._lock:
            if self._read_only or not self._versions:
                return False
            self._count += 1
            versions = sorted(self._versions)
            body = {"beat": self._count, "holder": self._holder, "host": socket.gethostname()}
            try:
                self._store.put(self.key, canonical({**body, "versions": versions}))
            except Forbidden:
                self._read_only = not self.active  # temporary loss of permission does not count
                _warn_read_only(self._store.url)
                return False
            except StoreError as e:
                _log.warning("%s in %s was not written: %s", self.key, self._store.url, e)
                return False
            self.active = True
            self._stored = frozenset(versions)
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
        """Return the leases now, sorted by key. also: keys to read even if the listing lacks them."""
        etags = {info.key: info.etag for info in self._store.list(FOLDER) if info.key.endswith(".json")}
        # Listings are not snapshots: a lease that is missing from one may exist, so it is read.
        unlisted = {*self._known, *also}.difference(etags)
        current: dict[str, LeaseRecord] = {}
        for key, etag in etags.items():
            known = self._known.get(key)
            if known is not None and known.etag == etag:
                current[key] = known
        new = [key for key in (*etags, *unlisted) if key not in current]
        with DaemonPool(READ_AHEAD, "penstock-leases") as pool:
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
            _log.warning("%r in %s is not a lease (%s): ignored", key, self._store.url, e)
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
        _log.warning("%s is not a lease (%s): it claims nothing", key, e)
        return LeaseRecord(key=key, holder=holder, host="", beat=0, versions=(), etag=etag)
    return LeaseRecord(key=key, holder=holder, host=host, beat=beat, versions=tuple(versions), etag=etag)


def list_leases(store: Store) -> Iterator[LeaseRecord]:
    """Yield every lease, sorted by key. Costs one listing and one request per lease."""
    yield from Leases(store).read()
