"""Where a sample lies: what `explain` prints and errors about stored data carry."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldAddress:
    """Payload bytes [offset, offset + nbytes) of `path` (relative to the root) with this CRC-32C."""

    field: str
    group: str
    path: str
    offset: int
    nbytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAddress:
    """One sample of one version and the place of each field asked for."""

    key: str
    version: str
    version_id: str
    part: str
    row: int
    ordinal: int
    fields: Mapping[str, FieldAddress]

    def describe(self, field: str | None = None) -> str:
        """`photos@12/<part> media[1048576:1310720] sample 'ep_31/0120'`, with `.field` when one is named."""
        if field is None or field not in self.fields:
            return f"{self.version}/{self.part} row {self.row} sample {self.key!r}"
        at = self.fields[field]
        return (
            f"{self.version}/{self.part} {at.group}[{at.offset}:{at.offset + at.nbytes}] sample {self.key!r} "
            f"field {field!r} ({at.path})"
        )
