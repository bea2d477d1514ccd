"""Read from the nearest store that is up, then from the next.

If a store lacks the object or returns corrupt bytes, the next one is tried. A failing store is skipped for a while and
probed in the background, so that no read waits for it.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Generic, TypeVar

from ...errors import (
    Corrupt,
    Forbidden,
    ForkedStore,
    InvalidStore,
    ObjectNotFound,
    PenstockError,
    StoreError,
    Throttled,
    Transient,
)
from ..shared.requests import count_fallback, doubted, is_patient, note, tried_once, tried_while
from ..shared.threads import DaemonPool
from ..store import check_key
from .member import Member
from .nearest import Members

logger = logging.getLogger(__name__)
T = TypeVar("T")

NEXT_AFTER_S = 2.0
"""Seconds to try an unresponsive store while another remains."""
CERTAIN = "data/"
"""Prefix of objects that the log names: they must exist, perhaps in an unreachable store."""
_DOWN = (Transient, Throttled, Forbidden, InvalidStore)
"""Errors that mean that a store is down."""


class Fallback:
    """Chooses a store for each read. Thread-safe."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def read(self, key: str, read: Callable[[Member], T], *, by_name: bool = False) -> T:
        """Return the result of `read` from the first store with the object.

        by_name: for a listing, try stores as named.

        Raises: ObjectNotFound if no store has the object; else the first error of a store that may have it;
        InvalidStore for an invalid key.
        """
        if not by_name:
            check_key(key)
        order = self._members.all if by_name else self._members.in_order()
        wrong = doubted()
        certain = bool(wrong) or key.startswith(CERTAIN)
        up = [member for member in order if member.is_up]
        good = [member for member in up if member.number not in wrong]
        self._ask_again(order)
        tried: _Tried[T] = _Tried(key, order[0], listed=by_name)
        for place, member in enumerate(good):
            # (once another store lacks the object, do not wait, unless the object must exist)
            more = place + 1 < len(good) or bool(tried.absent and not certain)
            if self._try(tried, member, read, more=more):
                return tried.results[0]
        if certain or not tried.absent:
            passed_over = [
                member
                for member in order
                if not (member.is_up or member in good[-1:] or member.number in wrong)
            ]
            if any(self._try(tried, member, read, more=False) for member in passed_over):
                return tried.results[0]
        if not tried.down:
            again = [member for member in order if member.number in wrong]
            if any(self._try(tried, member, read, more=False) for member in again):
                return tried.results[0]
        raise tried.error()

    def _try(self, tried: "_Tried[T]", member: Member, read: Callable[[Member], T], *, more: bool) -> bool:
        for_good = is_patient()
        try:
            with (
                tried_while(lambda spent_s: member.is_up and spent_s < NEXT_AFTER_S)
                if more
                else nullcontext()
            ):
                self._members.admit(member)
                result = read(member)
        except ForkedStore:
            raise
        except _DOWN as error:
            if isinstance(error, InvalidStore) and member.identity is None:
                raise  # another root, or not a store: the caller's mistake
            tried.down.append((member, error))
            # (Forbidden may concern only one object, or only listing)
            self._failed(member, error, for_good=for_good and not isinstance(error, Forbidden))
        except (StoreError, Corrupt) as error:
            absent = isinstance(error, ObjectNotFound)
            (tried.absent if absent else tried.bad).append((member, error))
            if absent and member.identity is None:
                self._failed(member, error, for_good=True)
        else:
            tried.results.append(result)
            member.served()
            tried.tell(member)
            if not tried.listed:  # listings do not affect health
                note(member.number)
            return True
        return False

    def _failed(self, member: Member, error: PenstockError, *, for_good: bool) -> None:
        pause_s = member.failed(for_good=for_good)
        if pause_s is not None:
            logger.warning("%s: it is passed over, and asked again in %.0f s", error, pause_s)

    def _ask_again(self, order: Sequence[Member]) -> None:
        for member in order:
            if not member.is_up and member.shall_be_asked():
                pool = DaemonPool(1, "penstock-mirror")
                pool.submit(self._ask, member)
                pool.shutdown(wait=False)

    def _ask(self, member: Member) -> None:
        answers = False
        try:
            with tried_once():
                if member.identity is None:
                    self._members.admit(member)
                else:
                    self._members.identity_of(member.store)
            answers = True
            logger.warning("%s answers again: it is read again", member.url)
        except InvalidStore as error:
            logger.error("%s: it is not read", error)
        except StoreError as error:
            logger.debug("%s is still down: %s", member.url, error)
        finally:
            member.asked(answers=answers)


class _Tried(Generic[T]):
    def __init__(self, key: str, nearest: Member, *, listed: bool) -> None:
        self.key, self.nearest, self.listed = key, nearest, listed
        self.results: list[T] = []
        self.absent: list[tuple[Member, PenstockError]] = []
        self.bad: list[tuple[Member, PenstockError]] = []
        self.down: list[tuple[Member, PenstockError]] = []

    def tell(self, member: Member) -> None:
        if member is not self.nearest:
            count_fallback()
        for other, error in (*self.absent, *self.bad):
            what = type(error).__name__
            if what not in other.warned:
                other.warned.add(what)
                logger.warning("%s; it is read from %s (said once for this store)", error, member.url)

    def error(self) -> PenstockError:
        known = [*self.bad, *self.absent]
        errors = [*self.down, *known] if self.key.startswith(CERTAIN) else [*known, *self.down]
        first = errors[0][1]
        others = [f"{member.url}: {error}" for member, error in errors[1:]]
        if others:
            first.add_note(f"of the other stores: {'; '.join(others)}")
        return first
