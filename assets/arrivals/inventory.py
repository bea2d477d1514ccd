"""Read an inventory of a source: S3 Inventory, or a Parquet or CSV table with columns of any usual name."""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, InvalidStore
from loader.json_text import parse_json_object
from resources.storage import open_place

if TYPE_CHECKING:
    import polars as pl

# Meaning of a column -> its usual names, in lower case without "_", "-" and blanks; the first that is there counts.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "key": ("key", "name", "path", "objectname"),
    "uri": ("uri", "url"),
    "bucket": ("bucket", "bucketname"),
    "nbytes": ("size", "nbytes", "contentlength", "bytes"),
    "etag": ("etag",),
    "modified": ("lastmodifieddate", "lastmodified", "updated", "modified", "timecreated", "modifiedus"),
    "latest": ("islatest",),
    "marker": ("isdeletemarker",),
}


def read_inventory(url: str, options: Mapping[str, str], place: str) -> "pl.DataFrame":
    """Return one row per object of the source, sorted by key.

    Columns: key, relative to `place`; nbytes; etag, without quotes; modified_us. Unknown values are null; an unknown
    etag is "". options: options of the inventory's store. Memory: about 200 bytes per row.

    Raises: Corrupt if a file contradicts its manifest or has no keys; InvalidStore for another format; StoreError.
    """
    import polars as pl

    folder, _, name = url.rpartition("/")
    if name == "manifest.json":
        frames = [_normal(frame, place, url) for frame in _s3_files(url, options)]
    else:
        store = open_place(folder or ".", options)
        try:
            frames = [_normal(_parse_listing(store.get(name).data, name, url), place, url)]
        finally:
            store.close()
    return pl.concat(frames).unique("key", keep="last").sort("key")


def _s3_files(url: str, options: Mapping[str, str]) -> Iterator["pl.DataFrame"]:
    # S3 writes data/ next to the manifest's folder.
    config, _, rest = url.removesuffix("/manifest.json").rpartition("/")
    store = open_place(config, options)
    try:
        try:
            body = parse_json_object(store.get(f"{rest}/manifest.json").data)
            kind = str(body["fileFormat"]).lower()
            files = list(body["files"])
            header = [column.strip() for column in str(body.get("fileSchema", "")).split(",")]
            named = [(str(file["key"]), str(file.get("MD5checksum", ""))) for file in files]
        except DAMAGED as error:
            raise Corrupt(
                f"{url} is not the manifest of an S3 Inventory ({error!r})",
                what="manifest",
                where=url,
                given=type(error).__name__,
            ) from error
        if kind not in ("csv", "parquet"):
            raise InvalidStore(
                f"{url}: an inventory in {kind}; let the bucket write Parquet or CSV",
                what="fileFormat",
                where=url,
                given=kind,
                accepted=["parquet", "csv"],
            )
        for key, md5 in named:
            name = f"data/{key.rsplit('/', 1)[-1]}"
            data = store.get(name).data
            if md5 and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
                raise Corrupt(
                    f"{config}/{name} is not the file that {url} names: its MD5 differs",
                    what="MD5",
                    where=f"{config}/{name}",
                    accepted=md5,
                )
            yield _parse_listing(data, name, url, header if kind == "csv" else None)
    finally:
        store.close()


def _parse_listing(
    data: bytes,
    name: str,
    url: str,
    header: Sequence[str] | None = None,
) -> "pl.DataFrame":
    # An S3 CSV has no header row, and its keys are URL-encoded.
    import polars as pl

    try:
        if name.endswith(".parquet"):
            return pl.read_parquet(io.BytesIO(data))
        if header is None and not name.endswith((".csv", ".csv.gz")):
            raise InvalidStore(
                f"{url}: expected manifest.json, .parquet, .csv or .csv.gz",
                what="inventory",
                where=url,
                accepted="manifest.json, .parquet, .csv or .csv.gz",
            )
        table = pl.read_csv(
            data,
            has_header=header is None,
            new_columns=header,
            infer_schema=False,
            raise_if_empty=False,
        )
        if header is None:
            return table
        key = next(column for column in header if column.lower() == "key")
        return table.with_columns(pl.col(key).map_elements(unquote_plus, return_dtype=pl.String))
    except (pl.exceptions.PolarsError, StopIteration) as error:
        raise Corrupt(
            f"{url}: {name} cannot be read ({error})", what=name, where=url, given=type(error).__name__
        ) from error


def _normal(table: "pl.DataFrame", place: str, url: str) -> "pl.DataFrame":
    """Return an inventory's rows below `place` with the columns of `read_inventory`."""
    import polars as pl

    column_of_meaning = _columns_by_meaning(table.columns)
    if "key" not in column_of_meaning and "uri" not in column_of_meaning:
        raise Corrupt(
            f"{url} has no key column; it has {', '.join(table.columns) or 'none'}",
            what="key",
            where=url,
            given=table.columns,
        )

    def text(meaning: str) -> pl.Expr:
        """Return a column as text; nulls if the table lacks it."""
        if meaning in column_of_meaning:
            return pl.col(column_of_meaning[meaning]).cast(pl.String)
        return pl.lit(None, pl.String)

    base = place.rstrip("/") + "/"
    parts = urlsplit(base)
    folder = ""  # of the source, in its bucket
    if "://" in base:
        folder = parts.path.lstrip("/")
    rows = table
    if "latest" in column_of_meaning:
        rows = rows.filter(text("latest").str.to_lowercase() != "false")
    if "marker" in column_of_meaning:
        rows = rows.filter(text("marker").str.to_lowercase() != "true")
    if "bucket" in column_of_meaning:
        rows = rows.filter(text("bucket") == parts.netloc.partition("@")[0])
    if "key" in column_of_meaning:  # a key begins at the bucket
        key = text("key")
        prefix = folder
    else:
        key = text("uri")
        prefix = base
    etag = text("etag").str.strip_chars('"').fill_null("")
    return rows.filter(key.str.starts_with(prefix)).select(
        key.str.slice(len(prefix)).alias("key"),
        text("nbytes").cast(pl.Int64, strict=False).alias("nbytes"),
        etag.alias("etag"),
        _time(table, column_of_meaning.get("modified")).alias("modified_us"),
    )


def _columns_by_meaning(names: Sequence[str]) -> dict[str, str]:
    """Return meaning (`_NAMES`) -> the table's own name of that column."""
    own_names = {name.lower().replace("_", "").replace("-", "").replace(" ", ""): name for name in names}
    columns = {}
    for meaning, usual_names in _NAMES.items():
        for name in usual_names:
            if name in own_names:
                columns[meaning] = own_names[name]
                break
    return columns


def _time(table: "pl.DataFrame", column: str | None) -> "pl.Expr":
    """Return a column of times as microseconds since 1970; numbers are such already."""
    import polars as pl

    if column is None:
        return pl.lit(None, pl.Int64)
    kind: Any = table.schema[column]
    if kind.is_numeric():
        return pl.col(column).cast(pl.Int64)
    time = pl.col(column)
    if kind == pl.String:
        time = time.str.to_datetime(time_unit="us", time_zone="UTC", strict=False)
    return time.dt.epoch("us")
