"""A batch of covered lenses and dead microphones stops without any history."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from PIL import Image

import loader
from assets.checks import CheckResult
from assets.gate_settings import Gate
from assets.spec import DatasetSpec
from loader.errors import InvalidSpec
from penstock.approvals import approve
from penstock.stages import StageRecord, current_record
from tests.refusals import refusal
from tests.wav_files import pcm_wav

Run = Callable[..., dg.ExecuteInProcessResult]
Arrive = Callable[[Path], str]

SPEC = DatasetSpec(name="demo")
N = 6
"""Objects of a batch; five blank ones stop it."""


def jpeg(pixels: np.ndarray) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "JPEG", quality=95)
    return sink.getvalue()


def black_photo(number: int) -> bytes:
    """A black photo as a camera takes it: noise of a few levels."""
    noise = np.random.default_rng(number).normal(3, 3, (300, 400, 3))
    return jpeg(noise.clip(0, 255).astype(np.uint8))


def scene(number: int) -> bytes:
    """A dark photo with a lamp in it."""
    pixels = np.full((300, 400, 3), 4, np.uint8)
    pixels[40:90, 30 * number : 30 * number + 50] = 220
    return jpeg(pixels)


def mask(number: int) -> bytes:
    """A label image of the classes 0 and 1, as PNG."""
    pixels = np.zeros((60, 80), np.uint8)
    pixels[10:30, number : number + 20] = 1
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def pcm(values: np.ndarray) -> bytes:
    return pcm_wav(values, 16_000)


def silence(number: int) -> bytes:
    return pcm(np.random.default_rng(number).integers(-2, 3, 16000))


def constant_audio(number: int) -> bytes:
    return pcm(np.full(16000 + number, 9000))


def write_objects(folder: Path, make: Callable[[int], bytes], name: str, n: int = N) -> Path:
    """Write n objects below folder; name: of each, with {} for its number."""
    for number in range(n):
        path = folder / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make(number))
    return folder


def check_verdict(root: loader.Root, batch: str) -> tuple[StageRecord, CheckResult]:
    record = current_record(root.store, "demo", "version", batch)
    assert record is not None
    (body,) = [one for one in record.body["checks"] if one["name"] == "blank"]
    return record, CheckResult.from_json(body)


@pytest.mark.parametrize(
    ("make", "name", "state"),
    [
        (black_photo, "front/{}.jpg", "black"),
        (lambda number: jpeg(np.full((60, 80 + number, 3), 128, np.uint8)), "front/{}.jpg", "flat"),
        (silence, "calls/{}.wav", "silent"),
        (constant_audio, "calls/{}.wav", "constant"),
    ],
)
def test_first_batch_of_blank_objects_stops(
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    tmp_path: Path,
    make: Callable[[int], bytes],
    name: str,
    state: str,
) -> None:
    place = write_objects(tmp_path / "place", make, name)
    batch = arrive(place)
    assert run("ingest", SPEC, batch, place).success
    assert not run("release", SPEC).success
    assert not root.state.versions("demo")
    _, check = check_verdict(root, batch)
    assert check.explanation.startswith(f"6 of 6 objects are {state} (")
    assert "Gate(blank=0.5)" in check.explanation
    assert len(check.findings[0]["keys"]) == 5


def test_second_batch_of_a_black_camera_stops_until_a_person_approves_it(
    run: Run, arrive: Arrive, root: loader.Root, tmp_path: Path
) -> None:
    honest = write_objects(tmp_path / "honest", scene, "front/{}.jpg")
    assert run("ingest", SPEC, arrive(honest), honest).success
    assert run("release", SPEC).success

    # The front camera works. The rear camera is covered: its source stops, not the kind.
    place = write_objects(tmp_path / "next", lambda number: scene(number + 6), "front/new{}.jpg", n=4)
    write_objects(place, black_photo, "rear/{}.jpg", n=5)
    more = write_objects(
        place, lambda number: jpeg(np.full((50, 60 + number, 3), 90 * number, np.uint8)), "roof/{}.jpg", 2
    )
    batch = arrive(more)
    assert run("ingest", SPEC, batch, place).success
    assert not run("release", SPEC).success
    record, check = check_verdict(root, batch)
    assert "(image)" in check.explanation  # 7 of 11 photos
    assert len(root.state.versions("demo")) == 1

    approve(root, "demo", batch, record=record.r, by="Ada", reason="night shift")
    assert run("ingest", SPEC, batch, place).success
    assert run("release", SPEC).success
    assert len(root.open("demo@2")) == 6 + 4 + 5 + 2


def test_black_source_among_healthy_ones_stops(
    run: Run, arrive: Arrive, root: loader.Root, tmp_path: Path
) -> None:
    place = write_objects(tmp_path / "place", scene, "front/{}.jpg")
    write_objects(place, black_photo, "rear/{}.jpg", n=5)
    batch = arrive(place)
    assert run("ingest", SPEC, batch, place).success
    assert not run("release", SPEC).success
    _, check = check_verdict(root, batch)
    assert "5 of 5 objects are black (image, source 'rear')" in check.explanation


@pytest.mark.parametrize(
    ("make", "name", "n"),
    [(scene, "front/{}.jpg", N), (mask, "masks/{}.png", N), (black_photo, "front/{}.jpg", 4)],
)
def test_dark_scenes_masks_and_a_few_black_photos_are_published(
    run: Run,
    arrive: Arrive,
    root: loader.Root,
    tmp_path: Path,
    make: Callable[[int], bytes],
    name: str,
    n: int,
) -> None:
    place = write_objects(tmp_path / "place", make, name, n)
    assert run("ingest", SPEC, arrive(place), place).success
    assert run("release", SPEC).success
    assert len(root.open("demo@1")) == n


def test_gate_without_the_check_publishes_black_photos(
    run: Run, arrive: Arrive, root: loader.Root, tmp_path: Path
) -> None:
    spec = replace(SPEC, gate=Gate(blank=None))
    place = write_objects(tmp_path / "place", black_photo, "front/{}.jpg")
    assert run("ingest", spec, arrive(place), place).success
    assert run("release", spec).success
    assert len(root.open("demo@1")) == N


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0, float("nan")])
def test_share_out_of_range_is_refused(share: float) -> None:
    with refusal(InvalidSpec, what="blank", given=share):
        Gate(blank=share)
