"""Lag: the time from an object's arrival, by the source's clock, to the version that contains it, by the log's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

import loader
from loader.dataset.log.entries import DAMAGED
from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import read_manifest
from loader.errors import Corrupt, InvalidName, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import Store
from penstock.stages import StageRecord

from .. import plots
from ..arrivals.batch_manifests import read_manifest as read_batch
from ..report import Metadata, markdown_table
from ..spec import DatasetSpec
from ..tables import read_table

if TYPE_CHECKING:
    from .version_asset import Release

PRODUCER = "arrivals_us"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Seconds from arrival to version, over used objects whose arrival is recorded."""

    version: str
    """Name of the version."""
    batch: str
    """Key of the batch."""
    n: int
    """Objects."""
    min_s: float
    """Shortest time."""
    median_s: float
    """Median time."""
    p95_s: float
    """95th percentile of the times."""
    max_s: float
    """Longest time."""


def freshness_of(spec: DatasetSpec | None) -> dg.FreshnessPolicy | None:
    """Return the freshness policy of the dataset's versions, if any."""
    if spec is None or spec.upkeep.fresh_within is None:
        return None
    return dg.FreshnessPolicy.time_window(
        fail_window=spec.upkeep.fresh_within, warn_window=spec.upkeep.warn_within
    )


def arrivals(store: Store, samples: StageRecord) -> dict[str, int]:
    """Return n, first, p05, median and last of the used objects' known arrival times; {} without any.

    Reads the batch's manifest and objects table. Raises: Corrupt; StoreError.
    """
    try:
        batch = read_batch(store, samples.dataset, samples.partition)
    except (InvalidName, ObjectNotFound):  # the batch was made by hand
        return {}
    used = {row["key"] for row in read_table(store, samples.files["objects"]) if row["outcome"] == "used"}
    times = sorted(item.arrived_us for item in batch.objects if item.arrived_us and item.key in used)
    if not times:
        return {}
    return {
        "n": len(times),
        "first": times[0],
        "p05": _quantile(times, 5),
        "median": _quantile(times, 50),
        "last": times[-1],
    }


def _quantile(times: Sequence[int], percent: int) -> int:
    return times[max(0, -(-percent * len(times) // 100) - 1)]


def lag_of(root: loader.Root, record: VersionRecord) -> Lag | None:
    """Return the lag of a version; None if it has no batch. Raises: Corrupt; StoreError."""
    try:
        producer = read_manifest(root.store, record.manifest, record.sha256)["producer"]
    except ObjectNotFound:  # the manifest was collected
        return None
    arrivals_us = producer.get(PRODUCER)
    if not arrivals_us:
        return None
    return _lag(record, str(producer.get("batch", "")), arrivals_us, _committed_us(root.store, record))


def _lag(record: VersionRecord, batch: str, arrivals_us: Mapping[str, int], at_us: int) -> Lag:
    def since(name: str) -> float:
        return max(0, at_us - arrivals_us[name]) / 1e6  # the two clocks may differ by more than the lag

    return Lag(
        version=record.name,
        batch=batch,
        n=arrivals_us["n"],
        min_s=since("last"),
        median_s=since("median"),
        p95_s=since("p05"),
        max_s=since("first"),
    )


def _committed_us(store: Store, record: VersionRecord) -> int:
    path = f"log/{record.n:012d}.json"
    try:
        return int(parse_json_object(store.get(path).data)["at_us"])
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{path} is not a log entry ({error}); run penstock verify") from error


def lags(root: loader.Root, dataset: str, newest: int = plots.MAX_VERSIONS) -> list[Lag]:
    """Return the lags of the newest unretired versions, oldest first.

    Costs two requests each. Raises: Corrupt; StoreError.
    """
    living = [record for record in root.state.versions(dataset) if record.retired is None]
    known = [lag_of(root, record) for record in living[-newest:]]
    return [lag for lag in known if lag is not None]


def lag_metadata(root: loader.Root, release: "Release") -> Metadata:
    """Return the lags of the published batches, with a plot of the newest versions; {} if unknown."""
    history = lags(root, release.version.dataset)
    names = {version.name for version in release.versions}
    now = [one for one in history if one.version in names]
    shown: Metadata = {}
    if now:
        numbers: dict[str, Any] = {
            "lag_min_s": min(one.min_s for one in now),
            "lag_median_s": _median([(one.median_s, one.n) for one in now]),
            "lag_p95_s": max(one.p95_s for one in now),
            "lag_max_s": max(one.max_s for one in now),
        }
        rows = [
            (one.version, one.batch, one.n, *map(words, (one.min_s, one.median_s, one.p95_s, one.max_s)))
            for one in now
        ]
        header = ("version", "batch", "objects", "min", "median", "p95", "max")
        shown |= {name: dg.MetadataValue.float(value) for name, value in numbers.items()}
        shown["lag"] = dg.MetadataValue.md(markdown_table(header, rows))
    picture = plots.lags({int(one.version.rpartition("@")[2]): (one.median_s, one.p95_s) for one in history})
    return shown | ({"lag_plot": dg.MetadataValue.md(picture)} if picture else {})


def _median(values: Sequence[tuple[float, int]]) -> float:
    # The median of the batches' medians, weighted by objects.
    ordered, half = sorted(values), sum(n for _, n in values) / 2
    counted = 0
    for value, n in ordered:
        counted += n
        if counted >= half:
            return value
    return ordered[-1][0]


def words(seconds: float) -> str:
    """Return a readable duration: 42 s, 3.5 min, 7.0 h, 12.0 d."""
    for unit, scale in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.1f} s"
