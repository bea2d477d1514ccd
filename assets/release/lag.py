"""Lag: the time from an object's arrival, by the source's clock, to the version that contains it, by the log's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

import loader
from loader.dataset.log.entries import DAMAGED
from loader.dataset.log.state import VersionRecord
from loader.dataset.tables.manifest import read_manifest
from loader.errors import Corrupt, InvalidName, ObjectNotFound
from loader.json_text import parse_json_object
from loader.storage import Store
from penstock.stages import StageRecord
from penstock.text import markdown_table

from ..arrivals.batch_manifests import read_manifest as read_batch
from ..pages import plots
from ..pages.report import Metadata
from ..pipeline.tables import read_table
from ..spec import DatasetSpec
from .release import Release

ARRIVALS = "arrivals_us"
"""Field of a manifest's `producer` with the `arrivals` of the batch."""


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


def freshness_policy(spec: DatasetSpec | None) -> dg.FreshnessPolicy | None:
    """Return the freshness policy of the dataset's versions, if any."""
    if spec is None or spec.upkeep.fresh_within is None:
        return None
    return dg.FreshnessPolicy.time_window(
        fail_window=spec.upkeep.fresh_within,
        warn_window=spec.upkeep.warn_within,
    )


def arrivals(store: Store, samples: StageRecord) -> dict[str, int]:
    """Return n, first, p05, median and last of the used objects' known arrival times; {} without any.

    Reads the batch's manifest and objects table. Raises: Corrupt; StoreError.
    """
    try:
        batch = read_batch(store, samples.dataset, samples.partition)
    except (InvalidName, ObjectNotFound):  # the batch was made by hand
        return {}
    objects = read_table(store, samples.files["objects"])
    used = {row["key"] for row in objects if row["outcome"] == "used"}
    times = list[int]()
    for item in batch.objects:
        if item.arrived_us and item.key in used:  # 0: the source states no time
            times.append(item.arrived_us)
    if not times:
        return {}
    times.sort()
    return {
        "n": len(times),
        "first": times[0],
        "p05": _quantile(times, 5),  # early arrival, long lag: becomes the 95th percentile
        "median": _quantile(times, 50),
        "last": times[-1],
    }


def _quantile(sorted_times: Sequence[int], percent: int) -> int:
    """Return the time of the nearest rank. sorted_times: ascending, at least one."""
    # The rank counts from 1: percent / 100 * n, rounded up.
    # Whole numbers: a float product may lie just above the exact one, and would be rounded up to the next rank.
    rank = -(-percent * len(sorted_times) // 100)
    position = max(0, rank - 1)
    return sorted_times[position]


def version_lag(root: loader.Root, record: VersionRecord) -> Lag | None:
    """Return the lag of a version; None without recorded arrivals, or if a collector deleted its manifest.

    Raises: Corrupt; StoreError.
    """
    try:
        manifest = read_manifest(root.store, record.manifest, record.sha256)
    except ObjectNotFound:
        return None
    producer = manifest["producer"]
    arrivals_us = producer.get(ARRIVALS)
    if not arrivals_us:
        return None
    batch = str(producer.get("batch", ""))
    at_us = _commit_us(root.store, record)
    return _lag(record, batch, arrivals_us, at_us)


def _lag(
    record: VersionRecord,
    batch: str,
    arrivals_us: Mapping[str, int],
    at_us: int,
) -> Lag:
    def seconds(name: str) -> float:
        elapsed_us = at_us - arrivals_us[name]
        return max(0, elapsed_us) / 1e6  # the two clocks may differ by more than the lag

    return Lag(
        version=record.name,
        batch=batch,
        n=arrivals_us["n"],
        min_s=seconds("last"),
        median_s=seconds("median"),
        p95_s=seconds("p05"),
        max_s=seconds("first"),
    )


def _commit_us(store: Store, record: VersionRecord) -> int:
    """Return the time of the version's log entry, in microseconds."""
    path = f"log/{record.n:012d}.json"
    try:
        data = store.get(path).data
        entry = parse_json_object(data)
        return int(entry["at_us"])
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{path} is not a log entry ({error}); run penstock verify") from error


def lags(
    root: loader.Root,
    dataset: str,
    newest: int = plots.MAX_VERSIONS,
) -> list[Lag]:
    """Return the lags of the newest unretired versions, oldest first.

    Costs two requests each. Raises: Corrupt; StoreError.
    """
    living = [record for record in root.state.versions(dataset) if record.retired is None]
    history = list[Lag]()
    for record in living[-newest:]:
        lag = version_lag(root, record)
        if lag is not None:
            history.append(lag)
    return history


def lag_metadata(root: loader.Root, release: Release) -> Metadata:
    """Return the lags of the published batches, with a plot of the newest versions; {} if unknown."""
    history = lags(root, release.version.dataset)
    names = {version.name for version in release.versions}
    released = [lag for lag in history if lag.version in names]
    shown = _release_metadata(released)
    series: dict[int, tuple[float, float]] = {}
    for lag in history:
        _, _, number = lag.version.rpartition("@")
        series[int(number)] = (lag.median_s, lag.p95_s)
    plot = plots.lags(series)
    if plot:
        shown["lag_plot"] = dg.MetadataValue.md(plot)
    return shown


def _release_metadata(released: Sequence[Lag]) -> Metadata:
    """Return numbers and a table of a release's lags; {} without any."""
    if not released:
        return {}
    medians = [(lag.median_s, lag.n) for lag in released]
    numbers = {
        "lag_min_s": min(lag.min_s for lag in released),
        "lag_median_s": _median(medians),
        "lag_p95_s": max(lag.p95_s for lag in released),  # the slowest batch's: percentiles do not add up
        "lag_max_s": max(lag.max_s for lag in released),
    }
    shown: Metadata = {}
    for name, seconds in numbers.items():
        shown[name] = dg.MetadataValue.float(seconds)
    rows = []
    for lag in released:
        row = (
            lag.version,
            lag.batch,
            lag.n,
            duration_text(lag.min_s),
            duration_text(lag.median_s),
            duration_text(lag.p95_s),
            duration_text(lag.max_s),
        )
        rows.append(row)
    header = ("version", "batch", "objects", "min", "median", "p95", "max")
    table = markdown_table(header, rows)
    shown["lag"] = dg.MetadataValue.md(table)
    return shown


def _median(values: Sequence[tuple[float, int]]) -> float:
    # The median of the batches' medians, weighted by objects.
    ordered = sorted(values)
    half = sum(n for _, n in ordered) / 2
    n_counted = 0
    for value, n in ordered:
        n_counted += n
        if n_counted >= half:
            return value
    largest, _ = ordered[-1]
    return largest


def duration_text(seconds: float) -> str:
    """Return a readable duration: 42 s, 3.5 min, 7.0 h, 12.0 d."""
    for unit, scale in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        # From two of a unit on: 1.9 h are more exact as 114 min.
        if seconds >= 2 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.1f} s"
