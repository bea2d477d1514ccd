"""Read byte ranges of one shard: pin its ETag, name the sample in errors, read twice if corrupt, report timing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from ...errors import Changed, Corrupt, ObjectNotFound, StoreError
from ...storage import ByteRange, RangeReader
from ...storage.disk.file_handles import FileHandle, FileHandles
from ...storage.requests import retry_corrupt
from ...storage.store import as_disk
from ..shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress
from ..shards.shard import crc32c
from .read_faults import add_fault
from .sha256_store import VerifiedStore
from .shard_pages import Int64s

FindAddress = Callable[[int], SampleAddress]
"""Sample's number in the current list -> its address; called only for messages."""


Lender = Callable[[str, Sequence[tuple[int, int]], str | None], tuple[Sequence[bytes | memoryview], str]]
"""(key, spans, etag) -> (bytes of the spans, etag): `CachedStore.lend_ranges`."""


class ShardRead(NamedTuple):
    """Cost of reading from one shard."""

    first_address: Callable[[], SampleAddress]
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
    """A store of shards, and what its readers share."""

    store: RangeReader
    """Store of the shards."""
    pins: dict[str, str]
    """Shard path -> ETag of its first read, which `pin` adds; a replaced shard raises Changed."""
    on_refetch: Callable[[], None] = lambda: None
    """Called before each second read."""
    on_read: OnRead = lambda _: None
    """Called with each shard's `ShardRead`, in the reading thread."""
    files: FileHandles | None = None
    """Open shards on a local disk, or None."""

    def read_ranges(
        self,
        path: str,
        spans: Sequence[tuple[int, int]],
        first_address: Callable[[], SampleAddress],
        field: str,
        *,
        lent: bool = False,
    ) -> Sequence[bytes | memoryview]:
        """Return the bytes of (offset, nbytes) spans, in order.

        first_address, field: of the first span, for errors. lent: the caller copies the bytes immediately, so that a
        store may lend its memory.

        Raises: Corrupt if the shard ends too early; other store errors. All of them name the address.
        """
        etag = self.pins.get(path)
        # A disk reads all spans with one descriptor.
        disk = as_disk(self.store)
        if disk is not None:
            with self._name_errors(first_address, field):
                data, etag_read = disk.read_each(path, spans, etag=etag)
            self.pin(path, etag_read)
            return data

        # A cache may lend its pages.
        lender: Lender | None = None
        if lent:
            lender = getattr(self.store, "lend_ranges", None)
        if lender is not None:
            with self._name_errors(first_address, field):
                pieces, etag_read = lender(path, spans, etag)
            self.pin(path, etag_read)
            return pieces

        # Any other store reads them by requests, which may reach different objects: check each one's ETag.
        ranges = [ByteRange(*span) for span in spans]
        with self._name_errors(first_address, field):
            blobs = self.store.get_ranges(path, ranges, etag=etag)
        for blob in blobs:
            self.pin(path, blob.etag)
        return [blob.data for blob in blobs]

    def open_shard(
        self,
        path: str,
        offset: Int64s,
        nbytes: Int64s,
        first_address: Callable[[], SampleAddress],
        field: str,
    ) -> FileHandle | None:
        """Return an open shard whose ranges passed the SHA-256 check; None if `read_ranges` must report the error.

        offset, nbytes: int64 [n]. first_address, field: of the first range, for errors.
        """
        assert self.files is not None
        try:
            opened = self.files.get(path, self.pins.get(path))
        except StoreError:  # a context manager would cost as much as the `stat` of the file
            with self._name_errors(first_address, field):
                raise
        if opened is None:
            return None
        handle, etag = opened
        self.pin(path, etag)
        if isinstance(self.store, VerifiedStore):
            is_verified = self.store.is_verified(
                path,
                etag,
                offset,
                nbytes,
                handle.descriptor,
            )
            if not is_verified:
                return None
        return handle

    @contextmanager
    def _name_errors(
        self,
        first_address: Callable[[], SampleAddress],
        field: str,
    ) -> Iterator[None]:
        """Add the first sample's address to store errors, though a Corrupt may be about another sample's bytes."""
        try:
            yield
        except ObjectNotFound as error:
            sample = first_address().describe(field)
            message = f"{sample}: the shard is gone ({error}); restore it from a mirror"
            raise error.with_message(message, what=error.what or field, where=sample) from error
        except StoreError as error:
            sample = first_address().describe(field)
            error.add_note(f"while reading {sample}")
            raise

    def pin(self, path: str, etag: str) -> None:
        """Pin a shard's ETag. Raises: Changed if another one is pinned."""
        pinned = self.pins.setdefault(path, etag)
        if pinned != etag:
            raise Changed(
                f"{self.store.url}/{path} was replaced while it was being read; shards are immutable: find out who "
                "wrote there, and run penstock verify",
                what="ETag",
                where=f"{self.store.url}/{path}",
                given=etag,
                accepted=pinned,
            )

    def report_fault(
        self,
        place: FieldAddress,
        checksum: int,
    ) -> None:
        """Remember a wrong read, and count the second read that follows. checksum: CRC-32C of the bytes that came."""
        self.on_refetch()
        expected: int | None = place.crc32c
        if expected == UNKNOWN_CRC:
            expected = None
        add_fault(
            kind="read",
            store=self.store.url,
            address=place.path,
            extent=(place.offset, place.nbytes),
            expected=expected,
            actual=checksum,
        )

    def read_again(
        self,
        address: SampleAddress,
        place: FieldAddress,
        crc_source: str = "its index",
        wrong: bytes | memoryview | None = None,
    ) -> bytes:
        """Read the field a second time, in case a bit flipped in transit, and return its bytes.

        wrong: what the first read returned; None if the shard ended too early.

        Raises: Corrupt, unless a mirror has correct bytes; Changed.
        """
        if wrong is None:
            self.on_refetch()
        else:
            self.report_fault(place, crc32c(wrong))  # calls `on_refetch`, too
        # This is the second read: only a mirror that has not served the bytes is tried after it.
        read = partial(self._read_checked, address, place, crc_source)
        return retry_corrupt(read, again=0)

    def _read_checked(
        self,
        address: SampleAddress,
        place: FieldAddress,
        crc_source: str,
    ) -> bytes:
        """Read a field and compare its checksum, if it is known. crc_source: the table that has it, for the error."""
        sample = address.describe(place.field)
        advice = (
            f"Run penstock verify {address.version}; restore the shard from a mirror or exclude the sample"
        )
        try:
            blob = self.store.get_range(
                place.path,
                place.offset,
                place.nbytes,
                self.pins.get(place.path),
            )
        except Corrupt as error:
            message = f"{sample} cannot be read: {error}. {advice}"
            raise Corrupt(
                message, what=place.field, where=sample, given=error.given, accepted=error.accepted
            ) from error
        self.pin(place.path, blob.etag)
        checksum = crc32c(blob.data)
        is_known = place.crc32c != UNKNOWN_CRC
        if is_known and checksum != place.crc32c:
            end = place.offset + place.nbytes
            raise Corrupt(
                f"{sample} is corrupt: CRC-32C {checksum:08x}, in {crc_source} {place.crc32c:08x}, "
                f"for bytes [{place.offset}:{end}], after reading it twice. {advice}",
                what=place.field,
                where=sample,
                given=f"CRC-32C {checksum:08x}",
                accepted=f"CRC-32C {place.crc32c:08x} in {crc_source}",
            )
        return blob.data

    def read_again_or_error(
        self,
        address: SampleAddress,
        field: str,
        wrong: bytes | memoryview | None,
    ) -> bytes | Corrupt:
        """Return a sample's whole field from a second read, or the error."""
        place = address.fields[field]
        try:
            return self.read_again(address, place, wrong=wrong)
        except Corrupt as error:
            return error


FindReading = Callable[[int], Reading]
"""Number of a version -> the `Reading` of its shards."""


def extent(spans: Sequence[tuple[int, int]]) -> ByteRange:
    """Return the range from the first byte of (offset, nbytes) spans to the last."""
    if not spans:
        return ByteRange(0, 0)
    start = min(spans)[0]
    ends = [offset + nbytes for offset, nbytes in spans]
    return ByteRange(start, max(ends) - start)
