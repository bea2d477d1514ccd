"""Reconcile a source, by a listing or an inventory, with all manifests of the dataset.

    late:         present, in no batch, and old enough to have been found
    overwritten:  present with another etag than in its batch
    vanished:     in a batch, no longer present

An object that is present, but that the source no longer selects, has none of these statuses.

Late and overwritten objects become batches. Costs a listing of the source and a GET per manifest. Memory: 1 kB per
object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from loader.dataset.tables.parquet import TableFile, put_named_table
from loader.errors import Forbidden, InvalidStore, ObjectNotFound
from loader.storage import ObjectInfo, Store
from loader.storage.store import Refusals, list_place
from loader.storage.threads import DaemonPool

from ..sources import JOINED, Sieve, Source
from .batch_manifests import Book, batch_numbers, manifests
from .inventory import read_inventory
from .make_batches import is_there, make_batches, raw_object, unseen
from .progress import Progress, TickDataset, batched_objects, read_progress

if TYPE_CHECKING:
    import polars as pl


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
    """Objects of the source that it selects."""
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
    base = place.url.rstrip("/") + "/"
    tag = pl.col("etag").str.strip_chars('"').alias("tag")  # S3 Inventory has etags without quotes
    listed = listed.with_columns((base + pl.col("key")).alias("uri"), tag)
    selected, not_taken = _sift(listed, source)
    if refusals.n:
        not_taken["not_listed"] = not_taken.get("not_listed", 0) + refusals.n
    known = _known_objects(dataset, place.url, source.prefix).with_columns(tag)
    progress = read_progress(dataset.store, dataset.name, source.name)
    is_fresh = _is_fresh(dataset, progress)
    unbatched = selected.join(known.select("uri"), on="uri", how="anti")
    late = unbatched.filter(~is_fresh)
    # An object that was batched again is in several batches: any etag of these is known, and the last batch counts.
    known_once = known.unique("uri", keep="last")
    has_tag = pl.col("tag") != ""
    new_content = selected.filter(has_tag & ~is_fresh).join(known, on=["uri", "tag"], how="anti")
    overwritten = new_content.join(known_once.select("uri", "batch"), on="uri")
    # Not `selected`: an object of a batch is there even if the source skips it, as after a change of its patterns.
    vanished = known_once.join(listed.select("uri"), on="uri", how="anti")
    statuses = [("late", late), ("overwritten", overwritten), ("vanished", vanished)]
    report = Reconciled(
        source=source.name,
        differences=pl.concat([_rows(status, rows) for status, rows in statuses]).sort("status", "key"),
        n_there=selected.height,
        n_batched=known_once.height,
        n_fresh=unbatched.height - late.height,
        not_taken=not_taken,
    )
    if write:
        return _write_batches(dataset, place, report, source.sieve(), confirm=bool(inventory))
    return report


def _is_fresh(dataset: TickDataset, progress: Progress) -> "pl.Expr":
    """Return the condition on a listed object that it waits for a batch, or is too young to be late."""
    import polars as pl

    young_us = dataset.now_us - int((dataset.limits.max_wait_s + FRESH_S) * 1_000_000)
    # No difference of clocks explains a later date. The object may have arrived long ago, so it is not fresh.
    latest_us = dataset.now_us + int(FRESH_S * 1_000_000)
    is_young = pl.col("modified_us").is_between(young_us, latest_us, closed="none").fill_null(value=False)
    return is_young | pl.col("uri").is_in(list(progress.waiting))


def _write_batches(
    dataset: TickDataset,
    place: Store,
    report: Reconciled,
    sieve: Sieve,
    *,
    confirm: bool,
) -> Reconciled:
    """Batch the late and overwritten objects, and store the differences.

    confirm: True asks the store for each object first, since an inventory is older than the source.
    """
    changed = report.differences.filter(report.differences["status"] != "vanished")
    if confirm:
        infos = _current_objects(place, changed["key"].to_list(), sieve)
    else:
        infos = _as_listed(changed)
    objects = [raw_object(place, info, dataset.now_us) for info in infos if is_there(place, info)]
    denied = dataset.denied()
    book = Book(dataset.store, dataset.name)
    allowed = [item for item in objects if not denied.has(item)]
    fresh = [
        allowed[position] for position in unseen([item.identity for item in allowed], batched_objects(book))
    ]
    # rest: these objects have waited long enough, so the last batch need not be full.
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
            # An inventory may lack sizes: such an object passes, and `_current_objects` checks it again.
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


def _current_objects(place: Store, keys: Sequence[str], sieve: Sieve) -> list[ObjectInfo]:
    """Return the objects at these keys that exist now, and that the sieve selects."""

    def head(key: str) -> ObjectInfo | None:
        try:
            return place.head(key)
        except (ObjectNotFound, Forbidden, InvalidStore):
            return None

    with DaemonPool(_AT_ONCE, "penstock-reconcile") as pool:
        infos = list(pool.map(head, keys))
    return [info for info in infos if info is not None and not sieve(info)]
