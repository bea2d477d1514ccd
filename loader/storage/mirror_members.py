"""The stores of a mirrored root: their health, their objects' change tokens, and their order by latency."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from math import inf

from ..errors import Changed, Forbidden, InvalidStore, ObjectNotFound, StoreError, Throttled, Transient
from .requests import try_once
from .store import Store, as_disk
from .threads import DaemonPool, lock

PASSED_OVER_S = 5.0
"""Seconds that a failed store is skipped; doubled after each further failure."""
PASSED_OVER_MAX_S = 60.0
STRIKES = 3
"""Failures of single tries that count as one failure of a retried read."""


class Member:
    """A store and its health: a circuit breaker. Thread-safe. number: 0 is the primary."""

    def __init__(self, store: Store, number: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.number = number
        self.url = store.url
        self.reads = 0
        self.identity: str | None = None
        """Identity of the store's root: None until known, "" for an empty store."""
        self.warned: set[str] = set()
        """Types of errors that were logged, each once."""
        self._clock = clock
        self._lock = lock()
        self._strikes = 0  # failures since the last success or pause
        self._pause_s = PASSED_OVER_S
        self._until_s: float | None = None  # time until which the store is skipped; None if it is up
        self._back_s = float("-inf")  # time of its last return
        self._asking = False  # True while a thread probes it

    @property
    def is_healthy(self) -> bool:
        return self._until_s is None

    def served(self) -> None:
        self.reads += 1
        self._strikes = 0

    def failed(self, *, for_good: bool) -> float | None:
        """Record a failed read; return the seconds to skip the store, None if already skipped.

        for_good: True after all retries, False after a single try.
        """
        with self._lock:
            self._strikes += STRIKES if for_good else 1
            if self._strikes < STRIKES or self._until_s is not None:
                return None
            self._strikes = 0
            now = self._clock()
            # A store that fails soon after its return waits longer: each attempt costs a reader its timeout.
            if now - self._back_s < PASSED_OVER_MAX_S:
                self._pause_s = min(2 * self._pause_s, PASSED_OVER_MAX_S)
            else:
                self._pause_s = PASSED_OVER_S
            self._until_s = now + self._pause_s
            return self._pause_s

    def shall_be_asked(self) -> bool:
        """Return whether to probe the store now. If True, the caller probes it and calls `asked`."""
        with self._lock:
            due = self._until_s is not None and not self._asking and self._clock() >= self._until_s
            self._asking = self._asking or due
            return due

    def asked(self, *, answers: bool) -> None:
        with self._lock:
            self._asking = False
            if answers:
                self._until_s = None
                self._back_s = self._clock()
            else:
                self._pause_s = min(2 * self._pause_s, PASSED_OVER_MAX_S)
                self._until_s = self._clock() + self._pause_s


FIRST = 1


class Pins:
    """Maps each object's first ETag in each store to one token. Thread-safe; about 200 bytes per object read.

    The token is "m1", then "m2" and so on after replacements; the same in every process.
    """

    def __init__(self, n_stores: int) -> None:
        self._lock = lock()
        self._etags: list[dict[str, str]] = [{} for _ in range(n_stores)]
        self._numbers: dict[str, int] = {}  # token numbers of replaced objects

    def etag(self, store: int, key: str, token: str | None) -> str | None:
        """Return a store's ETag for a pinned `token`; None if any ETag is valid."""
        if token is None:
            return None
        with self._lock:
            self._check(key, token)
            return self._etags[store].get(key)

    def token(self, store: int, key: str, etag: str, pinned: str | None = None) -> str:
        """Return the token of a store's object. Raises: Changed if it differs from `pinned`."""
        with self._lock:
            if pinned is not None:
                self._check(key, pinned)
            held = self._etags[store].setdefault(key, etag)
            if held != etag:
                if pinned is not None:
                    raise self._changed(key, pinned)
                for etags in self._etags:
                    etags.pop(key, None)
                self._etags[store][key] = etag
                self._numbers[key] = self._numbers.get(key, FIRST) + 1
            return self._token(key)

    def listed(self, store: int, key: str, etag: str) -> str:
        """Return the token that an object with this ETag has, or gets at its next read. Pins nothing."""
        with self._lock:
            if self._etags[store].get(key, etag) == etag:
                return self._token(key)
            return f"m{self._numbers.get(key, FIRST) + 1}"

    def _token(self, key: str) -> str:
        return f"m{self._numbers.get(key, FIRST)}"

    def _check(self, key: str, token: str) -> None:
        if token != self._token(key):
            raise self._changed(key, token)

    def _changed(self, key: str, token: str) -> Changed:
        return Changed(
            f"{key}: the object was replaced since it was first read (etag {token}, now another); open the version "
            "again"
        )


logger = logging.getLogger(__name__)

Identity = Callable[[Store], str | None]
"""Returns the id of a store's root, or None if the store is empty. One request. Raises: StoreError."""

PATIENCE_S = 1.0
"""Seconds to wait for other stores after the first response."""
MUCH_NEARER = 2.0
"""Factor by which a later-named store must be faster to come first."""
NEAR_S = 0.005
"""Seconds by which it must be faster too."""


class Members:
    """The stores, in reading order. Thread-safe.

    A local folder is nearest. Otherwise, at the first read, the identity of every store is requested twice,
    concurrently; the second response time is the store's distance. Stores at similar distances keep their order.
    A store that did not respond is measured when it responds again.
    """

    def __init__(self, stores: Sequence[Store], identity: Identity) -> None:
        self.all = [Member(store, number) for number, store in enumerate(stores)]
        self.identity_of = identity
        self._identity: str | None = None
        self._lock = lock()
        self._order: list[Member] | None = None
        self._seconds: dict[Member, float] = {}  # distances
        self._unmeasured: set[Member] = set()  # stores that did not respond at the first read
        disk = next((member for member in self.all if as_disk(member.store) is not None), None)
        if disk is not None:
            self._order = [disk, *(member for member in self.all if member is not disk)]

    @property
    def primary(self) -> Member:
        return self.all[0]

    def in_order(self) -> Sequence[Member]:
        """Return the stores in reading order. Raises: InvalidStore if two hold different roots."""
        order = self._order
        if order is None:
            with self._lock:
                if self._order is None:
                    self._order = self._measure_members()
                order = self._order
        return order

    def measure_again(self, member: Member) -> None:
        """Measure a store that responds again, unless its distance is known. Two requests. Raises: StoreError."""
        if member not in self._unmeasured:
            return
        _, seconds = self._measure(member)
        with self._lock:
            self._unmeasured.discard(member)
            self._seconds[member] = seconds
            self._order = self._nearest_first()

    def admit(self, member: Member) -> None:
        """Check before a store's first read that it has the same root.

        Raises: InvalidStore if it has another root; ObjectNotFound if it is empty and others are not; as a read.
        """
        if not member.identity:
            self._admit(member, self.identity_of(member.store))

    def admit_for_writing(self) -> None:
        """Check before a write that the primary is not empty while a mirror has a history.

        Raises: ObjectNotFound; as `admit`.
        """
        self.admit(self.primary)
        if not self.primary.identity:
            for member in self.all[1:]:
                with suppress(ObjectNotFound, Transient, Throttled, Forbidden), try_once():
                    self.admit(member)
            self.admit(self.primary)

    def _admit(self, member: Member, identity: str | None) -> None:
        if identity is None and (member is not self.primary or self._identity is not None):
            raise ObjectNotFound(
                f"{member.url} holds no root yet; penstock migrate run makes a mirror, root.write() a root",
                what="root",
                where=member.url,
                given="none",
            )
        if identity and self._identity is None:
            self._identity = identity
        if identity and identity != self._identity:
            raise InvalidStore(
                f"{member.url} is root {identity}, and the stores beside it are root {self._identity}: a mirror has "
                "the id of its primary; correct the URL of the root or of the mirror (penstock migrate run makes one)",
                what="mirror",
                where=member.url,
                given=identity,
                accepted=self._identity,
            )
        member.identity = identity or ""

    def _measure_members(self) -> list[Member]:
        pool = DaemonPool(len(self.all), "penstock-nearest")
        asked = {member: pool.submit(self._measure, member) for member in self.all}
        _wait_for_the_near(set(asked.values()))
        pool.dismiss()
        seconds: dict[Member, float] = {}
        for member, coming in asked.items():
            try:
                if not coming.done():
                    raise Transient(f"no answer within {PATIENCE_S:g} s of the first store's")
                identity, seconds[member] = coming.result()
                self._admit(member, identity)
            except ObjectNotFound:
                continue  # reading from it raises the same error
            except StoreError as error:
                if isinstance(error, InvalidStore) and (member is self.primary or member in seconds):
                    raise
                member.failed(for_good=True)
                logger.warning("%s cannot be read (%s): it is passed over for now", member.url, error)
        self._seconds = seconds
        self._unmeasured = set(self.all).difference(seconds)
        return self._nearest_first()

    def _nearest_first(self) -> list[Member]:
        if not self._seconds:
            return self.all
        best = min(self._seconds.values())
        near_s = max(MUCH_NEARER * best, best + NEAR_S)
        first = next(member for member in self.all if self._seconds.get(member, inf) <= near_s)
        logger.info("of %s the nearest is %s", ", ".join(member.url for member in self.all), first.url)
        return [first, *(member for member in self.all if member is not first)]

    def _measure(self, member: Member) -> tuple[str | None, float]:
        with try_once():
            self.identity_of(member.store)  # opens the connection
            start = time.perf_counter()
            return self.identity_of(member.store), time.perf_counter() - start


def _wait_for_the_near(pending: "set[Future[tuple[str | None, float]]]") -> None:
    until_s: float | None = None
    while pending:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        done, pending = wait(pending, left_s, return_when=FIRST_COMPLETED)
        if not done:
            return
        if until_s is None and any(future.exception() is None for future in done):
            until_s = time.monotonic() + PATIENCE_S
