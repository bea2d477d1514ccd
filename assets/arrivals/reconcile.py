"""Reconcile a source: compare its objects with all manifests of the dataset.

    late:         present, in no batch, and old enough to have been found: a notice was lost, or a listing incomplete
    overwritten:  present with another etag than in its batch
    vanished:     in a batch, no longer present

Late and overwritten objects become batches; vanished ones are reported. Costs one listing (or inventory) of the whole
source and a GET per manifest. Memory: 1 kB per object.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from loader.dataset.tables.parquet import TableFile, put_named_table
from loader.errors import Forbidden, InvalidStore, ObjectNotFound
from loader.storage import ObjectInfo, Store
from loader.storage.store import Refusals, list_place

from ..source_formats import JOINED
from ..sources import Sieve, Source
from .batch_manifests import Book, batch_numbers, manifests
from .inventory import read_inventory
from .make_batches import is_there, make_batches, raw_object, unseen
from .progress import TickDataset, batched, read_progress

if TYPE_CHECKING:
    import polars as pl

FRESH_S = 3600.0
"""Seconds added to `max_wait_s`. The sensor handles objects that are younger than the sum."""

_CHUNK = 65_536  # objects per chunk
_MANIFESTS = 64  # manifests read at a time
_AT_ONCE = 16  # parallel requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Result of a reconciliation."""

    source: str
    """Name of the source."""
    differences: "pl.DataFrame"
    """Columns status, key, uri, nbytes, etag, modified_us and batch (number, 0 for none), sorted by status and key."""
    n_there: int
    """Objects in the source."""
    n_batched: int
    """Objects of the source that are in batches."""
    n_fresh: int
    """Unbatched objects that wait, or are too young to be late."""
    not_taken: Mapping[str, int]
    """Reason -> skipped objects."""
    batches: list[str] = field(default_factory=list)
    """Keys of the new batches."""
    table: TableFile | None = None
    """Table of the differences; None if it was not written."""

    def count(self, status: str) -> int:
        """Return the number of objects with this status: late, overwritten or vanished."""
        return int((self.differences["status"] == status).sum())


def reconcile(
    dataset: TickDataset, source: Source, place: Store, *, inventory: str = "", write: bool = True
) -> Reconciled:
    """Compare a source with the manifests, and batch the objects that are in no batch.

    inventory: URL of an inventory; "" lists the source. write: False only reports. The sensor may run meanwhile.

    Raises: InvalidStore for an inventory if raw objects have several files; Corrupt for an unreadable manifest or
    inventory.
    """
    import polars as pl

    if inventory and source.format in JOINED:
        raise InvalidStore(
            f"an inventory lists files, but a raw object of {source.format} has several: omit the inventory"
        )
    refusals = Refusals()
    there = (
        read_inventory(inventory, source.options, place.url)
        if inventory
        else _listed(place, source, refusals)
    )
    there, not_taken = _sifted(there, source)
    if refusals.n:
        not_taken["not_listed"] = not_taken.get("not_listed", 0) + refusals.n
    base = place.url.rstrip("/") + "/"
    tag = pl.col("etag").str.strip_chars('"').alias("tag")  # S3 Inventory has etags without quotes
    there = there.with_columns((base + pl.col("key")).alias("uri"), tag)
    known = _known(dataset, place.url, source.prefix).with_columns(tag)
    new = there.join(known.select("uri"), on="uri", how="anti")
    progress = read_progress(dataset.store, dataset.name, source.name)
    young_us = dataset.now_us - int((dataset.limits.max_wait_s + FRESH_S) * 1_000_000)
    is_fresh = (pl.col("modified_us") > young_us).fill_null(value=False)
    is_fresh |= pl.col("uri").is_in(list(progress.waiting))
    late = new.filter(~is_fresh)
    other = there.filter((pl.col("tag") != "") & ~is_fresh).join(known, on=["uri", "tag"], how="anti")
    overwritten = other.join(known.select("uri", "batch").unique("uri", keep="last"), on="uri")
    vanished = known.unique("uri", keep="last").join(there.select("uri"), on="uri", how="anti")
    statuses = [("late", late), ("overwritten", overwritten), ("vanished", vanished)]
    report = Reconciled(
        source=source.name,
        differences=pl.concat([_rows(status, rows) for status, rows in statuses]).sort("status", "key"),
        n_there=there.height,
        n_batched=known["uri"].n_unique(),
        n_fresh=new.height - late.height,
        not_taken=not_taken,
    )
    return _written(dataset, place, report, source.sieve(), confirm=bool(inventory)) if write else report


def _written(
    dataset: TickDataset, place: Store, report: Reconciled, why: Sieve, *, confirm: bool
) -> Reconciled:
    changed = report.differences.filter(report.differences["status"] != "vanished")
    infos = _confirmed(place, changed["key"].to_list(), why) if confirm else _as_listed(changed)
    objects = [raw_object(place, info) for info in infos if is_there(place, info)]
    denied, book = dataset.denied(), Book(dataset.store, dataset.name)
    allowed = [item for item in objects if not denied.has(item)]
    fresh = [allowed[position] for position in unseen([item.identity for item in allowed], batched(book))]
    batches, _ = make_batches(book, place.url, fresh, dataset.limits, rest=True)
    folder = f"tables/{dataset.name}/reconcile/{report.source}"
    table = None
    if report.differences.height:
        table = put_named_table(dataset.store, folder, report.differences.to_arrow(), "differences")
    return replace(report, batches=batches, table=table)


def _listed(place: Store, source: Source, refusals: Refusals) -> "pl.DataFrame":
    # Always list everything from the beginning, the one kind of listing that every server gets right.
    import polars as pl

    infos, frames = list_place(place, source.prefix, refuse=refusals), [_frame([])]
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


def _sifted(there: "pl.DataFrame", source: Source) -> tuple["pl.DataFrame", dict[str, int]]:
    import polars as pl

    why, keys, sizes = source.sieve(), there["key"], there["nbytes"]
    reasons = pl.Series(
        "why",
        [
            # An inventory may lack sizes, so `_confirmed` checks these objects again.
            why(ObjectInfo(key=key, nbytes=source.min_bytes if nbytes is None else nbytes, etag=""))
            for key, nbytes in zip(keys, sizes, strict=True)
        ],
        dtype=pl.String,
    )
    counts = reasons.filter(reasons != "").value_counts(sort=True)
    return there.filter(reasons == ""), dict(counts.iter_rows())


def _known(dataset: TickDataset, landing: str, prefix: str) -> "pl.DataFrame":
    import polars as pl

    schema = {"key": pl.String, "uri": pl.String, "nbytes": pl.Int64, "etag": pl.String, "batch": pl.Int64}
    frames = [pl.DataFrame(schema=schema)]
    numbers = iter(batch_numbers(dataset.store, dataset.name))
    while chunk := list(islice(numbers, _MANIFESTS)):
        for manifest in manifests(dataset.store, dataset.name, chunk):
            items = manifest.objects if manifest.landing == landing else ()
            rows = [
                (item.key, item.uri, item.nbytes, item.etag, manifest.number)
                for item in items
                if item.key.startswith(prefix) and item.uri.startswith(landing)  # else redacted by a takedown
            ]
            frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    return pl.concat(frames).with_columns(pl.lit(None, pl.Int64).alias("modified_us"))


def _rows(status: str, rows: "pl.DataFrame") -> "pl.DataFrame":
    import polars as pl

    batch = pl.col("batch") if "batch" in rows.columns else pl.lit(0, pl.Int64).alias("batch")
    return rows.select(pl.lit(status).alias("status"), "key", "uri", "nbytes", "etag", "modified_us", batch)


def _as_listed(rows: "pl.DataFrame") -> list[ObjectInfo]:
    return [
        ObjectInfo(key=key, nbytes=nbytes, etag=etag, modified_us=modified_us)
        for key, nbytes, etag, modified_us in rows.select("key", "nbytes", "etag", "modified_us").iter_rows()
    ]


def _confirmed(place: Store, keys: Sequence[str], why: Sieve) -> list[ObjectInfo]:
    def now(key: str) -> ObjectInfo | None:
        try:
            return place.head(key)
        except (ObjectNotFound, Forbidden, InvalidStore):
            return None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        infos = list(pool.map(now, keys))
    return [info for info in infos if info is not None and not why(info)]
