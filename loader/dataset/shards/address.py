"""Address of a sample: `explain` prints it, and errors about stored data carry it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

UNKNOWN_CRC = -1
"""Stands for an unknown CRC-32C, as of registered bytes before sealing."""


class Described(Protocol):
    def describe(self, field: str | None = None) -> str:
        """Return its human-readable address, with the field's if one is named."""


def crc_text(crc: int) -> str:
    if crc == UNKNOWN_CRC:
        return ""
    return f"{crc:08x}"


def text_crc(text: str) -> int:
    if not text:
        return UNKNOWN_CRC
    return int(text, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldAddress:
    """Location of one field's payload bytes."""

    field: str
    """Field name."""
    group: str
    """Group of fields that the shard holds."""
    path: str
    """Path in the root."""
    offset: int
    """First byte."""
    nbytes: int
    """Number of bytes."""
    crc32c: int
    """CRC-32C of the bytes; `UNKNOWN_CRC` if not computed yet."""

    def _to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "path": self.path,
            "offset": self.offset,
            "nbytes": self.nbytes,
            "crc32c": crc_text(self.crc32c),
        }

    @staticmethod
    def _from_json(field: str, body: Mapping[str, Any]) -> "FieldAddress":
        return FieldAddress(
            field=field,
            group=body["group"],
            path=body["path"],
            offset=body["offset"],
            nbytes=body["nbytes"],
            crc32c=text_crc(body["crc32c"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAddress:
    """One sample of one version, with the address of each requested field."""

    key: str
    version: str
    """Version name, such as "photos@3"."""
    version_id: str
    """"v-" and sha256 hex of the manifest."""
    part: str
    """Part id."""
    row: int
    """Row of the sample in its part."""
    ordinal: int
    """Number of the live sample in the version."""
    fields: Mapping[str, FieldAddress]
    """Field name -> address; empty if no field was requested."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: key, version, version_id, part, row, ordinal, and each field's address."""
        return {
            "key": self.key,
            "version": self.version,
            "version_id": self.version_id,
            "part": self.part,
            "row": self.row,
            "ordinal": self.ordinal,
            "fields": {name: address._to_json() for name, address in self.fields.items()},
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "SampleAddress":
        fields = {name: FieldAddress._from_json(name, field) for name, field in body["fields"].items()}
        return SampleAddress(
            key=body["key"],
            version=body["version"],
            version_id=body["version_id"],
            part=body["part"],
            row=body["row"],
            ordinal=body["ordinal"],
            fields=fields,
        )

    def describe(self, field: str | None = None) -> str:
        if field is None or field not in self.fields:
            return f"{self.version}/{self.part} row {self.row} sample {self.key!r}"
        address = self.fields[field]
        end = address.offset + address.nbytes
        return (
            f"{self.version}/{self.part} {address.group}[{address.offset}:{end}] sample {self.key!r} "
            f"field {field!r} ({address.path})"
        )
