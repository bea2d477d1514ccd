"""Compute a new group of fields from a version's samples: `root.add_group`. Each part gets one more shard."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...errors import Conflict, FieldMismatch, FieldNotFound, InvalidField, PenstockError, TransformFailed
from ...modalities import find_decoder
from ...modalities.fields import PACKETS_SUFFIX, last_word
from ..names import check_field, check_group
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..shards.index import IndexPlace
from ..shards.part import Part
from ..versions.version import Version
from .part_writer import PartWriter, check_case, group_chooser, make_sample
from .spill import Sample

BLOCK_ROWS = 64  # samples whose fields are in memory together
Compute = Mapping[str, Callable[[Mapping[str, Any]], Any]]


class LazySample(Mapping[str, Any]):
    """One sample as a mapping: field -> decoded value, and `__key__`. Fields are read on request."""

    def __init__(self, block: "_Block", row: int) -> None:
        self._block = block
        self._row = row

    def __getitem__(self, field: str) -> Any:
        if field == "__key__":
            return self._block.addresses[self._row].key
        decoder = find_decoder(field)
        data = self.bytes_of(field)
        if last_word(field) == "run":  # packets without a container
            packet_table = self.bytes_of(field + PACKETS_SUFFIX)
            return cast(Any, decoder).of_run(data, packet_table)
        return decoder(data, None)

    def bytes_of(self, field: str) -> bytes:
        """Return the encoded bytes of a field (docs/robots.md)."""
        return self._block.column(field)[self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._block.fields)

    def __len__(self) -> int:
        return len(self._block.fields)

    def __contains__(self, field: object) -> bool:
        return field == "__key__" or field in self._block.fields

    def get(self, field: str, default: Any = None) -> Any:
        # `Mapping.get` returns the default for any KeyError, also for one that a decoder raises.
        if field not in self:
            return default
        return self[field]


class _Block:
    """Neighbouring rows of a part; a field is read for all of them when it is first used."""

    def __init__(
        self,
        version: Version,
        position: int,
        rows: range,
        fields: Sequence[str],
    ) -> None:
        self._version = version
        self.fields = fields
        self.addresses = _row_addresses(
            version,
            position,
            rows,
            fields,
        )
        self._values: dict[str, list[bytes]] = {}

    def column(self, field: str) -> list[bytes]:
        """Return the field's bytes for each row."""
        if field not in self.fields:
            raise FieldNotFound(
                f"these samples have {', '.join(self.fields)}; {field!r} was asked for",
                what="field",
                given=field,
                accepted=list(self.fields),
            )
        if field not in self._values:
            addresses = [_with_field_only(address, field) for address in self.addresses]
            fields_of_rows = read_fields(self._version.shard_store, addresses)
            self._values[field] = [fields[field] for fields in fields_of_rows]
        return self._values[field]


def _with_field_only(address: SampleAddress, field: str) -> SampleAddress:
    return replace(address, fields={field: address.fields[field]})


def _row_addresses(
    version: Version,
    position: int,
    rows: range,
    fields: Sequence[str],
) -> list[SampleAddress]:
    """Return the addresses of a part's rows; excluded rows have ordinal -1."""
    parts = version.parts
    shards = {}
    for group in parts.groups:
        if bool(parts.has_group(group)[position]):
            shards[group] = parts.shard(group, position)
    group_by_field = {field: version.group_of(field) for field in fields}

    addresses = []
    for row in rows:
        indexes = {}
        for group, shard in shards.items():
            indexes[group] = version.indexes.rows(IndexPlace.of(shard), row)
        places = {}
        for field, group in group_by_field.items():
            index = indexes[group]
            places[field] = index.address(
                field,
                group,
                shards[group]["path"],
                row - index.first_row,
            )
        index_with_keys = next(iter(indexes.values()))  # every group's index has the same keys
        addresses.append(
            SampleAddress(
                key=index_with_keys.keys[row - index_with_keys.first_row],
                version=version.name,
                version_id=version.id,
                part=parts.id(position),
                row=row,
                ordinal=-1,
                fields=places,
            )
        )
    return addresses


def write_group(
    version: Version,
    txn: str,
    group: str,
    compute: Compute,
    inputs: Sequence[str] | None,
) -> list[Part]:
    """Write a shard of `group` for every part that lacks one, and has all inputs.

    Raises: Conflict if there is no such part; TransformFailed.
    """
    _check_new_group(version, group, compute)
    needs_group = ~version.parts.has_group(group)  # bool [parts]
    for field in inputs or ():
        needs_group &= version.parts.has_group(version.group_of(field))
    positions = np.flatnonzero(needs_group).tolist()
    if not positions:
        raise Conflict(
            f"every part of {version.name} that has {inputs or 'samples'} already has group {group!r}",
            what="group",
            where=version.name,
            given=group,
        )
    attempt = secrets.token_hex(8)
    parts = []
    for position in positions:
        part = _write_part(
            version,
            position,
            txn,
            attempt,
            group,
            compute,
            inputs,
        )
        parts.append(part)
    return parts


def _check_new_group(
    version: Version,
    group: str,
    compute: Compute,
) -> None:
    """Refuse fields that other parts of the group lack, or that another group of the version has."""
    check_group(group)
    if not compute:
        raise InvalidField(
            "add_group was given no fields; pass {'latent.npy': function} or the like",
            what="fields",
            given="none",
        )
    known_group = version.manifest["groups"].get(group)
    if known_group is not None and set(known_group["field_nbytes"]) != set(compute):
        raise FieldMismatch(
            f"group {group!r} of {version.name} has fields {sorted(known_group['field_nbytes'])}, "
            f"not {sorted(compute)}; all parts of a group have the same fields: choose another group name",
            what="fields",
            where=f"group {group!r} of {version.name}",
            given=sorted(compute),
            accepted=sorted(known_group["field_nbytes"]),
        )
    for field in compute:
        check_field(field)
        if field in version.fields and version.group_of(field) != group:
            raise Conflict(
                f"{version.name} has a field {field!r} in group {version.group_of(field)!r}; choose another",
                what="field",
                where=version.name,
                given=field,
            )
    check_case([*version.fields, *compute], f"{version.name} with group {group!r}")


def _write_part(
    version: Version,
    position: int,
    txn: str,
    attempt: str,
    group: str,
    compute: Compute,
    inputs: Sequence[str] | None,
) -> Part:
    """Compute the group for one part and upload its shard. inputs: fields to read; None for all that the part has."""
    parts = version.parts
    fields = list(inputs or ())
    if not fields:
        fields = [name for name in version.fields if parts.has_group(version.group_of(name))[position]]
    is_live = parts.live_members(position)  # bool [rows of the part]
    n_rows = len(is_live)
    writer = PartWriter(
        version.store,
        txn=txn,
        attempt=attempt,
        name=f"{position:05d}",
        group_of=group_chooser(group, None),
    )
    # The new shard joins the published part, whose id it repeats.
    writer.id = parts.id(position)
    try:
        for start in range(0, n_rows, BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, n_rows))
            block = _Block(
                version,
                position,
                rows,
                fields,
            )
            for row_in_block, row in enumerate(rows):
                sample = _compute_sample(
                    block,
                    row_in_block,
                    bool(is_live[row]),
                    compute,
                )
                writer.add(sample)
        return writer.finish(with_samples=False)
    finally:
        writer.close()


def _compute_sample(
    block: _Block,
    row_in_block: int,
    is_live: bool,
    compute: Compute,
) -> Sample:
    """Return the sample with the computed fields. Raises: TransformFailed; PenstockError of a function unchanged."""
    address = block.addresses[row_in_block]
    if not is_live:
        # Each shard of a part has a row for each sample: an excluded one has empty fields.
        empty_fields = dict.fromkeys(compute, b"")
        return Sample(
            key=address.key,
            fields=empty_fields,
            metadata={},
            source={},
        )
    values = {}
    for field, function in compute.items():
        try:
            values[field] = function(LazySample(block, row_in_block))
        except PenstockError as error:
            # A damaged input or a missing field, for example: a TransformFailed would say less.
            error.add_note(f"while computing {field!r} of {address.describe()}")
            raise
        except Exception as error:
            raise TransformFailed(
                f"computing {field!r} of {address.describe()} raised {type(error).__name__}: {error}",
                what=field,
                where=address.describe(),
                given=type(error).__name__,
            ) from error
    return make_sample(address.key, values)
