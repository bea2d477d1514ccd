"""A new group for existing parts: the same keys in the same order, computed from their fields."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import Conflict, FieldMismatch, FieldNotFound, InvalidField, PenstockError, TransformFailed
from ...modalities import decoder_for
from ...modalities.video.packet_table import SUFFIX
from ...modalities.video.request import RunDecoder
from ..names import check_field, check_group
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..shards.index import IndexPlace
from ..shards.part import Part
from ..versions.version import Version
from .part_writer import PartWriter, check_case, group_chooser, make_sample
from .spill import Sample

BLOCK_ROWS = 64

Compute = Mapping[str, Callable[[Mapping[str, Any]], Any]]


class LazySample(Mapping[str, Any]):
    """One sample as a mapping: field -> decoded value, and `__key__`; read on request."""

    def __init__(self, block: "_Block", row: int) -> None:
        self._block, self._row = block, row

    def __getitem__(self, field: str) -> Any:
        if field == "__key__":
            return self._block.addresses[self._row].key
        decoder, data = decoder_for(field), self._block.bytes_of(field)[self._row]
        if isinstance(decoder, RunDecoder):
            return decoder.of_run(data, self._block.bytes_of(field + SUFFIX)[self._row])
        return decoder(data, None)

    def bytes_of(self, field: str) -> bytes:
        """Return the field's bytes as they are stored, as packet tables need them."""
        return self._block.bytes_of(field)[self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.fields)

    def __len__(self) -> int:
        return len(self._block.fields)

    def __contains__(self, field: object) -> bool:
        return field == "__key__" or field in self._block.fields

    def get(self, field: str, default: Any = None) -> Any:
        return self[field] if field in self else default  # noqa: SIM401 - this is `get`


class _Block:
    """Rows of one part whose fields are fetched together."""

    def __init__(self, version: Version, position: int, rows: range, fields: Sequence[str]) -> None:
        self._version, self.fields = version, fields
        self.addresses = row_addresses(version, position, rows, fields)
        self._held: dict[str, list[bytes]] = {}

    def bytes_of(self, field: str) -> list[bytes]:
        if field not in self.fields:
            raise FieldNotFound(f"these samples have {', '.join(self.fields)}; {field!r} was asked for")
        if field not in self._held:
            narrowed = [only(address, field) for address in self.addresses]
            self._held[field] = [fields[field] for fields in read_fields(self._version.shard_store, narrowed)]
        return self._held[field]


def only(address: SampleAddress, field: str) -> SampleAddress:
    """Return the address with one field."""
    return SampleAddress(
        key=address.key,
        version=address.version,
        version_id=address.version_id,
        part=address.part,
        row=address.row,
        ordinal=address.ordinal,
        fields={field: address.fields[field]},
    )


def row_addresses(version: Version, position: int, rows: range, fields: Sequence[str]) -> list[SampleAddress]:
    """Return the addresses of a part's rows, excluded ones with ordinal -1."""
    parts = version.parts
    shards = {
        group: parts.shard(group, position)
        for group in parts.groups
        if bool(parts.has_group(group)[position])
    }
    chosen = {field: version.group_of(field) for field in fields}
    out = []
    for row in rows:
        index = {}
        for group, shard in shards.items():
            index_rows = version.indexes.rows(IndexPlace.of(shard), row)
            index[group] = (index_rows, row - index_rows.first_row)
        first, at = next(iter(index.values()))
        places = {}
        for field, group in chosen.items():
            index_rows, local = index[group]
            places[field] = index_rows.address(field, group, shards[group]["path"], local)
        out.append(
            SampleAddress(
                key=first.keys[at],
                version=version.name,
                version_id=version.id,
                part=parts.id(position),
                row=row,
                ordinal=-1,
                fields=places,
            )
        )
    return out


def write_group(
    version: Version, txn: str, group: str, compute: Compute, inputs: Sequence[str] | None
) -> list[Part]:
    """Return a shard of `group` for every part that lacks it. Raises: Conflict without any; TransformFailed."""
    check_group(group)
    if not compute:
        raise InvalidField("add_group was given no fields; pass {'latent.npy': function} or the like")
    there = version.manifest["groups"].get(group, {}).get("field_nbytes", compute)
    if set(there) != set(compute):
        raise FieldMismatch(
            f"group {group!r} of {version.name} has fields {sorted(there)}, not {sorted(compute)}; all parts of a "
            "group have the same fields: choose another group name"
        )
    for field in compute:
        check_field(field)
        if field in version.fields and version.group_of(field) != group:
            raise Conflict(
                f"{version.name} has a field {field!r} in group {version.group_of(field)!r}; choose another"
            )
    check_case([*version.fields, *compute], f"{version.name} with group {group!r}")
    missing = ~version.parts.has_group(group)
    for field in inputs or ():
        missing &= version.parts.has_group(version.group_of(field))
    positions = np.flatnonzero(missing).tolist()
    if not positions:
        raise Conflict(
            f"every part of {version.name} that has {inputs or 'samples'} already has group {group!r}"
        )
    attempt = secrets.token_hex(8)
    return [_write_part(version, position, txn, attempt, group, compute, inputs) for position in positions]


def _write_part(
    version: Version,
    position: int,
    txn: str,
    attempt: str,
    group: str,
    compute: Compute,
    inputs: Sequence[str] | None,
) -> Part:
    parts = version.parts
    part_id = parts.id(position)
    fields = list(inputs or ()) or [
        field for field in version.fields if bool(parts.has_group(version.group_of(field))[position])
    ]
    live = parts.live_members(position)
    writer = PartWriter(
        version.store, txn=txn, attempt=attempt, name=f"{position:05d}", group_of=group_chooser(group, None)
    )
    writer.id = part_id
    try:
        for start in range(0, len(live), BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, len(live)))
            block = _Block(version, position, rows, fields)
            for local, row in enumerate(rows):
                writer.add(_computed(block, local, bool(live[row]), compute))
        return writer.finish(with_samples=False)
    finally:
        writer.close()


def _computed(block: _Block, local: int, live: bool, compute: Compute) -> Sample:
    """Return one row's new fields; an excluded row gets empty ones, uncomputed."""
    address = block.addresses[local]
    if not live:
        return Sample(key=address.key, fields=dict.fromkeys(compute, b""), metadata={}, source={})
    values = {}
    for field, function in compute.items():
        try:
            values[field] = function(LazySample(block, local))
        except PenstockError as error:
            # A damaged input, or a field that is not there: that error is more precise than one around it.
            error.add_note(f"while computing {field!r} of {address.describe()}")
            raise
        except Exception as error:
            raise TransformFailed(
                f"computing {field!r} of {address.describe()} raised {type(error).__name__}: {error}"
            ) from error
    return make_sample(address.key, values)
