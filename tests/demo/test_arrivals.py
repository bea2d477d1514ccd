"""The demo's three arrivals, over a small folder of media made here instead of the ones that pip brings."""

import io
import json
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

import loader
from assets.checks import audio_rate
from assets.media.audit import audit
from assets.media.sniff import sniff
from assets.media.unit import Unusable
from assets.pipeline.tables import read_table
from examples.demo import arrivals
from examples.demo.clips import read_clips
from examples.demo.pipeline import Pipeline, Places
from examples.demo.publishing import publish_arrivals
from examples.demo.show import Report
from examples.media import ORIGINS
from penstock.stages import current_record

N_PHOTOS, N_VIDEOS, N_SPEECH = 7, 3, 4


def wav(draw: np.random.Generator) -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as target:
        target.setparams((1, 2, 16_000, 0, "NONE", ""))
        target.writeframes(draw.integers(-9000, 9000, 20_001, np.int16).tobytes())
    return sink.getvalue()


def video(path: Path, shade: int) -> None:
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(30):
            pixels = np.full((48, 64, 3), shade + 2 * number, np.uint8)
            pixels[number % 40 :: 8] = 255 - shade
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode(None))


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Laid out as the fetched media are."""
    place, draw = tmp_path_factory.mktemp("arrivals") / "media", np.random.default_rng(11)
    for folder in ("photos/cats", "photos/dogs", "videos", "speech"):
        (place / folder).mkdir(parents=True)
    for number in range(N_PHOTOS):
        pixels = draw.integers(60, 255, (80 + number, 96, 3), np.uint8)
        Image.fromarray(pixels).save(
            place / "photos" / ("cats", "dogs")[number % 2] / f"{number}.jpg", "JPEG"
        )
    for number in range(N_VIDEOS):
        video(place / "videos" / f"{number}.mp4", 20 + 40 * number)
    for number in range(N_SPEECH):
        (place / "speech" / f"{number}.wav").write_bytes(wav(draw))
    keys = [path.relative_to(place).as_posix() for path in place.rglob("*.*")]
    origins = {key: {"licence": "CC0-1.0", "author": "me", "title": f"Number {key}"} for key in keys}
    (place / ORIGINS).write_text(json.dumps(origins), encoding="utf-8")
    return place


def there(raw: Path) -> set[str]:
    files = (path.relative_to(raw).as_posix() for path in raw.rglob("*") if path.is_file())
    return {name for name in files if name != ORIGINS}


def test_what_lands_when(media: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    first = arrivals.first(media, raw)
    assert there(raw) == first
    assert {name.split("/")[0] for name in first} == {"photos", "videos", "speech"}
    assert json.loads((raw / ORIGINS).read_text()) == json.loads((media / ORIGINS).read_text())
    second = arrivals.second(media, raw)
    assert there(raw) == first | second
    assert not first & second
    fetched = {path.relative_to(media).as_posix() for path in arrivals.media_files(media)}
    assert len(fetched) == N_PHOTOS + N_VIDEOS + N_SPEECH
    assert (first | second) - fetched == {
        arrivals.BROKEN_VIDEO,
        arrivals.TRUNCATED_PHOTO,
        arrivals.DUPLICATE,
        arrivals.NEAR_DUPLICATE,
        arrivals.WRONG_SUFFIX,
    }
    third = arrivals.third(media, raw)
    assert there(raw) == first | second | third
    assert len(third) == N_SPEECH

    times = {path: path.stat().st_mtime_ns for path in raw.rglob("*")}
    for again, keys in ((arrivals.first, first), (arrivals.second, second), (arrivals.third, third)):
        assert again(media, raw) == keys
    assert {path: path.stat().st_mtime_ns for path in raw.rglob("*")} == times


def test_what_is_wrong_with_the_second_arrival(media: Path, tmp_path: Path) -> None:
    first = arrivals.first(media, tmp_path)
    arrivals.second(media, tmp_path)
    for broken, code in ((arrivals.BROKEN_VIDEO, "truncated"), (arrivals.TRUNCATED_PHOTO, "undecodable")):
        path = tmp_path / broken
        with pytest.raises(Unusable) as refused:
            audit(str(path), sniff(path.read_bytes()[:4096]))
        assert refused.value.code == code
    duplicate = (tmp_path / arrivals.DUPLICATE).read_bytes()
    assert duplicate in [(tmp_path / key).read_bytes() for key in first]
    renamed = tmp_path / arrivals.WRONG_SUFFIX
    assert renamed.suffix == ".mp4"
    assert sniff(renamed.read_bytes()) == "image/jpeg"
    audit(str(renamed), "image/jpeg")


def test_half_of_the_third_arrival_is_at_half_the_rate(media: Path, tmp_path: Path) -> None:
    import polars as pl

    found = []
    for key in sorted(arrivals.third(media, tmp_path)):
        with (
            wave.open(str(tmp_path / key)) as made,
            wave.open(str(media / "speech" / Path(key).name)) as source,
        ):
            assert made.getnframes() / made.getframerate() == pytest.approx(
                source.getnframes() / source.getframerate(), abs=2 / 8000
            )
            found.append(made.getframerate())
    assert found == [16_000, 8_000] * (N_SPEECH // 2)
    assert audio_rate(pl.DataFrame({"source_sample_rate_hz": found}), (16_000,)).value == 0.5


def test_arrivals_become_two_versions_and_the_third_none(
    media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PENSTOCK_ROOT", "PENSTOCK_LANDING"):
        monkeypatch.setenv(name, "")  # the pipeline sets them, and they are put back
    raw = str(tmp_path / "raw")
    places = Places(root=tmp_path / "root", home=tmp_path / "home", source=raw, engine="inline")
    pipeline, report = Pipeline(places), Report()
    try:
        publish_arrivals(media, places, pipeline, report)
        told = capsys.readouterr().out
        assert "published demo@1" in told
        assert "published demo@2" in told
        assert "rejected videos/broken.mp4: truncated" in told
        assert "rejected photos/others/truncated.jpg: undecodable" in told
        assert "dropped  photos/others/again.jpg: duplicate" in told
        assert "dropped  photos/others/smaller.jpg: near_duplicate (near_duplicate of image/" in told
        assert "audio_rate: 2 of 4 audio units (50.0%) were not recorded at 16000 Hz" in told
        with loader.Root(places.root) as root:
            assert [record.number for record in root.state.versions("demo")] == [1, 2]
            table = root.open("demo@2").samples().collect()
            assert arrivals.WRONG_SUFFIX in set(table["raw_key"])
            assert not [key for key in table["raw_key"] if key.startswith(arrivals.AGAIN)]
            clips = read_clips(root.open("demo@2"))
            assert clips is not None
            assert clips.equal
            assert clips.read_bytes < clips.whole_bytes
            batches = [found.batch for found in pipeline.discover()]
            verdicts = [current_record(root.store, "demo", "version", batch) for batch in batches]
            assert [found.verdict for found in verdicts if found] == ["published", "published", "failed"]
            for batch in batches:
                record = current_record(root.store, "demo", "samples", batch)
                assert record is not None
                outcomes = [row["outcome"] for row in read_table(root.store, record.files["objects"])]
                assert len(outcomes) == record.counts["landed"]
                assert set(outcomes) <= {"used", "rejected", "dropped"}
        stages = [row[0] for row in report.rows]
        assert stages == ["raw_objects", "media", "units", "features", "samples", "demo@2"]

        before = {path: path.read_bytes() for path in places.root.rglob("*") if path.is_file()}
        again = Report()
        publish_arrivals(media, places, pipeline, again)
        assert capsys.readouterr().out.count("a version has all of it already") == 2
        assert {path: path.read_bytes() for path in places.root.rglob("*") if path.is_file()} == before
        assert [row[:5] for row in again.rows] == [row[:5] for row in report.rows]
    finally:
        pipeline.close()
