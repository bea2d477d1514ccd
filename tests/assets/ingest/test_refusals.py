"""Which word an object is refused with, and what counts in which limit; a copy has the verdict of what it copies."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

import loader
from assets.arrivals.batches import IngestBatches
from assets.arrivals.make_batches import discover
from assets.ingest import media, units
from assets.ingest.raw_objects import land
from assets.media.image import cut as image_cut
from assets.samples.samples_asset import samples_stage
from assets.spec import DatasetSpec
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.stages import StageRecord

MakeJpeg = Callable[..., bytes]
Accounts = dict[str, tuple[str, str]]
SPEC = DatasetSpec(name="demo")
TOLERANT = replace(SPEC, max_reject_rate=1.0, max_not_media_rate=1.0, max_untrue_rate=1.0)


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    made = loader.Root(tmp_path / "root")
    made.create()
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def land_batch(root: loader.Root, place: Path) -> str:
    """The batch of what arrived since."""
    store = open_store(str(place))
    (batch,) = discover(root.store, store, "demo")
    land(root.store, store, dataset="demo", partition=batch, run_id="r")
    return batch


def audit_verdict(root: loader.Root, place: Path, spec: DatasetSpec) -> tuple[StageRecord, Accounts]:
    """The verdict of the audit, and key -> (outcome, code) of refused objects."""
    (*_, batch) = batches(root, place)
    record, _, refusals = media.media_stage(
        root, open_store(str(place)), InlineCompute(), spec, partition=batch, run_id="r"
    )
    return record, {row["key"]: (row["outcome"], row["code"]) for row in refusals}


def batches(root: loader.Root, place: Path) -> Iterator[str]:
    yield land_batch(root, place)


def sample_verdict(
    root: loader.Root, place: Path, batch: str, spec: DatasetSpec
) -> tuple[StageRecord, Accounts]:
    """The verdict of the samples, and key -> (outcome, code) of all objects."""
    store, told = open_store(str(place)), {"partition": batch, "run_id": "r"}
    media.media_stage(root, store, InlineCompute(), spec, **told)
    units.units_stage(root, store, InlineCompute(), spec, **told)
    record, objects = samples_stage(root, spec, **told)
    return record, {row["key"]: (row["outcome"], row["code"]) for row in objects}


def fill(place: Path, make_jpeg: MakeJpeg, copies: bytes, n_copies: int, n_healthy: int) -> None:
    for number in range(n_copies):
        (place / f"copy {number}.jpg").write_bytes(copies)
    for number in range(n_healthy):
        (place / f"photo {number}.jpg").write_bytes(make_jpeg(40 + number, 30))


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_copies_of_a_damaged_object_are_damaged(
    root: loader.Root, place: Path, make_jpeg: MakeJpeg, damage: str
) -> None:
    fill(place, make_jpeg, b"" if damage == "empty" else make_jpeg(80, 60)[:700], 8, 2)
    record, refused = audit_verdict(root, place, replace(SPEC, max_reject_rate=0.2))
    assert record.verdict == "failed"
    assert record.reason.startswith(
        "8 of 10 objects are unreadable; the limit is 20.0% (max_reject_rate): 'copy 0.jpg'"
    )
    assert "'copy 1.jpg'" in record.reason
    assert "the same bytes as 'copy 0.jpg': " in record.reason
    assert set(refused) == {f"copy {number}.jpg" for number in range(8)}
    assert {outcome for outcome, _ in refused.values()} == {"rejected"}
    assert record.counts["rejected"] == 8


def test_copies_of_a_healthy_object_are_duplicates(
    root: loader.Root, place: Path, make_jpeg: MakeJpeg
) -> None:
    fill(place, make_jpeg, make_jpeg(80, 60), 3, 0)
    record, refused = audit_verdict(root, place, SPEC)
    assert record.verdict == "published"
    assert refused == dict.fromkeys(("copy 1.jpg", "copy 2.jpg"), ("dropped", "duplicate"))


def test_copies_of_what_an_earlier_batch_rejected_are_damaged(
    root: loader.Root, place: Path, make_jpeg: MakeJpeg
) -> None:
    fill(place, make_jpeg, b"", 1, 1)
    batch = land_batch(root, place)
    assert sample_verdict(root, place, batch, TOLERANT)[1]["copy 0.jpg"] == ("rejected", "empty")
    (place / "later.jpg").write_bytes(b"")
    (place / "once more.jpg").write_bytes(b"")
    record, refused = audit_verdict(root, place, SPEC)
    assert record.verdict == "failed"
    assert refused == dict.fromkeys(("later.jpg", "once more.jpg"), ("rejected", "empty"))


def test_copies_of_what_the_cut_rejects_count_in_each_limit(
    root: loader.Root, place: Path, make_jpeg: MakeJpeg, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    fill(place, make_jpeg, make_jpeg(80, 60, exif=exif), 6, 2)
    monkeypatch.setattr(
        image_cut, "upright", lambda picture, *_: picture
    )  # what is turned comes out as it lies
    batch = land_batch(root, place)
    store, told = open_store(str(place)), {"partition": batch, "run_id": "r"}
    media.media_stage(root, store, InlineCompute(), SPEC, **told)
    stopped, _, _ = units.units_stage(
        root, store, InlineCompute(), replace(SPEC, max_untrue_rate=0.2), **told
    )
    assert stopped.verdict == "failed"
    assert stopped.reason.startswith("6 of 8 objects differ from their source after the cut")
    (seen,) = IngestBatches("demo").current(root)
    assert sum(seen.refused.values()) == 6  # each once, though two stages refused it

    record, accounts = sample_verdict(
        root, place, batch, replace(SPEC, max_untrue_rate=1.0, max_reject_rate=0.2)
    )
    assert record.verdict == "failed"
    assert record.reason.startswith("6 of 8 objects are unreadable")
    copies = {
        code for key, (outcome, code) in accounts.items() if key.startswith("copy") and outcome == "rejected"
    }
    assert copies == {"rotation_ignored"}
    assert record.counts["rejected"] == 6


def sound(path: Path, container: str, codec: str) -> None:
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=16_000, layout="mono")
        tone = (8000 * np.sin(np.arange(32_000) / 5)).astype(np.int16)[None, :]
        frame = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 16_000, 0, Fraction(1, 16_000)
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def test_healthy_formats_that_are_not_supported_stop_no_batch(
    root: loader.Root, place: Path, make_jpeg: MakeJpeg
) -> None:
    Image.new("RGB", (8, 8)).save(place / "a.ppm")
    Image.new("RGB", (8, 8)).save(place / "b.tga")
    Image.new("RGB", (8, 8)).save(place / "c.jp2")
    (place / "copy of a.ppm").write_bytes((place / "a.ppm").read_bytes())
    fill(place, make_jpeg, b"", 0, 1)
    record, refused = audit_verdict(root, place, SPEC)
    assert (record.verdict, record.counts["rejected"], record.counts["not_supported"]) == ("published", 0, 4)
    assert set(refused.values()) == {("not_supported", "not_supported")}

    (place / "d.ppm").write_bytes(b"P6 1 1 255\n\1\2\3")
    stopped, _ = audit_verdict(root, place, replace(SPEC, max_unsupported_rate=0.5))
    assert stopped.verdict == "failed"
    assert stopped.reason.startswith(
        "1 of 1 objects are of unsupported formats; the limit is 50.0% (max_unsupported_rate): 'd.ppm' (not_supported"
    )


@pytest.mark.parametrize(
    ("name", "container", "codec"),
    [("a.aiff", "aiff", "pcm_s16be"), ("a.caf", "caf", "pcm_s16le"), ("a.w64", "w64", "pcm_s16le")],
)
def test_other_sounds_become_samples(
    root: loader.Root, place: Path, name: str, container: str, codec: str
) -> None:
    sound(place / name, container, codec)
    record, accounts = sample_verdict(root, place, land_batch(root, place), SPEC)
    assert accounts == {name: ("used", "")}
    assert record.counts["audio"] == 1


def test_error_pages_in_the_place_of_photos_stop_the_batch(
    root: loader.Root, place: Path, make_jpeg: MakeJpeg
) -> None:
    fill(place, make_jpeg, b"<!doctype html><html><h1>403 Forbidden</h1>", 3, 1)
    (place / "about.html").write_bytes(b"<!doctype html><html>A page")
    (place / "about.png").write_bytes((place / "about.html").read_bytes())
    (place / "denied.png").write_bytes(b"<?xml version='1.0'?><Error>AccessDenied</Error>")
    record, refused = audit_verdict(root, place, replace(SPEC, max_not_media_rate=0.5))
    assert record.verdict == "failed"
    assert record.reason.startswith(
        "5 of 7 objects are not media; the limit is 50.0% (max_not_media_rate): 'about.png' (web_page: "
    )
    assert refused["copy 2.jpg"] == ("not_media", "web_page")
    assert refused["denied.png"] == ("not_media", "other_content")
    assert refused["about.html"] == ("dropped", "type_not_taken")
    assert (record.counts["rejected"], record.counts["not_media"], record.counts["dropped"]) == (0, 5, 1)


def test_subtitles_beside_a_film_are_no_samples(root: loader.Root, place: Path, landing: Path) -> None:
    for path in landing.glob("videos/*.mp4"):
        (place / "film.mp4").write_bytes(path.read_bytes())
    (place / "film.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nHello\n")
    (place / "film.de.vtt").write_text("WEBVTT\n\n00:00.000 --> 00:01.000\nHallo\n")
    record, accounts = sample_verdict(root, place, land_batch(root, place), SPEC)
    assert accounts["film.mp4"] == ("used", "")
    assert accounts["film.srt"] == accounts["film.de.vtt"] == ("dropped", "subtitles")
    assert record.counts["text"] == 0
