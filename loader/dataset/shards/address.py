"""Address of a sample: `explain` prints it, and errors about stored data carry it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

UNKNOWN_CRC = -1
"""Stands for an unknown CRC-32C, as of registered bytes before sealing."""

_SAMPLE = ("key", "version", "version_id", "part", "row", "ordinal")
_PLACE = ("group", "path", "offset", "nbytes")


class Described(Protocol):
    def describe(self, field: str | None = None) -> str:
        """Return its human-readable address, with the field's if one is named."""


def crc_text(crc: int) -> str:
    return "" if crc == UNKNOWN_CRC else f"{crc:08x}"


def crc_of(text: str) -> int:
    return int(text, 16) if text else UNKNOWN_CRC


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
            **{name: getattr(self, name) for name in _SAMPLE},
            "fields": {
                name: {**{of: getattr(place, of) for of in _PLACE}, "crc32c": crc_text(place.crc32c)}
                for name, place in self.fields.items()
            },
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "SampleAddress":
        fields = {
            name: FieldAddress(field=name, **{of: place[of] for of in _PLACE}, crc32c=crc_of(place["crc32c"]))
            for name, place in body["fields"].items()
        }
        return SampleAddress(**{name: body[name] for name in _SAMPLE}, fields=fields)

    def describe(self, field: str | None = None) -> str:
        if field is None or field not in self.fields:
            return f"{self.version}/{self.part} row {self.row} sample {self.key!r}"
        at = self.fields[field]
        return (
            f"{self.version}/{self.part} {at.group}[{at.offset}:{at.offset + at.nbytes}] sample {self.key!r} "
            f"field {field!r} ({at.path})"
        )
