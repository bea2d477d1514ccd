"""The demo's second act: files -> raw_objects -> samples -> version, and what the gate does to a broken one."""

from pathlib import Path

import loader
from dagster_project.definitions import DATASET
from examples.demo.damage import plant_truncated
from examples.demo.pipeline import Pipeline, Places, is_current, record_of
from examples.demo.show import DemoFailed, Report, headline, line, working

BROKEN = "videos/broken.mp4"


def publish(places: Places, pipeline: Pipeline, report: Report, *, plant: bool, max_rejected: int) -> None:
    """Publish what the source holds, unless a version has it. plant: show first how a broken file is stopped.

    Raises: DemoFailed.
    """
    headline(f"2. Dagster: {places.source} -> raw_objects -> samples -> version")
    with working("looking at the source"):
        done = is_current(places)
    seconds: dict[str, float] = {}
    if done:
        line("a version has all of it already: nothing to do")
    else:
        if plant:
            _show_gate(places, pipeline)
        with working("landing, decoding, cutting"):
            ingest = pipeline.ingest(max_rejected)
        if not ingest.success:
            hint = "Repair or move the files it names, or allow some: make demo MAX_REJECTED=<n> SOURCE=..."
            raise DemoFailed(f"{ingest.message}\n{hint}" if ingest.checks else ingest.message)
        with working("publishing"):
            release = pipeline.release()
        if not release.success:
            raise DemoFailed(release.message)
        seconds = ingest.seconds | release.seconds
        line(f"check passed, published (Dagster runs {ingest.id[:8]}, {release.id[:8]})")
    with loader.Root(places.root) as root:
        version = root.open(f"{DATASET}@latest")
        line(
            f"{version.name}: {len(version)} samples, fields {', '.join(version.fields)}, {version.id[:18]}..."
        )
        _rows(root, places, version, seconds, report)


def _show_gate(places: Places, pipeline: Pipeline) -> None:
    """Plant a file whose second half is missing, and see it stopped in every way. Raises: DemoFailed."""
    raw = Path(places.source)
    whole = next(iter(sorted((raw / "videos").glob("*.mp4"))))
    plant_truncated(whole, raw / BROKEN)
    line(f"planted {BROKEN}: {whole.name} with its table of contents in front, and the second half missing")
    try:
        with working("landing, decoding, cutting"):
            stopped = pipeline.ingest()
        line(f"run {stopped.id[:8]}, samples: {stopped.message}")
        with working("asking for a version all the same"):
            refused = pipeline.release()
        line(f"run {refused.id[:8]}, version alone: {refused.message.splitlines()[0][:100]} ...")
    finally:
        (raw / BROKEN).unlink()
    with loader.Root(places.root) as root:
        published = [record.number for record in root.state.versions(DATASET) if record.retired is None]
    if stopped.success or refused.success or stopped.checks.get("no_unreadable_file", True):
        raise DemoFailed("a broken file passed the gate")
    line(
        f"nothing of it is in a version ({DATASET} has {published or 'none'}); the broken file is taken away"
    )


def _rows(
    root: loader.Root, places: Places, version: loader.Version, seconds: dict[str, float], report: Report
) -> None:
    landed, cut = (record_of(root, stage, places.batch) for stage in ("raw_objects", "samples"))
    if landed is None or cut is None:
        raise DemoFailed(f"batch {places.batch} has no stage record")
    counts, rejected = cut.counts, f"{cut.counts['rejected']} + {cut.counts['dropped']} dropped"
    nbytes = sum(group["nbytes"] for group in version.manifest["groups"].values())
    took = {stage: seconds.get(stage, 0.0) for stage in ("raw_objects", "samples", "version")}
    n_landed = counts["landed"]
    report.add("raw_objects", n_landed, n_landed, "-", took["raw_objects"], landed.counts["nbytes"])
    report.add("samples", n_landed, counts["samples"], rejected, took["samples"], counts["nbytes"])
    report.add(version.name, counts["samples"], len(version), "-", took["version"], nbytes)
