"""The drift gate over batches that went through the whole pipeline: what it reads of them, and what it stops."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from PIL import Image

import loader
from assets.drift.compare import published_records, version_baseline
from assets.gate_settings import GATE
from assets.pipeline.stages import require_published
from assets.spec import DatasetSpec, Feature
from penstock.stages import current_record
from tests.assets.conftest import wav

Run = Callable[..., dg.ExecuteInProcessResult]
SPEC = DatasetSpec(
    name="demo",
    label_from="folder",
    features=(Feature(name="picture"),),
    max_reject_rate=0.2,
    gate=replace(GATE, blank=None),  # it would stop the black photos too
)
N_PHOTOS, N_SOUNDS = 40, 20


def deliver(
    place: Path, seed: int, *, black: float = 0.0, rate_hz: int = 16_000, label: str = "dogs"
) -> Path:
    """Photos of noise around a level, of two labels, and sounds. black: share of the photos that show nothing."""
    draw = np.random.default_rng(seed)
    for n in range(N_PHOTOS):
        named = label if n % 2 else "cats"
        level = 0 if n < black * N_PHOTOS else int(draw.integers(60, 190))
        noise = draw.integers(0, 30, (30, 40, 3)) * (level > 0)
        sink = io.BytesIO()
        Image.fromarray((level + noise).astype(np.uint8)).save(
            sink, "JPEG", quality=90, comment=f"{seed} {n}".encode()
        )
        path = place / f"camera/{named}/{seed}-{n:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sink.getvalue())
    for n in range(N_SOUNDS):
        path = place / f"calls/{seed}-{n:03d}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav(0.3 + 0.01 * n + 0.0001 * seed, rate_hz if n % 2 else 16_000))
    return place


@pytest.fixture
def honest_batches(run: Run, arrive: Callable[[Path], str], tmp_path: Path) -> list[str]:
    """The batches of three honest deliveries, in three versions."""
    batches = []
    for seed in (1, 2, 3):
        place = deliver(tmp_path / str(seed), seed)
        batches.append(arrive(place))
        assert run("ingest", SPEC, batches[-1], place).success
        assert run("release", SPEC).success
    return batches


def test_feed_and_what_it_must_not_become(
    run: Run, arrive: Callable[[Path], str], root: loader.Root, tmp_path: Path, honest_batches: list[str]
) -> None:
    # Versions that are not a batch of their own are passed by.
    newest = root.open("demo@latest")
    root.exclude(
        newest.id, newest.keys(np.array([0])), reason="by hand", producer={"stage_record": "stages/x"}
    )
    version = root.open("demo@latest")
    assert list(published_records(root, version, 2)) == honest_batches[:0:-1]
    baseline = version_baseline(root, version)
    assert [set(one.samples["partition"]) for one in baseline.batches] == [
        {name} for name in reversed(honest_batches)
    ]
    assert [(one.outcomes.landed, one.outcomes.used, len(one.media)) for one in baseline.batches] == [
        (60, 60, 60)
    ] * 3
    assert len(baseline.batches[-1].samples) == 59  # the excluded one
    assert set(baseline.batches[0].features) == {"picture"}
    assert baseline.categories["label"] == {"cats", "dogs", "calls"}

    honest = deliver(tmp_path / "honest", 4)
    batch = arrive(honest)
    assert run("ingest", SPEC, batch, honest).success
    assert run("release", SPEC).success
    assert require_published(root.store, "demo", "version", batch).approved_by == ""

    bad = deliver(tmp_path / "bad", 5, black=0.8, rate_hz=8_000, label="hounds")
    batch = arrive(bad)
    assert run("ingest", SPEC, batch, bad).success
    stopped = run("release", SPEC)
    assert not stopped.success
    record = current_record(root.store, "demo", "version", batch)
    assert record is not None
    (drift,) = [one for one in record.body["checks"] if one["name"] == "drift"]
    found = {(one["what"].partition(" (")[0], one["column"].partition(" =")[0]) for one in drift["findings"]}
    assert {
        ("distribution", "luma_mean_ratio"),
        ("share", "source_sample_rate_hz"),
        ("share", "sample_rate_hz"),  # of the objects
        ("renamed", "label"),
    } <= found, drift["explanation"]
    unwatched = replace(SPEC, gate=replace(SPEC.gate, thresholds=None))
    assert run("ingest", unwatched, batch, bad).success
    assert run("release", unwatched).success  # nothing else would have stopped it
