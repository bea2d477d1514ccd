"""The measurement of false alarms over real media, at a small size: what it draws, counts and writes down."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.gates import alarms
from benchmarks.gates.honest import Deliveries
from benchmarks.gates.media import Pool, pool


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Pool]:
    """(media, rows, pool): eight photos of noise in a corpus with a manifest, and what the stages make of them."""
    media, rows = tmp_path_factory.mktemp("media"), tmp_path_factory.mktemp("rows")
    (media / "image").mkdir()
    draw, lines = np.random.default_rng(0), ["file,why,duration_s"]
    for n in range(8):
        path = media / f"image/{n}.jpg"
        Image.fromarray(draw.integers(0, 255, (60, 80 + n % 2, 3), np.uint8)).save(path)
        lines.append(f"image/{n}.jpg,photo number {n},")
    (media / "MANIFEST.csv").write_text("\n".join(lines))
    return media, rows, pool("photos", media, rows)


def test_each_object_that_is_drawn_is_one_of_its_own(photos: tuple[Path, Path, Pool]) -> None:
    batch = Deliveries(photos[2]).draw(np.random.default_rng(1), 40, "alike")
    assert len(batch.samples) == len(batch.media) == batch.outcomes.landed == batch.outcomes.used == 40
    assert batch.samples["key"].n_unique() == batch.samples["raw_sha256"].n_unique() == 40
    assert set(batch.samples["raw_key"]) == set(batch.media["key"])
    ratios = batch.samples["aspect_ratio"].unique()
    assert len(ratios) > 20  # last digits
    assert ratios.round(6).n_unique() == 2
    assert batch.texts is not None
    assert len(batch.texts.keys) == 40


def test_what_is_judged_is_counted_and_kept(
    photos: tuple[Path, Path, Pool], capsys: pytest.CaptureFixture[str]
) -> None:
    media, rows, _ = photos
    os.utime(rows / "photos.pickle", (1, 1))
    options = [
        "--media",
        str(media),
        "--rows",
        str(rows),
        "--families",
        "photos",
        "--sizes",
        "8",
        "--share",
        "0.02",
    ]
    assert alarms.main([*options, "--published", "3"]) == 0
    assert (rows / "photos.pickle").stat().st_mtime == 1  # derived once
    said = capsys.readouterr().out
    assert "| objects 8 | 0 of 2, at most" in said
    found = list(alarms.read(rows / "judged.jsonl"))
    assert [(one.how, one.n_objects, one.n_published) for one in found] == [
        (how, 8, 3) for how in alarms.DRAWS for _ in range(2)
    ]
    assert alarms.main([*options, "--published", "3", "--seed", "2"]) == 0
    assert "| objects 8 | 0 of 4, at most" in capsys.readouterr().out


def test_batch_that_is_another_is_an_alarm(photos: tuple[Path, Path, Pool]) -> None:
    deliveries, rng = Deliveries(photos[2]), np.random.default_rng(2)
    before = alarms.baseline([deliveries.draw(rng, 60, "alike") for _ in range(3)])
    now = deliveries.draw(rng, 60, "alike")
    assert list(alarms.stopped_by(now, before)) == []
    black = now.samples.with_columns(luma_mean_ratio=now.samples["luma_mean_ratio"] / 4)
    found = {column for _, column, _ in alarms.stopped_by(replace(now, samples=black), before)}
    assert found == {"luma_mean_ratio"}
