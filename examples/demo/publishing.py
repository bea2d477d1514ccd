"""The demo's second act: files -> raw_objects -> samples -> version, and what the gate does to a broken one."""

from collections import Counter
from pathlib import Path

import loader
from dagster_project.definitions import DATASET
from examples.demo.damage import plant_truncated
from examples.demo.pipeline import Pipeline, Places, Run, is_published, record_of
from examples.demo.show import DemoFailed, Report, headline, line, size, working

BROKEN = "videos/broken.mp4"


def publish(places: Places, pipeline: Pipeline, report: Report, *, plant: bool, max_rejected: int) -> None:
    """Publish what the source holds, unless a version has it. plant: show first how a broken file is stopped.

    Raises: DemoFailed.
    """
    headline(f"2. Dagster: {places.source} -> raw_objects -> samples -> version")
    batches = _batches(places, pipeline, planted=plant)
    with loader.Root(places.root) as root:
        todo = [batch for batch in batches if not is_published(root, batch)]
    seconds: dict[str, float] = {}
    if not todo:
        line("a version has all of it already: nothing to do")
    else:
        if plant:
            _show_gate(places, pipeline)
        for batch in todo:
            with working("landing, decoding, cutting"):
                ingest = pipeline.ingest(batch, max_rejected)
            if not ingest.success:
                hint = (
                    "Repair or move the files it names, or allow some: make demo MAX_REJECTED=<n> SOURCE=..."
                )
                raise DemoFailed(f"{ingest.message}\n{hint}" if ingest.checks else ingest.message)
            _add(seconds, ingest)
        with working("checking and publishing"):
            release = pipeline.release()
        if not release.success:
            raise DemoFailed(release.message)
        _add(seconds, release)
        line(f"checks passed, published {', '.join(todo)} (Dagster run {release.id[:8]})")
    with loader.Root(places.root) as root:
        version = root.open(f"{DATASET}@latest")
        line(
            f"{version.name}: {len(version)} samples, fields {', '.join(version.fields)}, {version.id[:18]}..."
        )
        _rows(root, batches, version, seconds, report)


def _batches(places: Places, pipeline: Pipeline, *, planted: bool) -> list[str]:
    """The source's batches, but for those that a broken file was planted into. Raises: DemoFailed."""
    with working("looking for what has arrived"):
        found = pipeline.discover()
    for manifest in found:
        count, nbytes = len(manifest.objects), size(manifest.nbytes)
        line(f"batch {manifest.batch}: {count} objects, {nbytes}")
    if not found:
        raise DemoFailed(f"nothing has landed: {places.source} holds no objects; put files there")
    keys = {manifest.batch: {item.key for item in manifest.objects} for manifest in found}
    return [batch for batch in keys if not planted or keys[batch] != {BROKEN}]


def _add(seconds: dict[str, float], run: Run) -> None:
    for stage, took in run.seconds.items():
        seconds[stage] = seconds.get(stage, 0.0) + took


def _show_gate(places: Places, pipeline: Pipeline) -> None:
    """Plant a file whose second half is missing, and see it stopped in every way. Raises: DemoFailed."""
    raw = Path(places.source)
    whole = next(iter(sorted((raw / "videos").glob("*.mp4"))))
    plant_truncated(whole, raw / BROKEN)
    line(f"planted {BROKEN}: {whole.name} with its table of contents in front, and the second half missing")
    try:
        planted = pipeline.discover()[-1].batch
        with working("landing, decoding, cutting"):
            stopped = pipeline.ingest(planted)
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
    root: loader.Root,
    batches: list[str],
    version: loader.Version,
    seconds: dict[str, float],
    report: Report,
) -> None:
    landed, cut = (_counts(root, stage, batches) for stage in ("raw_objects", "samples"))
    rejected = f"{cut['rejected']} + {cut['dropped']} dropped"
    nbytes = sum(group["nbytes"] for group in version.manifest["groups"].values())
    took = {stage: seconds.get(stage, 0.0) for stage in ("raw_objects", "samples", "version")}
    n_landed = landed["landed"]
    report.add("raw_objects", n_landed, n_landed, "-", took["raw_objects"], landed["nbytes"])
    report.add("samples", n_landed, cut["samples"], rejected, took["samples"], cut["nbytes"])
    report.add(version.name, cut["samples"], len(version), "-", took["version"], nbytes)


def _counts(root: loader.Root, stage: str, batches: list[str]) -> Counter[str]:
    """The stage's counts over all batches. Raises: DemoFailed."""
    total: Counter[str] = Counter()
    for batch in batches:
        record = record_of(root, stage, batch)
        if record is None:
            raise DemoFailed(f"batch {batch} has no record of {stage}")
        total.update(record.counts)
    return total
