"""Combine stores with the same objects: reads go to the nearest one that is up, then to the next; writes to the first.

A failing store is skipped for a while and probed in the background, so that no read waits for it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import BinaryIO, Generic, TypeVar, Unpack

from ..errors import (
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
from .mirror_members import Identity, Member, Members, Pins
from .requests import count_fallback, is_patient, record_serving, retry_while, suspect_stores, try_once
from .store import (
    Blob,
    ByteRange,
    NewObject,
    ObjectInfo,
    Piece,
    ReadLimits,
    Refuse,
    Store,
    as_disk,
    check_key,
    check_prefix,
    check_span,
    fill_pieces,
    is_on_network,
    list_from,
    list_place,
    new_in_place,
)
from .stream import fill_from, open_reader
from .threads import DaemonPool

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

        by_name: for a listing, try the stores in the order in which they are named.

        Raises: ObjectNotFound if no store has the object; else the first error of a store that may have it;
        InvalidStore for an invalid key.
        """
        if not by_name:
            check_key(key)
        order = self._members.all if by_name else self._members.in_order()
        wrong = suspect_stores()
        certain = bool(wrong) or key.startswith(CERTAIN)
        up = [member for member in order if member.is_healthy]
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
                if not (member.is_healthy or member in good[-1:] or member.number in wrong)
            ]
            if any(self._try(tried, member, read, more=False) for member in passed_over):
                return tried.results[0]
        if not tried.down:
            again = [member for member in order if member.number in wrong]
            if any(self._try(tried, member, read, more=False) for member in again):
                return tried.results[0]
        raise tried.error()

    def _try(self, tried: "_Tried[T]", member: Member, read: Callable[[Member], T], *, more: bool) -> bool:
        """Return whether a member served the read, and add its result or error to `tried`. more: others can follow."""
        for_good = is_patient()
        try:
            with (
                retry_while(lambda spent_s: member.is_healthy and spent_s < NEXT_AFTER_S)
                if more
                else nullcontext()
            ):
                self._members.admit(member)
                result = read(member)
        except ForkedStore:  # concerns this process: no other member would answer
            raise
        except _DOWN as error:
            if isinstance(error, InvalidStore) and member.identity is None:
                raise  # another root, or not a store: the caller's mistake
            tried.down.append((member, error))
            # (Forbidden may concern only one object, or only listing)
            self._note_failure(member, error, for_good=for_good and not isinstance(error, Forbidden))
        except (StoreError, Corrupt) as error:
            absent = isinstance(error, ObjectNotFound)
            (tried.absent if absent else tried.bad).append((member, error))
            if absent and member.identity is None:
                self._note_failure(member, error, for_good=True)
        else:
            tried.results.append(result)
            member.served()
            tried.tell(member)
            if not tried.listed:  # listings do not affect health
                record_serving(member.number)
            return True
        return False

    def _note_failure(self, member: Member, error: PenstockError, *, for_good: bool) -> None:
        pause_s = member.failed(for_good=for_good)
        if pause_s is not None:
            logger.warning("%s: it is passed over, and asked again in %.0f s", error, pause_s)

    def _ask_again(self, order: Sequence[Member]) -> None:
        for member in order:
            if not member.is_healthy and member.shall_be_asked():
                pool = DaemonPool(1, "penstock-mirror")
                pool.submit(self._ask, member)
                pool.shutdown(wait=False)

    def _ask(self, member: Member) -> None:
        answers = False
        try:
            with try_once():
                if member.identity is None:
                    self._members.admit(member)
                else:
                    self._members.identity_of(member.store)
                self._members.measure_again(member)
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
        self.key = key
        self.nearest = nearest
        self.listed = listed
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
        _, first = errors[0]
        others = [f"{member.url}: {error}" for member, error in errors[1:]]
        if others:
            first.add_note(f"of the other stores: {'; '.join(others)}")
        return first


class MirroredStore:
    """A store over several stores. stores: the primary, which receives all writes, and its mirrors.

    It has its own change tokens (`Pins`): an `etag` of its callers is one. Each member has another ETag for the same
    object, `member_etag` here.
    """

    def __init__(self, stores: Sequence[Store], identity: Identity) -> None:
        self._members = Members(stores, identity)
        self._pins = Pins(len(stores))
        self._fallback = Fallback(self._members)
        self.primary = self._members.primary.store
        self._on_disk = next(
            (member for member in self._members.all if as_disk(member.store) is not None), None
        )

    def __reduce__(self) -> tuple[object, ...]:
        return MirroredStore, (self.stores, self._members.identity_of)

    def __repr__(self) -> str:
        return f"MirroredStore({', '.join(member.url for member in self._members.all)})"

    @property
    def is_primary_healthy(self) -> bool:
        return self._members.primary.is_healthy

    @property
    def url(self) -> str:
        return self.primary.url

    @property
    def stores(self) -> list[Store]:
        return [member.store for member in self._members.all]

    @property
    def served(self) -> list[tuple[str, int]]:
        """(URL, reads served in this process) for the primary and its mirrors, in the order given."""
        return [(member.url, member.reads) for member in self._members.all]

    @property
    def disk(self) -> "MirroredStore | None":
        """This store itself if the nearest store is a local folder, else None."""
        return None if self._on_disk is None else self

    @property
    def is_on_network(self) -> bool:
        """True if the nearest store is a folder on a network file system."""
        return self._on_disk is not None and is_on_network(self._on_disk.store)

    # reading

    def get(self, key: str) -> Blob:
        return self._blob(key, None, lambda member, _: member.store.get(key))

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        check_span(key, offset, nbytes)

        def read(member: Member, member_etag: str | None) -> Blob:
            return member.store.get_range(key, offset, nbytes, member_etag)

        return self._blob(key, etag, read)

    def get_ranges(
        self, key: str, spans: Sequence[ByteRange], *, etag: str | None = None, **limits: Unpack[ReadLimits]
    ) -> list[Blob]:
        for span in spans:
            check_span(key, *span)

        def read(member: Member) -> list[Blob]:
            member_etag = self._pins.etag(member.number, key, etag)
            pieces = []
            for data, current in member.store.get_ranges(key, spans, etag=member_etag, **limits):
                # Pinned once more: Changed is raised if another thread saw the object replaced meanwhile.
                token = self._pins.token(member.number, key, current, pinned=etag)
                pieces.append(Blob(data, token))
            return pieces

        return self._fallback.read(key, read)

    def fill(self, key: str, offset: int, view: memoryview, etag: str | None = None) -> str:
        def read(member: Member) -> str:
            member_etag = self._pins.etag(member.number, key, etag)
            current = fill_from(member.store, key, offset, view, member_etag)
            return self._pins.token(member.number, key, current, pinned=etag)

        return self._fallback.read(key, read)

    def head(self, key: str) -> ObjectInfo:
        def read(member: Member) -> ObjectInfo:
            info = member.store.head(key)
            token = self._pins.token(member.number, key, info.etag)
            return replace(info, etag=token)

        return self._fallback.read(key, read)

    def open_stream(self, key: str) -> BinaryIO:
        return open_reader(self, key)

    # methods of a disk store, if the nearest store is one

    def read_each(
        self, key: str, spans: Sequence[tuple[int, int]], *, etag: str | None = None
    ) -> tuple[list[bytes], str]:
        def read(member: Member) -> tuple[list[bytes], str]:
            member_etag = self._pins.etag(member.number, key, etag)
            disk = as_disk(member.store)
            if disk is not None:
                data, current = disk.read_each(key, spans, etag=member_etag)
            else:
                ranges = [ByteRange(*span) for span in spans]
                blobs = member.store.get_ranges(key, ranges, etag=member_etag)
                data = [blob.data for blob in blobs]
                current = blobs[0].etag
            token = self._pins.token(member.number, key, current, pinned=etag)
            return data, token

        return self._fallback.read(key, read)

    def read_into(self, key: str, pieces: Sequence[Piece], *, etag: str | None = None) -> str:
        data, token = self.read_each(key, [piece[:2] for piece in pieces], etag=etag)
        fill_pieces(pieces, data)
        return token

    def etag_of(self, key: str, etag: str | None = None) -> str | None:
        member = self._on_disk
        disk = None if member is None or not member.is_healthy else as_disk(member.store)
        if member is None or disk is None or member.number in suspect_stores():
            return None
        try:
            self._members.admit(member)
            member_etag = self._pins.etag(member.number, key, etag)
            current = disk.etag_of(key, member_etag)
            if current is None:
                return None
            member.served()
            return self._pins.token(member.number, key, current, pinned=etag)
        except InvalidStore:  # the caller's mistake, which no other store would serve
            raise
        except StoreError:
            return None  # a read raises the error or uses the next store

    def open_same(self, key: str, etag: str) -> int | None:
        member = self._on_disk
        if member is None:
            return None
        disk = as_disk(member.store)
        member_etag = self._pins.etag(member.number, key, etag)
        if disk is None or member_etag is None:
            return None
        return disk.open_same(key, member_etag)

    # writing

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Put into the primary, trying no longer than a read: nothing depends on such an object."""
        member = self._members.primary
        with retry_while(lambda spent_s: member.is_healthy and spent_s < NEXT_AFTER_S):
            self.writable().put(key, data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> None:
        self.writable().put_if_absent(key, data)

    def put_file(self, key: str, path: str) -> None:
        self.writable().put_file(key, path)

    def open_new(self, key: str) -> NewObject:
        from .disk.scratch import OnScratch  # not needed for reading

        primary = self.writable()
        return new_in_place(primary, key) or OnScratch(primary, key)

    def delete_many(self, keys: Iterable[str]) -> None:
        if not self.is_primary_healthy:
            # Tried once: the garbage collector releases leases in any thread, where no context may be entered.
            raise Transient(f"{self.url} is passed over, since it failed a moment ago: nothing was deleted")
        self.writable().delete_many(keys)

    def copy(self, src: str, dst: str) -> None:
        self.writable().copy(src, dst)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        yield from self._listed(prefix, lambda store: store.list(prefix, start_after))

    def list_from(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        yield from self._listed(prefix, lambda store: list_from(store, prefix, start_after))

    def list_place(
        self, prefix: str, start_after: str, refuse: Refuse, *, seek: bool = False, outside: bool = False
    ) -> Iterator[ObjectInfo]:
        yield from self._listed(
            prefix,
            lambda store: list_place(store, prefix, start_after, refuse=refuse, seek=seek, outside=outside),
        )

    def _listed(self, prefix: str, listing: Callable[[Store], Iterator[ObjectInfo]]) -> Iterator[ObjectInfo]:
        check_prefix(prefix)

        def begin(member: Member) -> tuple[Member, list[ObjectInfo], Iterator[ObjectInfo]]:
            infos = listing(member.store)
            return member, [info for _, info in zip(range(1), infos, strict=False)], infos

        member, first, rest = self._fallback.read(prefix, begin, by_name=True)
        for infos in (first, rest):
            for info in infos:
                etag = self._pins.listed(member.number, info.key, info.etag)
                yield replace(info, etag=etag)

    def writable(self) -> Store:
        """Return the primary.

        Raises: ObjectNotFound if only the primary is empty; InvalidStore if it has another root; as a read.
        """
        self._members.admit_for_writing()
        return self.primary

    def _blob(self, key: str, etag: str | None, read: Callable[[Member, str | None], Blob]) -> Blob:
        def attempt(member: Member) -> Blob:
            member_etag = self._pins.etag(member.number, key, etag)
            data, current = read(member, member_etag)
            token = self._pins.token(member.number, key, current, pinned=etag)
            return Blob(data, token)

        return self._fallback.read(key, attempt)


def primary_store(store: Store) -> Store:
    """Return the primary of several stores, or the store itself.

    Use it for objects that mirrors do not have, whose listing in a mirror would be empty.
    """
    return store.primary if isinstance(store, MirroredStore) else store
