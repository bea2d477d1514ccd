"""Read the samples table in polars, and decode samples in storage order: for inspection, not training."""

import io
import logging
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, DecodeFailed, FieldNotFound, MissingDependency
from ...json_text import is_text
from ...keywords import did_you_mean
from ...modalities import decoder_for
from ..reading.verified_bucket_reads import read_fields
from ..shards.address import SampleAddress
from ..tables.annotations import edits_of, files_of, with_edits
from ..tables.columns import is_annotation
from ..tables.parquet import TableFile, get_table_bytes, get_tables
from ..tables.table_rows import get_rows
from .expression import names_in, parse_expression

if TYPE_CHECKING:
    import polars

    from .version import Version


Int64s = np.ndarray[Any, np.dtype[np.int64]]


def live_rows(version: "Version", keys: frozenset[str]) -> dict[str, dict[int, str]]:
    """Return part id -> row -> key for the live ones among these keys. Reads every run's key column."""
    import pyarrow.compute as pc  # 40 ms, saved at startup

    rows: dict[str, dict[int, str]] = {}
    key_array = pa.array(sorted(filter(is_text, keys)), pa.string())
    files = [TableFile.from_json(entry) for entry in version.manifest["samples"] if entry["group"] == "keys"]
    for table in get_tables(version.store, files, ["part", "row", "key"]):
        matching = table.filter(pc.is_in(table["key"], value_set=key_array))
        for position, at in zip(
            version.parts.positions(matching["part"]).tolist(), matching.to_pylist(), strict=True
        ):
            if version.parts.live_members(position)[at["row"]]:
                rows.setdefault(at["part"], {})[at["row"]] = at["key"]
    return rows


def live_ordinals(version: "Version", keys: Sequence[str]) -> Int64s:
    """Return each key's int64 live ordinal, -1 if it is not live. Costs as much as `live_rows`."""
    ordinals: dict[str, int] = {}
    parts = version.parts
    for part, members in live_rows(version, frozenset(keys)).items() if keys else ():
        position = parts.position(part)
        live_before = np.cumsum(parts.live_members(position)) - 1
        for row, key in members.items():
            ordinals[key] = int(parts.first_ordinal[position] + live_before[row])
    return np.array([ordinals.get(key, -1) for key in keys], np.int64)


logger = logging.getLogger(__name__)

Bools = np.ndarray[Any, np.dtype[np.bool_]]


def import_polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise MissingDependency(
            "samples tables and where() need polars: pip install 'penstock-data[tables]'"
        ) from error
    return polars


def scan_samples(version: "Version", columns: Sequence[str] | None = None) -> "polars.LazyFrame":
    """Return ordinal, part, row, key and the other columns (or only `columns`), in version order, with annotations."""
    pl = import_polars()
    entries = version.manifest["samples"]
    frame = _in_order(version, _read_group(pl, version, "keys", columns))
    for group in sorted(
        {entry["group"] for entry in files_of(entries, columns, annotations=False)} - {"keys"}
    ):
        frame = _joined(frame, _read_group(pl, version, group, columns))
    frame = with_edits(version.store, entries, frame, columns)
    if version.parts.has_exclusions:
        live = np.concatenate([version.parts.live_members(p) for p in range(len(version.parts))])
        frame = frame.filter(pl.Series("live", live))
    frame = frame.with_row_index("ordinal").with_columns(pl.col("ordinal").cast(pl.Int64))
    lazy: polars.LazyFrame = frame.lazy()
    return lazy if columns is None else lazy.select(["ordinal", *columns])


def live_row(version: "Version", ordinal: int) -> dict[str, Any]:
    """Return column -> value for one sample, as in `scan_samples`, reading one row group per table.

    Raises: InvalidRuntime for an unknown ordinal; Corrupt.
    """
    pl = import_polars()
    parts = version.parts
    (position,), (row,) = parts.locate(np.array([ordinal]))
    place = parts.ids[int(position)].as_py(), int(row)
    at = int(parts.n_rows[: int(position)].sum()) + int(row)
    entries = version.manifest["samples"]
    frame = _group_row(pl, version, "keys", place, at)
    for group in sorted({one["group"] for one in files_of(entries, None, annotations=False)} - {"keys"}):
        frame = _joined(frame, _group_row(pl, version, group, place, at))
    frame = with_edits(version.store, entries, frame, None)
    if frame.height != 1:
        raise Corrupt(
            f"{version.name}: its keys tables have {frame.height} rows of sample {ordinal}; run penstock verify "
            f"{version.name}, and restore what it names from a mirror"
        )
    return {"ordinal": ordinal, **frame.row(0, named=True)}


def sample_rows(
    version: "Version", addresses: Sequence[SampleAddress], group: str, columns: Collection[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (index in `addresses`, column -> value) for a column group, without annotations.

    Reads only the needed row groups of large tables. Columns that a file lacks are left out.

    Raises: Corrupt if tables are damaged, or not in part order.
    """
    parts = version.parts
    first_row = np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)])
    positions = parts.positions([address.part for address in addresses])
    place = first_row[positions] + np.array([address.row for address in addresses], np.int64)
    own = ["part", "row", *(["key"] if group == "keys" else [])]
    start = 0
    for entry in version.manifest["samples"]:
        if entry["group"] != group or is_annotation(entry):
            continue
        end = start + entry["n_rows"]
        own_rows = np.flatnonzero((start <= place) & (place < end))
        if len(own_rows):
            names = [*own, *(name for name in columns if name in entry["columns"])]
            table = get_rows(version.store, TableFile.from_json(entry), place[own_rows] - start, names)
            for i, row in zip(own_rows.tolist(), table.to_pylist(), strict=True):
                of = addresses[i]
                values = [row.pop(name) for name in own]
                if values != [of.part, of.row, of.key][: len(own)]:
                    what = "provenance is" if group == "keys" else "columns are"
                    raise Corrupt(
                        f"{version.store.url}/{entry['path']} row {int(place[i]) - start} is {values[-1]!r}, row "
                        f"{values[1]} of part {values[0]}; in the order of the parts it is of {of.describe()}, so its "
                        f"{what} not told: run penstock verify {version.name}"
                    )
                yield i, row
        start = end


def _group_row(pl: Any, version: "Version", group: str, place: tuple[str, int], at: int) -> Any:
    # at: the row's number in part order.
    files = [one for one in version.manifest["samples"] if one["group"] == group and not is_annotation(one)]
    ends = np.cumsum([file["n_rows"] for file in files])
    if at < ends[-1] == int(version.parts.n_rows.sum()):
        number = int(np.searchsorted(ends, at, side="right"))
        file, start = files[number], at - int(ends[number]) + files[number]["n_rows"]
        table = get_rows(version.store, TableFile.from_json(dict(file)), np.array([start]))
        frame = pl.DataFrame(table)
        if frame.select("part", "row").rows() == [place]:
            names = dict.fromkeys(name for one in files for name in one["columns"])
            return frame.with_columns(pl.lit(None).alias(name) for name in names if name not in frame.columns)
    part, row = place
    return _read_group(pl, version, group, None, (pl.col("part") == part) & (pl.col("row") == row))


def scan_edits(version: "Version", column: str) -> "polars.LazyFrame":
    import_polars()
    if column not in _columns(version):
        raise FieldNotFound(
            f"{version.name} has no column {column!r}{did_you_mean(column, _columns(version)) or ';'} it has "
            f"{', '.join(sorted(_columns(version)))}"
        )
    where = scan_samples(version, ["part", "row", "key"])
    edits = edits_of(version.store, version.manifest["samples"], column)
    shown = [name for name in edits.columns if name not in ("part", "row")]
    joined = edits.lazy().join(where, on=["part", "row"], how="inner", maintain_order="left")
    return joined.select("ordinal", "key", *shown)


def _columns(version: "Version") -> dict[str, Any]:
    columns: dict[str, Any] = version.manifest["columns"]
    return columns


def _read_group(
    pl: Any, version: "Version", group: str, columns: Sequence[str] | None, place: Any = None
) -> Any:
    entries = [entry for entry in version.manifest["samples"] if entry["group"] == group]
    files = entries if group == "keys" else files_of(entries, columns, annotations=False)
    runs = []
    for file in files:
        data = io.BytesIO(get_table_bytes(version.store, TableFile.from_json(dict(file))))
        column_names = (
            None if columns is None else ["part", "row", *(n for n in file["columns"] if n in columns)]
        )
        runs.append(
            pl.read_parquet(data, columns=column_names)
            if place is None
            else pl.scan_parquet(data).filter(place).collect()
        )
    return pl.concat(runs, how="diagonal_relaxed")


def _joined(frame: "polars.DataFrame", extra: "polars.DataFrame") -> "polars.DataFrame":
    place = ["part", "row"]
    if frame.height == extra.height and frame.select(place).equals(extra.select(place)):
        return frame.hstack(
            extra.drop(place)
        )  # most tables match row by row: a join takes ten times the time and memory
    return frame.join(extra, on=place, how="left", maintain_order="left")


def _in_order(version: "Version", keys: "polars.DataFrame") -> "polars.DataFrame":
    """Return the keys table sorted by part and row; earlier releases merged some tables out of order."""
    parts, runs = version.parts, keys["part"].rle().struct
    start = np.cumsum(parts.n_rows) - parts.n_rows
    position = parts.positions(runs.field("value").to_list())
    place = np.repeat(start[position], runs.field("len").to_numpy()) + keys["row"].to_numpy()
    whole = np.arange(int(parts.n_rows.sum()))
    if np.array_equal(place, whole):
        return keys
    order = np.argsort(place, kind="stable")
    if not np.array_equal(place[order], whole):
        raise Corrupt(
            f"{version.name}: its keys tables have {len(keys)} rows, which are not the {len(whole)} of its parts, each "
            f"once; run penstock verify {version.name}, and restore what it names from a mirror"
        )
    logger.warning(
        "%s: an earlier release left its keys tables out of the order of the parts; they are put in order as they are "
        "read. Delete views/ of the root: views of it that were stored then are of other samples, and are made again",
        version.name,
    )
    return keys[order]


def live_where(version: "Version", predicate: str) -> Bools:
    """Return bool [len(version)]: True for live ordinals that satisfy an SQL expression; null is false.

    Raises: FieldNotFound for an unknown column or a malformed expression.
    """
    truth = live_values(version, [predicate], f"where({predicate!r})", as_truth=True)
    members: Bools = truth.to_series().to_numpy().astype(bool)
    return members


def live_values(
    version: "Version", expressions: Sequence[str], what: str, *, as_truth: bool = False
) -> "polars.DataFrame":
    """Return one column per SQL expression, named "0", "1", ..., with one row per live ordinal.

    what: the expressions' purpose, for messages. as_truth: return bools, null as False. Raises: FieldNotFound as
    `live_where`.
    """
    truths = len(expressions) if as_truth else 0
    return live_columns(version, [(one, what) for one in expressions], truths)


def check_names(version: "Version", predicate: str) -> None:
    """Check the names in an SQL expression, and the whole expression if polars is imported. Raises: FieldNotFound.

    Names are compared with the columns first, so that training with stored views imports no polars.
    """
    words = names_in(predicate) if isinstance(predicate, str) else {""}
    if "polars" not in sys.modules and words <= {name.upper() for name in _known(version)}:
        return
    try:
        pl = import_polars()
    except MissingDependency:
        return  # polars is needed for evaluation, unless a stored view has the result
    _parsed(pl, version, predicate, f"where({predicate!r})")


def _parsed(pl: Any, version: "Version", text: object, what: str) -> "polars.Expr":
    expression, known = parse_expression(pl, text, what), _known(version)
    if unknown := sorted(set(expression.meta.root_names()) - known):
        raise FieldNotFound(
            f"{what} names {unknown}{did_you_mean(unknown[0], known) or ';'} the samples table of {version.name} has "
            f"{', '.join(sorted(known))}"
        )
    return expression


def _known(version: "Version") -> set[str]:
    return {*_columns(version), "part", "row"}


def live_columns(version: "Version", asked: Sequence[tuple[str, str]], truths: int = 0) -> "polars.DataFrame":
    """Return the same as `live_values`, reading the tables once. asked: (expression, purpose) pairs.

    truths: number of leading columns to return as bools, null as False. Raises: FieldNotFound as `live_where`.
    """
    pl = import_polars()
    columns = [_parsed(pl, version, one, what) for one, what in asked]
    what = " and ".join(dict.fromkeys(what for _, what in asked))
    names = sorted({name for one in columns for name in one.meta.root_names()})
    columns = [one.cast(pl.Boolean).fill_null(False) if i < truths else one for i, one in enumerate(columns)]
    try:
        # A constant, such as "1 = 1", has one row: the ordinals next to it extend it to all samples.
        frame: polars.DataFrame = (
            scan_samples(version, names)
            .select("ordinal", *(one.alias(str(i)) for i, one in enumerate(columns)))
            .drop("ordinal")
            .collect()
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise FieldNotFound(f"{what} cannot be evaluated on {version.name}: {error}") from error
    if frame.height != len(version):
        raise Corrupt(
            f"{version.name}: {what} gave {frame.height} rows for {len(version)} samples; run penstock verify"
        )
    return frame


KEY = "__key__"
"""Name of the key in a sample; no field name may start with it."""
VIDEO = frozenset(("mp4", "mov", "webm", "mkv", "run"))
BLOCK = 64
SHOWN_CHARACTERS = 200


def picked(index: object, n: int) -> Int64s:
    """Return the numbers that an index or slice selects from `n`. Raises: IndexError; TypeError."""
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.int64)
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise TypeError(f"[{index!r}]: samples are numbered from 0; pass an integer or a slice")
    at = index.__index__()
    if not -n <= at < n:
        raise IndexError(f"[{at}]: there are {n} samples")
    return np.array([at % n], np.int64)


def decoded(version: "Version", fields: Sequence[str], ordinals: Int64s) -> Iterator[dict[str, Any]]:
    """Yield `KEY` and field -> value for live ordinals, decoded by extension; absent fields are left out.

    Videos stay bytes. Raises: DecodeFailed, with version, key and field; Corrupt; StoreError.
    """
    for start in range(0, len(ordinals), BLOCK):
        block = ordinals[start : start + BLOCK]
        for key, data in zip(version.keys(block), _stored(version, fields, block), strict=True):
            yield {KEY: key, **{field: _value(version, key, field, data[field]) for field in data}}


def table_of(version: "Version", fields: Sequence[str], ordinals: Int64s) -> "polars.DataFrame":
    """Return one row per live ordinal: ordinal, key, fields (long values as sizes), and samples-table columns.

    Raises: as `decoded`; MissingDependency.
    """
    pl = import_polars()
    rows = []
    for ordinal, data in zip(ordinals.tolist(), _stored(version, fields, ordinals), strict=True):
        facts = live_row(version, ordinal)
        cells = {field: _cell(field, data[field]) for field in data}
        shown = {name: value for name, value in facts.items() if name not in ("part", "row")}
        rows.append({"ordinal": ordinal, "key": facts["key"], **cells, **shown})
    table: polars.DataFrame = pl.DataFrame(rows, infer_schema_length=None)
    return table


def _stored(version: "Version", fields: Sequence[str], ordinals: Int64s) -> list[dict[str, bytes]]:
    groups = {field: version.group_of(field) for field in fields}
    part, _ = version.parts.locate(ordinals)
    has = {group: version.parts.has_group(group)[part] for group in set(groups.values())}
    of_each = [tuple(field for field in fields if has[groups[field]][row]) for row in range(len(ordinals))]
    samples: list[dict[str, bytes]] = [{} for _ in of_each]
    for names in filter(None, set(of_each)):
        rows = [row for row, own_names in enumerate(of_each) if own_names == names]
        read = read_fields(version.shard_store, version.address(ordinals[rows], names))
        for row, data in zip(rows, read, strict=True):
            samples[row] = {field: data[field] for field in names}
    return samples


def _value(version: "Version", key: str, field: str, data: bytes) -> Any:
    if _extension(field) in VIDEO:  # the caller chooses frames: loader.video(frames=8)(data, None)
        return data
    try:
        return decoder_for(field)(data, None)
    except DecodeFailed as error:
        raise DecodeFailed(f"{version.name}, sample {key!r}, field {field!r}: {error}") from error


def _cell(field: str, data: bytes) -> object:
    if _extension(field) not in ("cls", "txt", "json"):
        return f"{len(data):,} bytes"
    try:
        value = decoder_for(field)(data, None)
    except DecodeFailed:
        return "damaged"
    return value if isinstance(value, int) else str(value)[:SHOWN_CHARACTERS]


def _extension(field: str) -> str:
    return field.rpartition(".")[2].lower()
