"""Reconcile a source, by a listing or an inventory, with all manifests of the dataset.

    late:         present, in no batch, and old enough to have been found
    overwritten:  present with another etag than in its batch
    vanished:     in a batch, no longer present

Late and overwritten objects become batches. Costs a listing of the source and a GET per manifest. Memory: 1 kB per
object. An inventory is S3 Inventory, or a Parquet or CSV table with columns of any usual name.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

from loader.dataset.log.entries import DAMAGED
from loader.dataset.tables.parquet import TableFile, put_named_table
from loader.errors import Corrupt, Forbidden, InvalidStore, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import ObjectInfo, Store
from loader.storage.store import Refusals, list_place
from loader.storage.threads import DaemonPool
from resources.storage import open_place

from ..sources import JOINED, Sieve, Source
from .batch_manifests import Book, batch_numbers, manifests
from .make_batches import is_there, make_batches, raw_object, unseen
from .progress import TickDataset, batched_objects, read_progress

if TYPE_CHECKING:
    import polars as pl


COLUMNS = ("key", "nbytes", "etag", "modified_us")

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
    import io

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

    plain = {name.lower().replace("_", "").replace("-", "").replace(" ", ""): name for name in table.columns}
    # Meaning of a column -> its name here, None without one.
    at = {
        what: next((plain[name] for name in names if name in plain), None) for what, names in _NAMES.items()
    }
    if at["key"] is None and at["uri"] is None:
        raise Corrupt(
            f"{url} has no key column; it has {', '.join(table.columns) or 'none'}",
            what="key",
            where=url,
            given=table.columns,
        )

    def text(what: str) -> pl.Expr:
        return pl.col(at[what] or "").cast(pl.String)

    base = place.rstrip("/") + "/"
    parts = urlsplit(base)
    folder = ""
    if "://" in base:
        folder = parts.path.lstrip("/")
    rows = table
    if at["latest"]:
        rows = rows.filter(text("latest").str.to_lowercase() != "false")
    if at["marker"]:
        rows = rows.filter(text("marker").str.to_lowercase() != "true")
    if at["bucket"]:
        rows = rows.filter(text("bucket") == parts.netloc.partition("@")[0])
    if at["key"] is None:
        key = text("uri")
        prefix = base
    else:  # a key begins at the bucket
        key = text("key")
        prefix = folder
    return rows.filter(key.str.starts_with(prefix)).select(
        key.str.slice(len(prefix)).alias("key"),
        (text("nbytes") if at["nbytes"] else pl.lit(None, pl.String))
        .cast(pl.Int64, strict=False)
        .alias("nbytes"),
        (text("etag") if at["etag"] else pl.lit("")).str.strip_chars('"').fill_null("").alias("etag"),
        _time(table, at["modified"]).alias("modified_us"),
    )


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


FRESH_S = 3600.0
"""Seconds added to `max_wait_s`; younger objects are the sensor's."""

_CHUNK = 65_536  # objects per chunk
_MANIFESTS = 64  # manifests read at a time
_AT_ONCE = 16  # parallel requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Result of a reconciliation."""

    source: str
    """Name of the source."""
    differences: "pl.DataFrame"
    """Status, key, uri, nbytes, etag, modified_us, batch (number, 0 for none), sorted by status and key."""
    n_there: int
    """Objects in the source."""
    n_batched: int
    """Objects of the source that are in batches."""
    n_fresh: int
    """Unbatched objects that wait, or are too young."""
    not_taken: Mapping[str, int]
    """Reason -> skipped objects."""
    batches: list[str] = field(default_factory=list)
    """Keys of the new batches."""
    table: TableFile | None = None
    """Table of the differences; None if not written."""

    def count(self, status: str) -> int:
        """Return the number of objects with this status: late, overwritten or vanished."""
        return int((self.differences["status"] == status).sum())


def reconcile(
    dataset: TickDataset,
    source: Source,
    place: Store,
    *,
    inventory: str = "",
    write: bool = True,
) -> Reconciled:
    """Compare a source with the manifests, and batch the objects that are in no batch.

    inventory: URL; "" lists the source. write: False only reports.

    Raises: InvalidStore for an inventory if raw objects have several files; Corrupt for an unreadable manifest or
    inventory.
    """
    import polars as pl

    if inventory and source.format in JOINED:
        raise InvalidStore(
            f"an inventory lists files, but a raw object of {source.format} has several: omit the inventory",
            what="inventory",
            given=source.format,
        )
    refusals = Refusals()
    if inventory:
        listed = read_inventory(inventory, source.options, place.url)
    else:
        listed = _list_source(place, source, refusals)
    present, not_taken = _sift(listed, source)
    if refusals.n:
        not_taken["not_listed"] = not_taken.get("not_listed", 0) + refusals.n
    base = place.url.rstrip("/") + "/"
    tag = pl.col("etag").str.strip_chars('"').alias("tag")  # S3 Inventory has etags without quotes
    present = present.with_columns((base + pl.col("key")).alias("uri"), tag)
    known = _known_objects(dataset, place.url, source.prefix).with_columns(tag)
    new = present.join(known.select("uri"), on="uri", how="anti")
    progress = read_progress(dataset.store, dataset.name, source.name)
    young_us = dataset.now_us - int((dataset.limits.max_wait_s + FRESH_S) * 1_000_000)
    # No difference of clocks explains a later date: when the object arrived is unknown.
    latest_us = dataset.now_us + int(FRESH_S * 1_000_000)
    is_fresh = pl.col("modified_us").is_between(young_us, latest_us, closed="none").fill_null(value=False)
    is_fresh |= pl.col("uri").is_in(list(progress.waiting))
    late = new.filter(~is_fresh)
    # An object that was batched again is in several batches: any etag of these is known, and the last batch counts.
    other = present.filter((pl.col("tag") != "") & ~is_fresh).join(known, on=["uri", "tag"], how="anti")
    overwritten = other.join(known.select("uri", "batch").unique("uri", keep="last"), on="uri")
    vanished = known.unique("uri", keep="last").join(present.select("uri"), on="uri", how="anti")
    statuses = [("late", late), ("overwritten", overwritten), ("vanished", vanished)]
    report = Reconciled(
        source=source.name,
        differences=pl.concat([_rows(status, rows) for status, rows in statuses]).sort("status", "key"),
        n_there=present.height,
        n_batched=known["uri"].n_unique(),
        n_fresh=new.height - late.height,
        not_taken=not_taken,
    )
    if write:
        return _write_batches(dataset, place, report, source.sieve(), confirm=bool(inventory))
    return report


def _write_batches(
    dataset: TickDataset,
    place: Store,
    report: Reconciled,
    sieve: Sieve,
    *,
    confirm: bool,
) -> Reconciled:
    """Batch the late and overwritten objects, and store the differences. confirm: True to look each object up first."""
    changed = report.differences.filter(report.differences["status"] != "vanished")
    if confirm:
        infos = _confirm_absence(place, changed["key"].to_list(), sieve)
    else:
        infos = _as_listed(changed)
    objects = [raw_object(place, info, dataset.now_us) for info in infos if is_there(place, info)]
    denied = dataset.denied()
    book = Book(dataset.store, dataset.name)
    allowed = [item for item in objects if not denied.has(item)]
    fresh = [
        allowed[position] for position in unseen([item.identity for item in allowed], batched_objects(book))
    ]
    batches, _ = make_batches(book, place.url, fresh, dataset.limits, rest=True)
    folder = f"tables/{dataset.name}/reconcile/{report.source}"
    table = None
    if report.differences.height:
        table = put_named_table(dataset.store, folder, report.differences.to_arrow(), "differences")
    return replace(report, batches=batches, table=table)


def _list_source(place: Store, source: Source, refusals: Refusals) -> "pl.DataFrame":
    # Always list everything from the beginning, the one kind of listing that every server gets right.
    import polars as pl

    infos = list_place(place, source.prefix, refuse=refusals)
    frames = [_frame([])]
    while chunk := list(islice(infos, _CHUNK)):
        frames.append(_frame(chunk))
    return pl.concat(frames)


def _frame(infos: Sequence[ObjectInfo]) -> "pl.DataFrame":
    import polars as pl

    return pl.DataFrame(
        {
            "key": [info.key for info in infos],
            "nbytes": [info.nbytes for info in infos],
            "etag": [info.etag for info in infos],
            "modified_us": [info.modified_us for info in infos],
        },
        schema={"key": pl.String, "nbytes": pl.Int64, "etag": pl.String, "modified_us": pl.Int64},
    )


def _sift(listed: "pl.DataFrame", source: Source) -> tuple["pl.DataFrame", dict[str, int]]:
    """Return the rows that the source selects, and reason -> number of the others."""
    import polars as pl

    sieve = source.sieve()
    keys = listed["key"]
    sizes = listed["nbytes"]
    reasons = pl.Series(
        "why",
        [
            # An inventory may lack sizes: such an object passes, and `_confirm_absence` checks it again.
            sieve(
                ObjectInfo(
                    key=key,
                    nbytes=source.min_bytes if nbytes is None else nbytes,
                    etag="",
                )
            )
            for key, nbytes in zip(keys, sizes, strict=True)
        ],
        dtype=pl.String,
    )
    counts = reasons.filter(reasons != "").value_counts(sort=True)
    return listed.filter(reasons == ""), dict(counts.iter_rows())


def _known_objects(dataset: TickDataset, landing: str, prefix: str) -> "pl.DataFrame":
    """Return the source's objects in batches, with the columns of differences but the status."""
    import polars as pl

    schema = {"key": pl.String, "uri": pl.String, "nbytes": pl.Int64, "etag": pl.String, "batch": pl.Int64}
    frames = [pl.DataFrame(schema=schema)]
    numbers = iter(batch_numbers(dataset.store, dataset.name))
    while chunk := list(islice(numbers, _MANIFESTS)):
        for manifest in manifests(dataset.store, dataset.name, chunk):
            if manifest.landing == landing:
                items = manifest.objects
            else:
                items = ()
            rows = [
                (item.key, item.uri, item.nbytes, item.etag, manifest.number)
                for item in items
                # A takedown writes other keys and URIs in place of those it removes: they name no object.
                if item.key.startswith(prefix) and item.uri.startswith(landing)
            ]
            frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    # Manifests do not have the time of the last change.
    return pl.concat(frames).with_columns(pl.lit(None, pl.Int64).alias("modified_us"))


def _rows(status: str, rows: "pl.DataFrame") -> "pl.DataFrame":
    """Return objects of one status with the columns of `Reconciled.differences`."""
    import polars as pl

    if "batch" in rows.columns:
        batch = pl.col("batch")
    else:  # late: in no batch
        batch = pl.lit(0, pl.Int64).alias("batch")
    return rows.select(pl.lit(status).alias("status"), "key", "uri", "nbytes", "etag", "modified_us", batch)


def _as_listed(rows: "pl.DataFrame") -> list[ObjectInfo]:
    """Return objects as a listing had them."""
    return [
        ObjectInfo(key=key, nbytes=nbytes, etag=etag, modified_us=modified_us)
        for key, nbytes, etag, modified_us in rows.select("key", "nbytes", "etag", "modified_us").iter_rows()
    ]


def _confirm_absence(place: Store, keys: Sequence[str], sieve: Sieve) -> list[ObjectInfo]:
    def now(key: str) -> ObjectInfo | None:
        try:
            return place.head(key)
        except (ObjectNotFound, Forbidden, InvalidStore):
            return None

    with DaemonPool(_AT_ONCE, "penstock-reconcile") as pool:
        infos = list(pool.map(now, keys))
    return [info for info in infos if info is not None and not sieve(info)]
