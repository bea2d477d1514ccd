"""Read a store's inventory of its objects instead of listing: S3 Inventory, or a Parquet or CSV table of keys.

    s3://inventories/raw/daily/2026-11-20T01-00Z/manifest.json      S3 Inventory, in Parquet or CSV, with its data/
    s3://inventories/raw.parquet, gs://x/report.csv.gz              a table with a header

Columns, under any of their usual names: key or uri, size, etag, last modified, bucket, is_latest, is_delete_marker.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, InvalidStore
from loader.json_text import parse_json_object
from resources.storage import open_place

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("key", "nbytes", "etag", "modified_us")

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

    Columns: key, relative to `place`; nbytes; etag, without quotes; modified_us. An unknown value is null; an unknown
    etag is "". place: the source's URL. options: options of the inventory's store. Memory: about 200 bytes per row.

    Raises: Corrupt if a file contradicts its manifest or has no keys; InvalidStore for another format; StoreError.
    """
    import polars as pl

    folder, _, name = url.rpartition("/")
    if name == "manifest.json":
        frames = [_normal(frame, place, url) for frame in _s3_files(url, options)]
    else:
        store = open_place(folder or ".", options)
        try:
            frames = [_normal(_parsed(store.get(name).data, name, url), place, url)]
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
            kind, files = str(body["fileFormat"]).lower(), list(body["files"])
            header = [column.strip() for column in str(body.get("fileSchema", "")).split(",")]
            named = [(str(file["key"]), str(file.get("MD5checksum", ""))) for file in files]
        except DAMAGED as error:
            raise Corrupt(f"{url} is not the manifest of an S3 Inventory ({error!r})") from error
        if kind not in ("csv", "parquet"):
            raise InvalidStore(f"{url}: an inventory in {kind}; let the bucket write Parquet or CSV")
        for key, md5 in named:
            name = f"data/{key.rsplit('/', 1)[-1]}"
            data = store.get(name).data
            if md5 and hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
                raise Corrupt(f"{config}/{name} is not the file that {url} names: its MD5 differs")
            yield _parsed(data, name, url, header if kind == "csv" else None)
    finally:
        store.close()


def _parsed(data: bytes, name: str, url: str, header: Sequence[str] | None = None) -> "pl.DataFrame":
    # An S3 CSV has no header row, and its keys are URL-encoded.
    import io

    import polars as pl

    try:
        if name.endswith(".parquet"):
            return pl.read_parquet(io.BytesIO(data))
        if header is None and not name.endswith((".csv", ".csv.gz")):
            raise InvalidStore(f"{url}: expected manifest.json, .parquet, .csv or .csv.gz")
        table = pl.read_csv(
            data, has_header=header is None, new_columns=header, infer_schema=False, raise_if_empty=False
        )
        if header is None:
            return table
        key = next(column for column in header if column.lower() == "key")
        return table.with_columns(pl.col(key).map_elements(unquote_plus, return_dtype=pl.String))
    except (pl.exceptions.PolarsError, StopIteration) as error:
        raise Corrupt(f"{url}: {name} cannot be read ({error})") from error


def _normal(table: "pl.DataFrame", place: str, url: str) -> "pl.DataFrame":
    import polars as pl

    plain = {name.lower().replace("_", "").replace("-", "").replace(" ", ""): name for name in table.columns}
    at = {
        what: next((plain[name] for name in names if name in plain), None) for what, names in _NAMES.items()
    }
    if at["key"] is None and at["uri"] is None:
        raise Corrupt(f"{url} has no key column; it has {', '.join(table.columns) or 'none'}")

    def text(what: str) -> pl.Expr:
        return pl.col(at[what] or "").cast(pl.String)

    base = place.rstrip("/") + "/"
    parts = urlsplit(base)
    folder = parts.path.lstrip("/") if "://" in base else ""
    rows = table
    if at["latest"]:
        rows = rows.filter(text("latest").str.to_lowercase() != "false")
    if at["marker"]:
        rows = rows.filter(text("marker").str.to_lowercase() != "true")
    if at["bucket"]:
        rows = rows.filter(text("bucket") == parts.netloc.partition("@")[0])
    prefix, key = (base, text("uri")) if at["key"] is None else (folder, text("key"))
    return rows.filter(key.str.starts_with(prefix)).select(
        key.str.slice(len(prefix)).alias("key"),
        (text("nbytes") if at["nbytes"] else pl.lit(None, pl.String))
        .cast(pl.Int64, strict=False)
        .alias("nbytes"),
        (text("etag") if at["etag"] else pl.lit("")).str.strip_chars('"').fill_null("").alias("etag"),
        _time(table, at["modified"]).alias("modified_us"),
    )


def _time(table: "pl.DataFrame", column: str | None) -> "pl.Expr":
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
