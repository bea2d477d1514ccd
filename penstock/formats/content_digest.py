"""Digest of a version's content that is independent of sample order and layout.

It is the sum modulo 2**256 of one SHA-256 per field and metadata row of the live samples, over these parts, each
preceded by its length (uint64, little-endian):

- field: `field`, key, field name, nbytes (uint64), CRC-32C (uint32)
- field, if all bytes are read: `payload`, key, field name, SHA-256 of the bytes
- row: `row`, key, JSON of the metadata columns that are not null, by name; no provenance
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any, NamedTuple

from loader import Version
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.errors import InvalidRuntime

from ..progress import progress
from ..threads import check_workers, in_threads
from ..units import size
from .exporter import ADDRESSES, ExportSelection, WorkUnit, select

UNIT_SAMPLES = 16 * ADDRESSES


@dataclass(slots=True, kw_only=True)
class DigestReport:
    version: str
    """Version name."""
    digest: str = ""
    """`c-` (lengths and checksums) or `cf-` (all bytes), then 64 hex digits; "" if a part failed."""
    samples: int = 0
    """Live samples."""
    nbytes: int = 0
    """Total bytes of the samples' fields."""
    failures: list[str] = field(default_factory=list)
    """One error per unreadable part."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        if self.failures:
            lines = [f"  failed: {why}" for why in self.failures]
            return "\n".join(["no digest", *lines])
        return f"{self.digest}  {self.version}: {self.samples} samples, {size(self.nbytes)}"


class _Sum(NamedTuple):
    total: int
    n: int
    nbytes: int


def content_digest(
    version: Version, *, full: bool = False, without: Collection[str] = (), workers: int = 4
) -> DigestReport:
    """Return the digest of a version's live samples. Memory: one row of the samples table per sample.

    full: verify every byte, instead of trusting the checksums in the indexes.
    without: fields and metadata columns to leave out.

    Raises: InvalidRuntime if registered bytes have no checksums and `full` is False; the errors of `select`.
    """
    check_workers(workers)
    # Provenance is not a content: an import and a registration of one source have one digest.
    provenance = [name for name in version.manifest["columns"] if name in SOURCE_COLUMNS and name != "key"]
    selection = select(version, None, {*without, *provenance})
    report = DigestReport(version=version.name)
    total = 0
    work = _DigestWork(selection, full)
    finished = in_threads(work, selection.by_part(UNIT_SAMPLES), workers, report.failures)
    for unit_sum in progress(finished, "digest", lambda unit: unit.n, selection.n_samples):
        total += unit_sum.total
        report.samples += unit_sum.n
        report.nbytes += unit_sum.nbytes
    if not report.failures:
        prefix = "cf" if full else "c"
        report.digest = f"{prefix}-{total % 2**256:064x}"
    return report


@dataclass(frozen=True, slots=True)
class _DigestWork:
    selection: ExportSelection
    full: bool

    def __call__(self, unit: WorkUnit) -> _Sum:
        records = self._payloads(unit) if self.full else self._checksums(unit)
        total = nbytes = 0
        for record, n in records:
            # A sum does not depend on the order, and unlike XOR it counts repeated samples.
            total += int.from_bytes(record, "little")
            nbytes += n
        return _Sum(total, len(unit.ordinals), nbytes)

    def _payloads(self, unit: WorkUnit) -> Iterator[tuple[bytes, int]]:
        for sample in self.selection.samples(unit):
            key = sample.key.encode()
            for name, data in sample.fields.items():
                digest = hashlib.sha256(data).digest()
                yield _hash(b"payload", key, name.encode(), digest), len(data)
            yield _row(key, sample.columns), 0

    def _checksums(self, unit: WorkUnit) -> Iterator[tuple[bytes, int]]:
        version = self.selection.version
        for start in range(0, len(unit.ordinals), ADDRESSES):
            ordinals = unit.ordinals[start : start + ADDRESSES]
            addresses = version.address(ordinals, unit.fields)
            rows = self.selection.rows(ordinals)
            for address, columns in zip(addresses, rows, strict=True):
                key = address.key.encode()
                for name, at in address.fields.items():
                    if at.crc32c == UNKNOWN_CRC:
                        raise InvalidRuntime(
                            f"{name} of sample {address.key!r} is registered, and its checksum is not known: "
                            f"penstock seal {version.name} first, or penstock digest {version.name} --full, which "
                            "reads all bytes"
                        )
                    nbytes = at.nbytes.to_bytes(8, "little")
                    crc = at.crc32c.to_bytes(4, "little")
                    yield _hash(b"field", key, name.encode(), nbytes, crc), at.nbytes
                yield _row(key, columns), 0


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _row(key: bytes, columns: dict[str, Any]) -> bytes:
    text = json.dumps(columns, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return _hash(b"row", key, text.encode("utf-8", "surrogatepass"))


def _plain(value: object) -> object:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        # An integer: a float of seconds would lose digits.
        return value // timedelta(microseconds=1)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
