"""Read byte ranges of one shard: pin its ETag, name the sample in errors, read twice if corrupt, report timing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from ...errors import Changed, Corrupt, ObjectNotFound, StoreError
from ...storage import ByteRange, RangeReader
from ...storage.disk.file_handles import FileHandle, FileHandles
from ...storage.requests import retry_corrupt
from ...storage.store import disk_of
from ..shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress
from ..shards.shard import crc32c
from .read_faults import add_fault
from .sha256_store import Int64s, VerifiedStore

AddressOf = Callable[[int], SampleAddress]
"""Sample's number in the current list -> its address; called only for messages."""


Lender = Callable[[str, Sequence[tuple[int, int]], str | None], tuple[Sequence[bytes | memoryview], str]]
"""(key, spans, etag) -> (bytes of the spans, etag): `CachedStore.lend_ranges`."""


class ShardRead(NamedTuple):
    """Cost of reading from one shard."""

    first: Callable[[], SampleAddress]
    """Returns the address of the first sample."""
    path: str
    span: ByteRange
    """Range from the first requested byte to the last."""
    fetch_s: float
    """Seconds spent reading, second reads included."""
    verify_s: float
    """Seconds of verification."""


OnRead = Callable[[ShardRead], None]


class Reading(NamedTuple):
    store: RangeReader
    """Store of the shards."""
    pins: dict[str, str]
    """Shard path -> ETag of its first read; a replaced shard raises Changed."""
    on_refetch: Callable[[], None] = lambda: None
    """Called before each second read."""
    on_read: OnRead = lambda _: None
    """Called with each shard's `ShardRead`, in the reading thread."""
    files: FileHandles | None = None
    """Open shards on a local disk, or None."""

    def ranges(
        self,
        path: str,
        spans: Sequence[tuple[int, int]],
        first: Callable[[], SampleAddress],
        field: str,
        *,
        lent: bool = False,
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of (offset, nbytes) spans, in order.

        first, field: address and field of the first span, for errors. lent: the caller copies the bytes immediately, so
        that a store may lend its memory.

        Raises: Corrupt if the shard ends too early; other store errors. All of them name the address.
        """
        store, etag = self.store, self.pins.get(path)
        disk = disk_of(store)
        if disk is not None:
            with self._named_errors(first, field):
                data, etag_read = disk.read_each(path, spans, etag=etag)
            self.pin(path, etag_read)
            return data
        lender: Lender | None = getattr(store, "lend_ranges", None) if lent else None
        if lender is not None:
            with self._named_errors(first, field):
                pieces, etag_read = lender(path, spans, etag)
            self.pin(path, etag_read)
            return pieces
        with self._named_errors(first, field):
            blobs = store.get_ranges(path, [ByteRange(*span) for span in spans], etag=etag)
        for blob in blobs:
            self.pin(path, blob.etag)
        return [blob.data for blob in blobs]

    def opened(
        self, path: str, offset: Int64s, nbytes: Int64s, first: Callable[[], SampleAddress], field: str
    ) -> FileHandle | None:
        """Return an open shard whose ranges passed the SHA-256 check; None if `ranges` must report the error.

        offset, nbytes: int64 [n]. first, field: address and field of the first range, for errors.
        """
        assert self.files is not None
        try:
            pin = self.files.get(path, self.pins.get(path))
        except StoreError:  # a context manager would cost as much as the `stat` of the file
            with self._named_errors(first, field):
                raise
        if pin is None:
            return None
        handle, etag = pin
        self.pin(path, etag)
        store = self.store
        if isinstance(store, VerifiedStore) and not store.is_verified(
            path, etag, offset, nbytes, handle.descriptor
        ):
            return None
        return handle

    @contextmanager
    def _named_errors(self, first: Callable[[], SampleAddress], field: str) -> Iterator[None]:
        """Add the first sample's address to store errors; a Corrupt may concern another sample."""
        try:
            yield
        except ObjectNotFound as error:
            raise ObjectNotFound(
                f"{first().describe(field)}: the shard is gone ({error}); restore it from a mirror"
            ) from error
        except StoreError as error:
            error.add_note(f"while reading {first().describe(field)}")
            raise

    def pin(self, path: str, etag: str) -> None:
        """Pin a shard's ETag. Raises: Changed if another one is pinned."""
        if self.pins.setdefault(path, etag) != etag:
            raise Changed(
                f"{self.store.url}/{path} was replaced while it was being read; shards are immutable: find out who "
                "wrote there, and run penstock verify"
            )

    def fault(self, place: FieldAddress, checksum: int) -> None:
        """Remember a wrong read, and count the second one. checksum: CRC-32C of what came."""
        self.on_refetch()
        expected = None if place.crc32c == UNKNOWN_CRC else place.crc32c
        add_fault("read", self.store.url, place.path, (place.offset, place.nbytes), expected, checksum)

    def again(
        self,
        address: SampleAddress,
        place: FieldAddress,
        said_by: str = "its index",
        wrong: bytes | memoryview | None = None,
    ) -> bytes:
        """Read the field a second time, in case a bit flipped in transit, and return its bytes.

        wrong: what the first read returned; None if the shard ended too early.

        Raises: Corrupt, unless a mirror has correct bytes; Changed.
        """
        if wrong is None:
            self.on_refetch()
        else:
            self.fault(place, crc32c(wrong))
        return retry_corrupt(partial(self._again, address, place, said_by), again=0)

    def _again(self, address: SampleAddress, place: FieldAddress, said_by: str) -> bytes:
        advice = (
            f"Run penstock verify {address.version}; restore the shard from a mirror or exclude the sample"
        )
        try:
            blob = self.store.get_range(place.path, place.offset, place.nbytes, self.pins.get(place.path))
        except Corrupt as error:
            raise Corrupt(f"{address.describe(place.field)} cannot be read: {error}. {advice}") from error
        self.pin(place.path, blob.etag)
        checksum = crc32c(blob.data)
        if checksum != place.crc32c != UNKNOWN_CRC:
            raise Corrupt(
                f"{address.describe(place.field)} is corrupt: CRC-32C {checksum:08x}, in {said_by} {place.crc32c:08x}, "
                f"for bytes [{place.offset}:{place.offset + place.nbytes}], after reading it twice. {advice}"
            )
        return blob.data

    def again_or_error(
        self, address: SampleAddress, field: str, wrong: bytes | memoryview | None
    ) -> bytes | Corrupt:
        """Return a sample's whole field from a second read, or the error."""
        try:
            return self.again(address, address.fields[field], wrong=wrong)
        except Corrupt as error:
            return error


ReadingOf = Callable[[int], Reading]
"""Number of a version -> the `Reading` of its shards."""


def extent(spans: Sequence[tuple[int, int]]) -> ByteRange:
    low = min(spans, default=(0, 0))[0]
    return ByteRange(low, max(map(sum, spans), default=0) - low)
