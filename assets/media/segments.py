"""Given segments: a table beside the media that says which stretches of a video or a sound become units.

`_segments.csv`, `_segments.jsonl` or `_segments.parquet` in the landing place, one row per clip: `key` (the object),
`start_s` and `end_s` in seconds after the first frame or sample, and, where wanted, `label` and `caption`. Segments may
overlap. What a row says is checked when its object lands.
"""

import io
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from loader.errors import Corrupt, ObjectNotFound
from loader.storage import Store

TABLES = ("_segments.csv", "_segments.jsonl", "_segments.parquet")
MIN_S, MAX_S = 0.02, 600.0

_NEEDED = ("key", "start_s", "end_s")
_TEXTS = ("label", "caption")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """[start_s, end_s) after the first frame or sample. caption: of the unit; without it the object's own counts."""

    start_s: float
    end_s: float
    label: str = ""
    caption: str = ""

    def span_s(self) -> tuple[Fraction, Fraction]:
        """The decimal numbers that were written, exactly: 0.1 is a tenth."""
        return Fraction(str(self.start_s)), Fraction(str(self.end_s))

    def plain(self) -> dict[str, Any]:
        """For a table."""
        return asdict(self)


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
"""The type of the column `segments` of raw_objects."""


def read_segments(landing: Store, keys: Collection[str]) -> Mapping[str, tuple[Segment, ...]]:
    """The segments of each of these objects, by their start; objects without any have no entry.

    Costs one read of the table, and O(rows of these objects). Raises: Corrupt for a table that cannot be read, and
    for a row of one of these objects that makes no sense, with its number and value.
    """
    name, data = _table_of(landing)
    if data is None:
        return {}
    place = f"{landing.url.rstrip('/')}/{name}"
    try:
        table = _parsed(name, data)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"{place} cannot be read ({error}); repair it, or take it away") from error
    missing = [column for column in _NEEDED if column not in table.column_names]
    if missing:
        raise Corrupt(
            f"{place} has no column {', '.join(missing)}; needed are key, start_s, end_s (and, where wanted, "
            f"label, caption), it has {', '.join(table.column_names)}"
        )
    found: dict[str, list[Segment]] = {}
    for number, row in _rows(table, keys):
        segment = _segment(f"{place}, row {number} (key {row['key']!r})", row)
        others = found.setdefault(row["key"], [])
        if any((one.start_s, one.end_s) == (segment.start_s, segment.end_s) for one in others):
            raise Corrupt(
                f"{place}, row {number} (key {row['key']!r}): {segment.start_s} to {segment.end_s} s is there twice; "
                "take one of the rows away"
            )
        others.append(segment)
    return {key: tuple(sorted(some, key=lambda one: (one.start_s, one.end_s))) for key, some in found.items()}


def _table_of(landing: Store) -> tuple[str, bytes | None]:
    """Its name and bytes; None without one. Raises: Corrupt when there are several."""
    found = {}
    for name in TABLES:
        try:
            found[name] = bytes(landing.get(name).data)
        except ObjectNotFound:
            continue
    if len(found) > 1:
        raise Corrupt(
            f"{landing.url} holds {' and '.join(found)}: which of them counts? Take all but one away"
        )
    return next(iter(found.items()), ("", None))


def _parsed(name: str, data: bytes) -> pa.Table:
    """Numbers as they are written; in csv every value is text, so that the message can say what stands there."""
    source = io.BytesIO(data)
    if name.endswith(".parquet"):
        return pa.parquet.read_table(source)
    if name.endswith(".jsonl"):
        return pa.json.read_json(source)
    header = data.split(b"\n", 1)[0].decode().strip("\r\ufeff").split(",")
    texts = {column.strip('" '): pa.string() for column in header}
    options = pa.csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
    return pa.csv.read_csv(
        source, convert_options=options, parse_options=pa.csv.ParseOptions(newlines_in_values=True)
    )


def _rows(table: pa.Table, keys: Collection[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number from 1, row) of those rows whose key is one of `keys`."""
    columns = [*_NEEDED, *(name for name in _TEXTS if name in table.column_names)]
    table = table.select(columns)
    texts = table["key"].cast(pa.string())  # of keys that are all digits json makes numbers
    table = table.set_column(0, "key", texts)
    wanted = pa.compute.is_in(texts, value_set=pa.array(sorted(keys), pa.string()))
    numbers = pa.compute.indices_nonzero(wanted)
    for number, row in zip(numbers.to_pylist(), table.take(numbers).to_pylist(), strict=True):
        yield number + 1, row


def _segment(where: str, row: Mapping[str, Any]) -> Segment:
    """Raises: Corrupt."""
    start_s, end_s = _seconds(where, "start_s", row["start_s"]), _seconds(where, "end_s", row["end_s"])
    if not MIN_S <= end_s - start_s <= MAX_S:
        raise Corrupt(
            f"{where}: start_s={start_s} to end_s={end_s} is {end_s - start_s:.6g} s; accepted are {MIN_S} to "
            f"{MAX_S:.0f} s"
        )
    texts = {name: row.get(name) or "" for name in _TEXTS}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise Corrupt(f"{where}: {name}={value!r} is no text")
    return Segment(start_s=start_s, end_s=end_s, **texts)


def _seconds(where: str, name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise Corrupt(f"{where}: {name}={value!r}; accepted are seconds from 0")
    return seconds
