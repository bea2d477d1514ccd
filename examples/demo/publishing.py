"""The demo's second act: what lands becomes versions through Dagster, and what the gate does to a bad batch."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import loader
from assets.pipeline.tables import read_table
from examples.demo import arrivals
from examples.demo.pipeline import DATASET, STAGES, Pipeline, Places, Run, is_published, record_of
from examples.demo.show import DemoFailed, Report, headline, line, size, working
from penstock.stages import current_record

Seconds = dict[str, float]
Arrival = Callable[[Path, Path], set[str]]
"""(media, landing folder) -> keys of the files that it copies there."""


def publish_arrivals(media: Path, places: Places, pipeline: Pipeline, report: Report) -> None:
    """Publish two arrivals as two versions, and let the gate stop the third. Raises: DemoFailed."""
    headline(
        f"2. Dagster: {places.source} -> raw_objects -> media -> units -> features -> samples -> version"
    )
    raw, seconds = Path(places.source), Seconds()
    line("first arrival: photos, clips and speech")
    published = _arrive(arrivals.first, media, raw, places, pipeline, seconds)
    line("second arrival: the rest, with a broken video, a truncated JPEG, two duplicates and a wrong suffix")
    published += _arrive(arrivals.second, media, raw, places, pipeline, seconds)
    with loader.Root(places.root) as root:
        _show_refusals(root, published)
    line("third arrival: speech, half of it at half the sample rate")
    _stopped(media, raw, places, pipeline)
    _close(places, published, seconds, report)


def publish_source(places: Places, pipeline: Pipeline, report: Report) -> None:
    """Publish the objects of the user's own place, which is only read. Raises: DemoFailed."""
    headline(
        f"2. Dagster: {places.source} -> raw_objects -> media -> units -> features -> samples -> version"
    )
    seconds = Seconds()
    batches = _discovered(pipeline)
    if not batches:
        raise DemoFailed(f"nothing has landed: {places.source} holds no objects; put files there")
    for batch in batches:
        _publish(batch, places, pipeline, seconds)
    with loader.Root(places.root) as root:
        _show_refusals(root, batches)
    _close(places, batches, seconds, report)


def _arrive(
    put: Arrival, media: Path, raw: Path, places: Places, pipeline: Pipeline, seconds: Seconds
) -> list[str]:
    """Let files arrive, and publish the batches that discovery makes of them."""
    batches = _discovered(pipeline, put(media, raw))
    for batch in batches:
        _publish(batch, places, pipeline, seconds)
    return batches


def _discovered(pipeline: Pipeline, keys: set[str] | None = None) -> list[str]:
    """Discover objects, and return the keys of the batches: of all, or of the ones with only objects of `keys`.

    In a second run of the demo, an arrival finds its own batch again.
    """
    with working("looking for what has arrived"):
        manifests = pipeline.discover()
    if keys is not None:
        manifests = [one for one in manifests if {item.key for item in one.objects} <= keys]
    for manifest in manifests:
        line(f"batch {manifest.batch}: {len(manifest.objects)} objects, {size(manifest.nbytes)}")
    return [manifest.batch for manifest in manifests]


def _publish(batch: str, places: Places, pipeline: Pipeline, seconds: Seconds) -> None:
    """Raises: DemoFailed when a stage or the release fails."""
    with loader.Root(places.root) as root:
        if is_published(root, batch):
            line("a version has all of it already: nothing to do")
            return
    with working("landing, auditing, cutting, featurizing"):
        ingest = pipeline.ingest(batch)
    if not ingest.success:
        remedy = _remedy(ingest.message)
        raise DemoFailed(f"{ingest.message}\n{remedy}" if remedy else ingest.message)
    with working("checking and publishing"):
        release = pipeline.release()
    if not release.success:
        raise DemoFailed(release.message)
    for run in (ingest, release):
        _add(seconds, run)
    with loader.Root(places.root) as root:
        version = root.open(f"{DATASET}@latest")
        line(
            f"{len(release.checks)} checks passed, published {version.name}: {len(version)} samples "
            f"(Dagster runs {ingest.id[:8]}, {release.id[:8]})"
        )


OPTIONS = {
    "max_reject_rate": "--max-reject-rate 0.5 (make demo MAX_REJECT_RATE=0.5)",
    "max_not_media_rate": "--max-not-media-rate 0.5 (make demo MAX_NOT_MEDIA_RATE=0.5)",
}
"""Limit of a batch, as its error names it -> the option that raises it."""


def _remedy(message: str) -> str:
    """Return the demo's options for the limits that a stopped batch names, or ""."""
    options = [option for limit, option in OPTIONS.items() if f"({limit})" in message]
    return f"Allow more of such files here by {' and '.join(options)}" if options else ""


def _stopped(media: Path, raw: Path, places: Places, pipeline: Pipeline) -> None:
    """Raises: DemoFailed when the batch gets through."""
    batch = _discovered(pipeline, arrivals.third(media, raw))[-1]
    with loader.Root(places.root) as root:
        before = root.state.newest(DATASET)
        verdict = current_record(root.store, DATASET, "version", batch)
    if verdict is None:
        with working("landing, auditing, cutting, featurizing"):
            pipeline.ingest(batch)
        with working("checking"):
            stopped = pipeline.release()
        line(f"run {stopped.id[:8]}: {stopped.message.splitlines()[0][:260]} ...")
        with working("asking for a version all the same"):
            again = pipeline.release()
        if stopped.success or again.success or stopped.checks.get("audio_rate", True):
            raise DemoFailed("a batch at the wrong sample rate passed the gate")
    with loader.Root(places.root) as root:
        after = root.state.newest(DATASET)
        record = current_record(root.store, DATASET, "version", batch)
    if before != after or record is None or record.verdict != "failed":
        raise DemoFailed("a batch at the wrong sample rate is in a version")
    line(f"nothing of it is in a version: {after.name if after else 'none'} is still the newest")


def _show_refusals(root: loader.Root, batches: list[str]) -> None:
    for batch in batches:
        record = record_of(root, "samples", batch)
        if record is not None:
            for row in read_table(root.store, record.files["objects"]):
                if row["outcome"] != "used":
                    line(f"{row['outcome']:<8} {row['key']}: {row['code']} ({row['reason'][:80]})")


def _add(seconds: Seconds, run: Run) -> None:
    for stage, took in run.seconds.items():
        seconds[stage] = seconds.get(stage, 0.0) + took


def _close(places: Places, batches: list[str], seconds: Seconds, report: Report) -> None:
    with loader.Root(places.root) as root:
        version = root.open(f"{DATASET}@latest")
        line(
            f"{version.name}: {len(version)} samples, fields {', '.join(version.fields)}, {version.id[:18]}..."
        )
        counts = {
            stage: _counts(root, stage, batches) for stage in ("raw_objects", "media", "units", "samples")
        }
    landed, media, units, samples = counts.values()
    took = {stage: seconds.get(stage, 0.0) for stage in STAGES}
    add, n = report.add, landed["landed"]
    add("raw_objects", n, n, 0, 0, took["raw_objects"], landed["nbytes"])
    add("media", n, media["admitted"], media["rejected"], media["dropped"], took["media"], landed["nbytes"])
    add(
        "units",
        media["admitted"],
        units["units"],
        units["rejected"],
        units["dropped"],
        took["units"],
        units["nbytes"],
    )
    add(
        "features",
        units["units"],
        units["units"],
        0,
        0,
        took["features"],
        samples["nbytes"] - units["nbytes"],
    )
    add(
        "samples",
        units["units"],
        samples["samples"],
        0,
        samples["left_out"],
        took["samples"],
        samples["nbytes"],
    )
    nbytes = sum(group["nbytes"] for group in version.manifest["groups"].values())
    add(version.name, samples["samples"], len(version), 0, 0, took["version"], nbytes)


def _counts(root: loader.Root, stage: str, batches: list[str]) -> Counter[str]:
    """The stage's counts over all batches. Raises: DemoFailed."""
    total: Counter[str] = Counter()
    for batch in batches:
        record = record_of(root, stage, batch)
        if record is None:
            raise DemoFailed(f"batch {batch} has no record of {stage}")
        total.update(record.counts)
    return total
