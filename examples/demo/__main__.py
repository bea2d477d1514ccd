"""The main job from nothing: real files -> a checked version -> a training killed and resumed -> back to a file.

    python -m examples.demo [--source FOLDER_OR_URL] [--into demo] [--cluster FILE]
                            [--max-reject-rate SHARE] [--max-not-media-rate SHARE]

A second run finds everything there and changes nothing.
"""

import argparse
import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import loader
from dagster_project.datasets.demo import SPEC
from examples.demo import training
from examples.demo.clips import FRAMES, read_clips
from examples.demo.next_steps import RED_NODE, print_automation, print_commands
from examples.demo.pipeline import DATASET, Pipeline, Places
from examples.demo.publishing import publish_arrivals, publish_source
from examples.demo.show import DemoFailed, Report, headline, line, size, table, working
from examples.media import ORIGINS, fetch
from examples.train import photos_of
from loader.errors import PenstockError
from loader.storage import open_store
from penstock.train.run_folder import RunFolder

EXPLAINED_STEP, EXPLAINED_SLOT = 29, 3


def main() -> int:
    """Return 0 if every promise held, else 1; argparse exits with 2 for an invalid option."""
    options = _options()
    places = _places(options)
    report = Report()
    try:
        media = options.into / "media"
        if options.source is None:
            _media(options, media, report)
        pipeline = Pipeline(places)
        try:
            if options.source is None:
                publish_arrivals(media, places, pipeline, report)
            else:
                publish_source(places, pipeline, report)
            has_training = _train(options.into, places, pipeline, report)
            _clips(places)
        finally:
            pipeline.close()
    except (DemoFailed, PenstockError, RuntimeError, OSError) as error:
        print(f"\nthe demo stopped: {error}", file=sys.stderr)
        return 1
    _close(options, places, report, has_training=has_training)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--source", default=None, help="folder or URL of your own files, only read")
    parser.add_argument("--into", type=Path, default=Path("demo"))
    parser.add_argument("--cache", type=Path, default=Path("media-cache"))
    parser.add_argument(
        "--max-reject-rate",
        type=float,
        default=SPEC.max_reject_rate,
        help="share of damaged files a batch may hold",
    )
    parser.add_argument(
        "--max-not-media-rate",
        type=float,
        help="share of files that may be no media (default: any share of your own files, which are listed)",
    )
    parser.add_argument("--cluster", default="", metavar="FILE", help="file of a cluster (docs/clusters.md)")
    return parser.parse_args()


def _places(options: argparse.Namespace) -> Places:
    into = options.into.resolve()
    not_media = options.max_not_media_rate
    if not_media is None:
        # A folder of one's own has notes and lists beside its media.
        not_media = SPEC.max_not_media_rate if options.source is None else 1.0
    # The gate stays SPEC's own: another one would judge the demo's stopped batch again.
    spec = replace(SPEC, max_reject_rate=options.max_reject_rate, max_not_media_rate=not_media)
    source = str(into / "raw")
    if options.source is not None:
        source = (
            options.source if "://" in options.source else str(Path(options.source).expanduser().resolve())
        )
    home, cluster = into / "dagster_home", options.cluster
    return Places(root=into / "root", home=home, source=source, spec=spec, cluster=cluster)


def _media(options: argparse.Namespace, media: Path, report: Report) -> None:
    headline(f"1. Real media, through pip (licences: {media / ORIGINS})")
    with working("fetching packages") as clock:
        fetched = fetch(media, options.cache)
    for problem in fetched.problems:
        line(f"could not be had, going on without: {problem}")
    there = {path.relative_to(media).parts[0] for path in media.rglob("*.*") if path.is_file()}
    if not {"photos", "videos", "speech"} <= there:
        missing = sorted({"photos", "videos", "speech"} - there)
        raise DemoFailed(
            f"there are no {', '.join(missing)}. Use your own files: make demo SOURCE=<folder or URL>"
        )
    line(f"{fetched.n_files} files, {size(fetched.nbytes)}, {fetched.n_new} new")
    took = clock.seconds if fetched.n_new else 0
    report.add("fetched", fetched.n_files, fetched.n_files, 0, 0, took, fetched.nbytes)


def _train(into: Path, places: Places, pipeline: Pipeline, report: Report) -> bool:
    """Return whether there are photos to train on.

    Raises: DemoFailed if the resumed training differs from the undisturbed one.
    """
    with loader.Root(places.root) as root:
        version = root.open(f"{DATASET}@latest")
        has_photos = "jpg" in version.fields
        view = photos_of(version) if has_photos else version.select(version.fields[-1], where_present=True)
        plan = loader.plan(
            {"photos" if has_photos else "samples": view},
            seed=training.SEED,
            global_batch=training.GLOBAL_BATCH,
            allow_repeats=True,
        )
        if not has_photos:
            headline("3. Training: left out, it needs photos and the source has none")
            _explain(plan, pipeline)
            return False
        folder = into.resolve() / "train" / plan.hash[:14]
        headline(f"3. Training from {version.name}: {len(view)} photos, plan {plan.hash[:14]}")
        seconds = _trainings(folder, places.root, version.name)
        comparison = training.compare(folder)
        line(
            f"steps 0 to {training.STEPS - 1} on 1 rank without a stop, and on 2 ranks until SIGKILL after step"
        )
        line(
            f"{training.CRASH_AT}, then on 1 rank from the checkpoint: {len(comparison.repeated)} steps done twice"
        )
        if comparison.different or comparison.n_steps != training.STEPS:
            raise DemoFailed(f"the digests differ at steps {list(comparison.different)}")
        line(
            f"digests of all {comparison.n_steps} steps are equal: OK (last loss {comparison.last_loss:.3f})"
        )
        _check_record(root)
        _look_back(root, plan)
        n_read = training.STEPS * training.GLOBAL_BATCH
        report.add("training", n_read, training.STEPS, 0, 0, seconds, view.mean_sample_bytes * n_read)
        _explain(plan, pipeline)
        return True


def _check_record(root: loader.Root) -> None:
    """Compare the record of the killed run with its checkpoints. Raises: DemoFailed."""
    folder = RunFolder(root.store, "resumed")
    last = max(folder.attempts(), default=0)
    steps = {event.name: event.step for event in folder.events() if event.attempt == last}
    if (steps.get("restored"), steps.get("ended")) != (training.RESTORED_AT, training.STEPS):
        raise DemoFailed(f"the record of run 'resumed' has other steps in start {last}: {steps}")
    line(f"its record has {last} starts; the last one restored step {steps['restored']} and finished")


def _look_back(root: loader.Root, plan: loader.Plan) -> None:
    """Hold the trail of the undisturbed training against the stored bytes. Raises: DemoFailed."""
    trail = loader.read_trail(root, "whole")
    starts = [start.id for start in trail.starts if start.plan == plan.hash]
    steps = trail.steps.filter(trail.steps["start"].is_in(starts))
    with loader.Replay(plan, loader.read_ledger(root, plan)) as replay:
        different = [row["step"] for row in steps.to_dicts() if replay.digest(row["step"]) != row["digest"]]
    if different or set(steps["step"]) != set(range(training.STEPS)):
        raise DemoFailed(f"the trail of run 'whole' has other bytes at steps {different}, or not all steps")
    worst = steps.sort("note.loss").row(-1, named=True)
    line(
        f"its trail proves the bytes of every step; the highest loss, {worst['note.loss']:.3f}, is of step "
        f"{worst['step']}, its worst sample in slot {worst['largest'][0]['slot']}"
    )


def _trainings(folder: Path, root: Path, ref: str) -> float:
    """Run both trainings unless they are done; return the seconds that they took."""
    if training.is_complete(folder, root):
        line("both trainings have been done before")
        return 0.0
    training.fresh(folder)
    with working("training: whole on 1 rank, and 2 ranks until they are killed") as first:
        undisturbed = training.whole(root, ref, folder / "whole")  # runs beside the next one
        codes = training.killed(root, ref, folder / "resumed")
        training.finish(undisturbed)
    line(f"2 ranks ended by SIGKILL (exit codes {codes}) between two checkpoints")
    with working("training: resuming on 1 rank") as second:
        training.resumed(root, ref, folder / "resumed")
    for name in ("whole", "resumed"):
        (folder / name / "done").touch()
    return first.seconds + second.seconds


def _explain(plan: loader.Plan, pipeline: Pipeline) -> None:
    headline(f"4. Back from step {EXPLAINED_STEP}, slot {EXPLAINED_SLOT} to the file it came from")
    (explanation,) = loader.explain(plan, EXPLAINED_STEP, slot=EXPLAINED_SLOT)
    for text in str(explanation).splitlines():
        line(text)
    facts = explanation.provenance
    landing = open_store(facts["raw_uri"].removesuffix(f"/{facts['raw_key']}"))
    try:
        digest = hashlib.sha256(landing.get(facts["raw_key"]).data).hexdigest()
    finally:
        landing.close()
    if digest != facts["raw_sha256"]:
        raise DemoFailed(
            f"{facts['raw_uri']} has sha256 {digest}, the sample was cut from {facts['raw_sha256']}"
        )
    line(f"the raw file has that sha256; the Dagster run: {pipeline.status_of(facts['run_id'])}")


def _clips(places: Places) -> None:
    """Compare frames read by their packets with the frames of whole files. Raises: DemoFailed if they differ."""
    with loader.Root(places.root) as root:
        clips = read_clips(root.open(f"{DATASET}@latest"))
    if clips is None:  # the version has no videos
        return
    headline(f"5. {clips.n_clips} clips of {FRAMES} frames, read by their packets")
    if not clips.equal:
        raise DemoFailed("frames read by packets are not those that the whole files decode to")
    line(
        f"{size(clips.read_bytes)} read of files of {size(clips.whole_bytes)}; every frame is the same, bit for bit"
    )


def _close(options: argparse.Namespace, places: Places, report: Report, *, has_training: bool) -> None:
    headline("Done")
    table(["stage", "in", "out", "rejected", "dropped", "seconds", "bytes"], report.rows)
    line("")
    print_commands(options.into, DATASET, has_training=has_training)
    line("")
    print_automation(places.source)
    if options.source is None:
        line("")
        line(RED_NODE)


if __name__ == "__main__":
    raise SystemExit(main())
