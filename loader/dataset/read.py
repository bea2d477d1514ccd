"""Fields of samples as bytes: ranges coalesced per shard, ETag pinned, every CRC-32C checked."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import Changed, Corrupt, ObjectNotFound, StoreError
from ..storage import Span, Store
from .address import FieldAddress, SampleAddress
from .shard import crc32c

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def read_fields(
    store: Store,
    addresses: Sequence[SampleAddress],
    *,
    pins: dict[str, str] | None = None,
    run: Map = map,
    on_refetch: Callable[[], None] = lambda: None,
) -> list[dict[str, bytes]]:
    """Per sample, field -> its bytes. Fields of one shard that lie close together share a request.

    pins: shard path -> ETag seen at its first read; a shard that was replaced since raises Changed. `run` may be
    a thread pool's map. on_refetch: called before each read that is repeated. Raises: Corrupt with the sample's
    full address when a checksum is wrong twice, or the shard ends too early; Changed; ObjectNotFound; Transient,
    Throttled past the retry budget.
    """
    pins = {} if pins is None else pins
    by_path: dict[str, list[tuple[SampleAddress, FieldAddress]]] = {}
    for address in addresses:
        for place in address.fields.values():
            by_path.setdefault(place.path, []).append((address, place))

    def read_shard(item: tuple[str, list[tuple[SampleAddress, FieldAddress]]]) -> list[bytes]:
        return _read_shard(store, *item, pins, on_refetch)

    # Taken in order, shard by shard: which of several errors is raised does not depend on threads.
    read = dict(zip(by_path, map(iter, run(read_shard, list(by_path.items()))), strict=True))
    return [{name: next(read[place.path]) for name, place in address.fields.items()} for address in addresses]


def _read_shard(
    store: Store,
    path: str,
    wanted: Sequence[tuple[SampleAddress, FieldAddress]],
    pins: dict[str, str],
    on_refetch: Callable[[], None],
) -> list[bytes]:
    spans = [Span(place.offset, place.nbytes) for _, place in wanted]
    try:
        blobs = store.get_ranges(path, spans, etag=pins.get(path))
    except Corrupt:  # it ends too early for one of them: ask for each, to know for which
        return [_refetch(store, address, place, pins, on_refetch) for address, place in wanted]
    except ObjectNotFound as error:
        address, place = wanted[0]
        raise ObjectNotFound(
            f"{address.describe(place.field)}: the shard is gone ({error}); restore it from a mirror"
        ) from error
    except StoreError as error:
        address, place = wanted[0]
        error.add_note(f"while reading {address.describe(place.field)}")
        raise
    for blob in blobs:
        _pin(pins, path, blob.etag, store)
    return [
        blob.data if crc32c(blob.data) == place.crc32c else _refetch(store, address, place, pins, on_refetch)
        for (address, place), blob in zip(wanted, blobs, strict=True)
    ]


def _pin(pins: dict[str, str], path: str, etag: str, store: Store) -> None:
    if pins.setdefault(path, etag) != etag:
        raise Changed(
            f"{store.url}/{path} was replaced while it was being read; shards are immutable: find out who wrote "
            "there, and run penstock verify"
        )


def _refetch(
    store: Store,
    address: SampleAddress,
    place: FieldAddress,
    pins: dict[str, str],
    on_refetch: Callable[[], None],
) -> bytes:
    """A flipped bit on the way is cured by a second read; one on the disk is not. Raises: Corrupt; Changed."""
    on_refetch()
    advice = f"Run penstock verify {address.version}; restore the shard from a mirror or exclude the sample"
    try:
        blob = store.get_range(place.path, place.offset, place.nbytes, pins.get(place.path))
    except Corrupt as error:
        raise Corrupt(f"{address.describe(place.field)} is cut off: {error}. {advice}") from error
    _pin(pins, place.path, blob.etag, store)
    found = crc32c(blob.data)
    if found != place.crc32c:
        raise Corrupt(
            f"{address.describe(place.field)} is corrupt: CRC-32C {found:08x}, its index says {place.crc32c:08x}, "
            f"after reading it twice. {advice}"
        )
    return blob.data
