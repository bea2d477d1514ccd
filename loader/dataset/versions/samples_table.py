"""Read the samples table in polars: expressions on its columns, and keys. For inspection, not training."""

import io
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, FieldNotFound, MissingDependency
from ...json_text import is_text
from ...keywords import did_you_mean
from ..tables.annotations import read_edits, select_files, with_edits
from ..tables.parquet import TableFile, get_table_bytes, integers, take_rows
from ..tables.table_rows import get_rows, rows_of_keys
from .expression import parse_expression, sql_names

if TYPE_CHECKING:
    import polars

    from ..reading.sample_places import VersionData

WHOLE_BELOW_BYTES = 64 * 2**20
"""Bytes below which a file is read whole for some of its columns."""

logger = logging.getLogger(__name__)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Scan = Callable[[Any, Sequence[str]], "polars.LazyFrame"]
"""Returns ordinal and these columns of the live samples, in version order."""


def live_rows(version: "VersionData", keys: frozenset[str]) -> dict[str, dict[int, str]]:
    """Return part id -> row -> key for the live ones among these keys. Reads every run's key column."""
    rows: dict[str, dict[int, str]] = {}
    for live, _ in _live_matches(version, _read_rows(version, keys)):
        for sample in live.to_pylist():
            part_rows = rows.setdefault(sample["part"], {})
            part_rows[sample["row"]] = sample["key"]
    return rows


def live_ordinals(version: "VersionData", keys: Sequence[str]) -> Int64s:
    """Return each key's int64 live ordinal, -1 if it is not live. Costs as much as `live_rows`."""
    return ordinals_in_tables(version, _read_rows(version, frozenset(keys)), keys)


def ordinals_in_tables(
    version: "VersionData",
    tables: Iterable[pa.Table],
    keys: Sequence[str],
) -> Int64s:
    """Return each key's int64 live ordinal, -1 if it is not live.

    tables: part, row and key of all rows with these keys.
    """
    ordinal_by_key: dict[str, int] = {}
    for live, ordinals in _live_matches(version, tables):
        live_keys = live["key"].to_pylist()
        ordinal_by_key.update(zip(live_keys, ordinals.tolist(), strict=True))
    return np.array([ordinal_by_key.get(key, -1) for key in keys], np.int64)


def _read_rows(version: "VersionData", keys: frozenset[str]) -> Iterator[pa.Table]:
    """Yield part, row and key of the rows with these keys, a table per file."""
    # A text with half a character is not a key, and Arrow cannot hold it.
    texts = [key for key in keys if is_text(key)]
    if not texts:
        return
    files = key_files(version)
    yield from rows_of_keys(version.store, files, texts)


def key_files(version: "VersionData") -> list[TableFile]:
    """Return the tables with a version's keys."""
    entries = version.manifest["samples"]
    return [TableFile.from_json(entry) for entry in entries if entry["group"] == "keys"]


def _live_matches(version: "VersionData", tables: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, Int64s]]:
    """Yield (part, row and key of the live rows; int64 [rows], live ordinals) of each table."""
    parts = version.parts
    for matching in tables:
        positions = parts.positions(matching["part"])
        rows = integers(matching["row"])
        ordinals = parts.live_ordinals(positions, rows)
        is_live = ordinals >= 0
        yield take_rows(matching, np.flatnonzero(is_live)), ordinals[is_live]


def import_polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise MissingDependency(
            "samples tables and where() need polars: pip install 'penstock-data[tables]'"
        ) from error
    return polars


def scan_samples(version: "VersionData", columns: Sequence[str] | None = None) -> "polars.LazyFrame":
    """Return ordinal, part, row, key and the other columns (or only `columns`), in version order, with annotations."""
    pl = import_polars()
    entries = version.manifest["samples"]
    frame = _in_order(
        version,
        read_group(
            pl,
            version,
            "keys",
            columns,
        ),
    )
    for group in other_groups(entries, columns):
        frame = join_group(
            frame,
            read_group(
                pl,
                version,
                group,
                columns,
            ),
        )
    frame = with_edits(
        version.store,
        entries,
        frame,
        columns,
    )
    parts = version.parts
    if parts.has_exclusions:
        live_members = [parts.live_members(position) for position in range(len(parts))]
        frame = frame.filter(pl.Series("live", np.concatenate(live_members)))
    # Numbered after the filter: an ordinal counts live samples only.
    frame = frame.with_row_index("ordinal").with_columns(pl.col("ordinal").cast(pl.Int64))
    lazy: polars.LazyFrame = frame.lazy()
    if columns is None:
        return lazy
    return lazy.select(["ordinal", *columns])


def other_groups(entries: Sequence[Mapping[str, Any]], columns: Sequence[str] | None) -> list[str]:
    """Return the column groups with these columns (None: all), except keys and annotations."""
    files = select_files(entries, columns, annotations=False)
    groups = {file["group"] for file in files}
    return sorted(groups - {"keys"})


def scan_edits(version: "VersionData", column: str) -> "polars.LazyFrame":
    """Return the edits of a column for live samples, oldest first: ordinal, key, and `read_edits` without the place.

    Raises: FieldNotFound.
    """
    import_polars()
    columns = version.manifest["columns"]
    if column not in columns:
        hint = did_you_mean(column, columns) or ";"
        raise FieldNotFound(
            f"{version.name} has no column {column!r}{hint} it has {', '.join(sorted(columns))}",
            what=column,
            where=version.name,
            accepted=sorted(columns),
        )
    live_keys = scan_samples(version, ["part", "row", "key"])
    edits = read_edits(version.store, version.manifest["samples"], column)
    edit_columns = [name for name in edits.columns if name not in ("part", "row")]
    joined = edits.lazy().join(
        live_keys,
        on=["part", "row"],
        how="inner",
        maintain_order="left",
    )
    return joined.select("ordinal", "key", *edit_columns)


def read_group(
    pl: Any,
    version: "VersionData",
    group: str,
    columns: Sequence[str] | None,
    where: Any = None,
) -> Any:
    """Return the rows of a column group: part, row, and its columns among `columns` (None: all).

    where: polars expression; only rows that satisfy it.
    """
    files = [entry for entry in version.manifest["samples"] if entry["group"] == group]
    if group != "keys":
        files = select_files(files, columns, annotations=False)
    frames = []
    for file in files:
        if where is None and columns is not None and file["nbytes"] > WHOLE_BELOW_BYTES:
            frames.append(_read_columns(pl, version, file, columns))
            continue
        data = io.BytesIO(get_table_bytes(version.store, TableFile.from_json(dict(file))))
        if where is not None:
            frames.append(pl.scan_parquet(data).filter(where).collect())
            continue
        names = None  # reads all
        if columns is not None:
            file_columns = [name for name in file["columns"] if name in columns]
            names = ["part", "row", *file_columns]
        frames.append(pl.read_parquet(data, columns=names))
    return pl.concat(frames, how="diagonal_relaxed")


def _read_columns(
    pl: Any,
    version: "VersionData",
    file: Mapping[str, Any],
    columns: Sequence[str],
) -> Any:
    """Return part, row, and the columns of a file among `columns`.

    Reads a few row groups at a time: a large file need not fit in memory.
    """
    file_columns = [name for name in file["columns"] if name in columns]
    all_rows = np.arange(file["n_rows"])
    table = get_rows(
        version.store,
        TableFile.from_json(dict(file)),
        all_rows,
        ["part", "row", *file_columns],
    )
    return pl.from_arrow(table)


def join_group(frame: "polars.DataFrame", extra: "polars.DataFrame") -> "polars.DataFrame":
    place = ["part", "row"]
    # Most tables match row by row: a join takes ten times the time and memory.
    if frame.height == extra.height and frame.select(place).equals(extra.select(place)):
        return frame.hstack(extra.drop(place))
    return frame.join(
        extra,
        on=place,
        how="left",
        maintain_order="left",
    )


def _in_order(version: "VersionData", keys: "polars.DataFrame") -> "polars.DataFrame":
    """Return the keys table sorted by part and row; earlier releases merged some tables out of order."""
    n_rows = version.parts.n_rows
    first_row = np.cumsum(n_rows) - n_rows  # [parts]: rows before each part
    runs = keys["part"].rle().struct  # (part, number of its neighbouring rows)
    positions = version.parts.positions(runs.field("value").to_list())
    part_starts = np.repeat(first_row[positions], runs.field("len").to_numpy())
    place = part_starts + keys["row"].to_numpy()  # [rows]: number of each row in part order
    whole = np.arange(int(n_rows.sum()))
    if np.array_equal(place, whole):
        return keys
    order = np.argsort(place, kind="stable")
    if not np.array_equal(place[order], whole):
        raise Corrupt(
            f"{version.name}: its keys tables have {len(keys)} rows, which are not the {len(whole)} of its parts, each "
            f"once; run penstock verify {version.name}, and restore what it names from a mirror",
            what="keys tables",
            where=version.name,
            given=len(keys),
            accepted=len(whole),
        )
    logger.warning(
        "%s: an earlier release left its keys tables out of the order of the parts; they are put in order as they are "
        "read. Delete views/ of the root: views of it that were stored then are of other samples, and are made again",
        version.name,
    )
    return keys[order]


def live_where(version: "VersionData", predicate: str) -> Bools:
    """Return bool [len(version)]: True for live ordinals that satisfy an SQL expression; null is false.

    Raises: FieldNotFound for an unknown column or a malformed expression.
    """
    truth = live_values(
        version,
        [predicate],
        f"where({predicate!r})",
        as_truth=True,
    )
    members: Bools = truth.to_series().to_numpy().astype(bool)
    return members


def live_values(
    version: "VersionData",
    expressions: Sequence[str],
    what: str,
    *,
    as_truth: bool = False,
) -> "polars.DataFrame":
    """Return one column per SQL expression, named "0", "1", ..., with one row per live ordinal.

    what: the expressions' purpose, for messages. as_truth: return bools, null as False. Raises: FieldNotFound as
    `live_where`.
    """
    n_truths = 0
    if as_truth:
        n_truths = len(expressions)
    queries = [(expression, what) for expression in expressions]
    return live_columns(version, queries, n_truths)


def check_names(version: "VersionData", predicate: str) -> None:
    """Check the names in an SQL expression, and the whole expression if polars is imported. Raises: FieldNotFound.

    Names are compared with the columns first, so that training with stored views imports no polars.
    """
    words = {""}
    if isinstance(predicate, str):
        words = sql_names(predicate)
    column_names = {name.upper() for name in _expression_names(version)}
    if "polars" not in sys.modules and words <= column_names:
        return
    try:
        pl = import_polars()
    except MissingDependency:
        return  # polars is needed for evaluation, unless a stored view has the result
    _parse_expression(
        pl,
        version,
        predicate,
        f"where({predicate!r})",
    )


def expression_columns(
    version: "VersionData",
    text: str,
    what: str,
    extra: Collection[str] = (),
) -> set[str]:
    """Return the columns that an SQL expression names. Reads no table. what: its purpose, for messages.

    extra: names that it may use besides the samples table's.
    Raises: FieldNotFound for an unknown column or a malformed expression; MissingDependency without polars.
    """
    expression = _parse_expression(
        import_polars(),
        version,
        text,
        what,
        extra,
    )
    return set(expression.meta.root_names())


def _parse_expression(
    pl: Any,
    version: "VersionData",
    text: object,
    what: str,
    extra: Collection[str] = (),
) -> "polars.Expr":
    expression = parse_expression(pl, text, what)
    columns = _expression_names(version) | set(extra)
    unknown = sorted(set(expression.meta.root_names()) - columns)
    if unknown:
        hint = did_you_mean(unknown[0], columns) or ";"
        raise FieldNotFound(
            f"{what} names {unknown}{hint} the samples table of {version.name} has {', '.join(sorted(columns))}",
            what=what,
            where=version.name,
            given=unknown,
            accepted=sorted(columns),
        )
    return expression


def _expression_names(version: "VersionData") -> set[str]:
    """Return the names that an expression may use."""
    return {*version.manifest["columns"], "part", "row"}


def live_columns(
    version: "VersionData",
    queries: Sequence[tuple[str, str]],
    truths: int = 0,
    scan: "Scan | None" = None,
    extra: Collection[str] = (),
) -> "polars.DataFrame":
    """Return the same as `live_values`, reading the tables once. queries: (expression, purpose) pairs.

    truths: number of leading columns to return as bools, null as False. scan: replaces `scan_samples`, for a caller
    that has columns in memory, or only some rows.
    extra: names of columns that only `scan` has.
    Raises: FieldNotFound as `live_where`.
    """
    pl = import_polars()
    columns = []
    names: set[str] = set()
    for number, (text, purpose) in enumerate(queries):
        expression = _parse_expression(
            pl,
            version,
            text,
            purpose,
            extra,
        )
        names.update(expression.meta.root_names())
        if number < truths:
            expression = expression.cast(pl.Boolean).fill_null(False)
        columns.append(expression.alias(str(number)))
    what = " and ".join(dict.fromkeys(purpose for _, purpose in queries))
    try:
        # A constant, such as "1 = 1", has one row: the ordinals next to it extend it to all samples.
        rows = (scan or scan_samples)(version, sorted(names))
        lazy = rows.select("ordinal", *columns)
        frame: polars.DataFrame = lazy.drop("ordinal").collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise FieldNotFound(
            f"{what} cannot be evaluated on {version.name}: {error}",
            what=what,
            where=version.name,
            given=[text for text, _ in queries],
        ) from error
    if scan is None and frame.height != len(version):
        raise Corrupt(
            f"{version.name}: {what} gave {frame.height} rows for {len(version)} samples; run penstock verify",
            what=what,
            where=version.name,
            given=frame.height,
            accepted=len(version),
        )
    return frame
