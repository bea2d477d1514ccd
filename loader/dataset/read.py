"""Fields of samples as bytes: ranges coalesced per shard, ETag pinned, every CRC-32C checked."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import Changed, Corrupt, ObjectNotFound, PenstockError
from ..storage import Span, Store
from .address import FieldAddress, SampleAddress
from .shard import crc32c

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def read_fields(
    store: Store, addresses: Sequence[SampleAddress], *, pins: dict[str, str] | None = None, run: Map = map
) -> list[dict[str, bytes]]:
    """Per sample, field -> its bytes. Fields of one shard that lie close together share a request.

    pins: shard path -> ETag seen at its first read; a shard that was replaced since raises Changed. `run` may be
    a thread pool's map. Raises: Corrupt with the sample's full address when a checksum is wrong twice; Changed;
    ObjectNotFound; Transient, Throttled past the retry budget.
    """
    pins = {} if pins is None else pins
    by_path: dict[str, list[tuple[int, FieldAddress]]] = {}
    for position, address in enumerate(addresses):
        for place in address.fields.values():
            by_path.setdefault(place.path, []).append((position, place))
    out: list[dict[str, bytes]] = [{} for _ in addresses]

    def read_shard(item: tuple[str, list[tuple[int, FieldAddress]]]) -> None:
        path, wanted = item
        try:
            _read_shard(store, path, wanted, addresses, pins, out)
        except (PenstockError, OSError) as error:
            position, place = wanted[0]
            error.add_note(f"while reading {addresses[position].describe(place.field)}")
            raise

    for _ in run(read_shard, list(by_path.items())):
        pass
    return [
        {name: fields[name] for name in address.fields}
        for fields, address in zip(out, addresses, strict=True)
    ]


def _read_shard(
    store: Store,
    path: str,
    wanted: Sequence[tuple[int, FieldAddress]],
    addresses: Sequence[SampleAddress],
    pins: dict[str, str],
    out: list[dict[str, bytes]],
) -> None:
    spans = [Span(place.offset, place.nbytes) for _, place in wanted]
    try:
        blobs = store.get_ranges(path, spans, etag=pins.get(path))
    except (Corrupt, ObjectNotFound) as error:
        position, place = wanted[0]
        raise type(error)(f"{addresses[position].describe(place.field)}: {error}") from error
    for (position, place), blob in zip(wanted, blobs, strict=True):
        _pin(pins, path, blob.etag, store)
        data = blob.data
        if crc32c(data) != place.crc32c:
            data = _refetch(store, addresses[position], place)
        out[position][place.field] = data


def _pin(pins: dict[str, str], path: str, etag: str, store: Store) -> None:
    if pins.setdefault(path, etag) != etag:
        raise Changed(
            f"{store.url}/{path} was replaced while it was being read; shards are immutable: find out who wrote "
            "there, and run penstock verify"
        )


def _refetch(store: Store, address: SampleAddress, place: FieldAddress) -> bytes:
    """A flipped bit on the way is cured by a second read; one on the disk is not. Raises: Corrupt."""
    data = store.get_range(place.path, place.offset, place.nbytes).data
    found = crc32c(data)
    if found != place.crc32c:
        raise Corrupt(
            f"{address.describe(place.field)} is corrupt: CRC-32C {found:08x}, its index says {place.crc32c:08x}, "
            f"after reading it twice. Run penstock verify {address.version}; restore the shard from a mirror or "
            f"exclude the sample"
        )
    return data
