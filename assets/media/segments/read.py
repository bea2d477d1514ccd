"""Given segments: a table beside the media with the stretches of video or audio that become units.

`_segments.csv`, `_segments.jsonl` or `_segments.parquet` in the landing place, one row per unit: `key` (the
object), `start_s` and `end_s` in seconds after the first frame or sample, and optionally `label` and `caption`.
Segments may overlap. An invalid row rejects its object when it lands.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

import pyarrow as pa

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, ObjectNotFound
from loader.json_text import is_text
from loader.modalities.error_origin import is_of_the_machine
from loader.storage import Store

from .tables import TEXTS, rows_of

TABLES = ("_segments.csv", "_segments.jsonl", "_segments.parquet")
MIN_S, MAX_S = 0.02, 600.0
MAX_SEGMENTS = 100_000
"""Most segments per object."""
MAX_TABLE_BYTES = 256 * 2**20
"""Bytes of the largest table as stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Given segment of an object."""

    start_s: float
    """Start in seconds after the first frame or sample."""
    end_s: float
    """End in seconds after the first frame or sample, exclusive."""
    label: str = ""
    """Label of the unit; "" for none."""
    caption: str = ""
    """Caption of the unit; "" keeps the object's own."""

    def span_s(self) -> tuple[Fraction, Fraction]:
        """Return start and end exactly as the written decimals: 0.1 is a tenth."""
        return Fraction(str(self.start_s)), Fraction(str(self.end_s))

    def plain(self) -> dict[str, Any]:
        """Return the segment as a table row."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSegments:
    """Given segments by object, and the objects with invalid rows."""

    by_key: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    """Key of an object -> its segments, by start."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Key of an object -> the fault of its first invalid row."""


SEGMENTS = pa.list_(
    pa.struct(
        [
            ("start_s", pa.float64()),
            ("end_s", pa.float64()),
            ("label", pa.string()),
            ("caption", pa.string()),
        ]
    )
)
"""Type of the column `segments` of raw_objects."""


def read_segments(landing: Store, keys: Collection[str]) -> GivenSegments:
    """Return the segments of these objects, by start; objects without any have no entry.

    Costs a HEAD per table name and one read, and memory for the table's bytes and these objects' rows. An invalid
    row is its object's problem, with its number and value.

    Raises: Corrupt for an unreadable or too large table.
    """
    name, data = _table_of(landing)
    if data is None:
        return GivenSegments()
    place = f"{landing.url.rstrip('/')}/{name}"
    segments: dict[str, dict[tuple[float, float], Segment]] = {}
    problems: dict[str, str] = {}
    try:
        for number, key, row in rows_of(name, data, keys):
            others = segments.setdefault(key, {})
            try:
                _add(others, f"{place}, row {number} (key {key!r})", row)
            except Corrupt as error:
                problems.setdefault(key, str(error))
    except Corrupt:
        raise
    except (pa.ArrowException, OSError, *DAMAGED) as error:
        if is_of_the_machine(error):
            raise
        raise Corrupt(f"{place} cannot be read ({error}); repair it, or take it away") from error
    by_key = {
        key: tuple(spans[times] for times in sorted(spans))
        for key, spans in segments.items()
        if key not in problems
    }
    return GivenSegments(by_key=by_key, problems=problems)


def _table_of(landing: Store) -> tuple[str, bytes | None]:
    """Return the table's name and bytes; None without a table."""
    tables = {}
    for name in TABLES:
        try:
            tables[name] = landing.head(name)
        except ObjectNotFound:
            continue
    if len(tables) > 1:
        raise Corrupt(
            f"{landing.url} holds {' and '.join(tables)}: which of them counts? Take all but one away"
        )
    for name, info in tables.items():
        if info.nbytes > MAX_TABLE_BYTES:
            raise Corrupt(
                f"{landing.url}/{name} has {info.nbytes} bytes; accepted are {MAX_TABLE_BYTES}: split the place into "
                "several sources"
            )
        return name, bytes(landing.get_range(name, 0, info.nbytes, info.etag).data) if info.nbytes else b""
    return "", None


def _add(others: dict[tuple[float, float], Segment], where: str, row: Mapping[str, Any] | ValueError) -> None:
    """Add the segment of one row to its object's. Raises: Corrupt."""
    if isinstance(row, ValueError):
        raise Corrupt(f"{where}: {row}")
    segment = _segment(where, row)
    span = segment.start_s, segment.end_s
    if span in others:
        raise Corrupt(f"{where}: {span[0]} to {span[1]} s is there twice; take one of the rows away")
    if len(others) == MAX_SEGMENTS:
        raise Corrupt(f"{where}: more than {MAX_SEGMENTS} segments of one object; split it")
    others[span] = segment


def _segment(where: str, row: Mapping[str, Any]) -> Segment:
    start_s, end_s = _seconds(where, "start_s", row["start_s"]), _seconds(where, "end_s", row["end_s"])
    if not MIN_S <= end_s - start_s <= MAX_S:
        raise Corrupt(
            f"{where}: start_s={start_s} to end_s={end_s} is {end_s - start_s:.6g} s; accepted are {MIN_S} to "
            f"{MAX_S:.0f} s"
        )
    texts = {name: row.get(name) or "" for name in TEXTS}
    for name, value in texts.items():
        if not is_text(value):
            raise Corrupt(f"{where}: {name}={value!r} is no text")
    return Segment(start_s=start_s, end_s=end_s, **texts)


def _seconds(where: str, name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise Corrupt(f"{where}: {name}={value!r}; accepted are seconds from 0")
    return seconds
