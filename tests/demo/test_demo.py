"""The demo over somebody's own files, as `make demo SOURCE=...` starts it. Without photos: no training, so quick."""

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

import loader
from assets.media.speech import write_flac
from assets.media.unit import CutPolicy, Unusable
from assets.media.video import cut_video
from examples.demo.damage import plant_truncated

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "my files"
    (place / "Töne").mkdir(parents=True)
    noise = np.random.default_rng(3).integers(-9000, 9000, 48000, np.int16)
    write_flac(place / "Töne" / "rauschen.flac", noise, 16000)
    with av.open(str(place / "grey.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(60):
            grey = np.full((48, 64, 3), 3 * level, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        output.mux(stream.encode(None))
    return place


def demo(into: Path, source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo", "--into", str(into), "--source", str(source), *options]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False)


def stored(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_own_files(tmp_path: Path, source: Path) -> None:
    into = tmp_path / "demo"
    broken = source / "broken.mp4"
    plant_truncated(source / "grey.mp4", broken)
    before = stored(source)

    stopped = demo(into, source)
    assert stopped.returncode == 1
    assert "'broken.mp4' (truncated" in stopped.stderr
    assert "--max-reject-rate" in stopped.stderr
    with loader.Root(into / "root") as root:
        assert root.datasets() == []

    done = demo(into, source, "--max-reject-rate", "0.5")
    assert done.returncode == 0, done.stderr
    assert "demo@1: 2 samples" in done.stdout
    assert "the raw file has that sha256; the Dagster run: job demo_ingest, SUCCESS" in done.stdout
    assert "rejected broken.mp4: truncated" in done.stdout
    assert stored(source) == before  # somebody's own files are only read

    kept = stored(into / "root")
    again = demo(into, source, "--max-reject-rate", "0.5")
    assert again.returncode == 0, again.stderr
    assert "nothing to do" in again.stdout
    assert stored(into / "root") == kept

    broken.unlink()
    write_flac(source / "new.flac", np.random.default_rng(4).integers(-900, 900, 32000, np.int16), 16000)
    more = demo(into, source)
    assert more.returncode == 0, more.stderr
    assert "demo@2: 3 samples" in more.stdout


def test_a_source_that_is_empty_or_not_there(tmp_path: Path) -> None:
    for place in (tmp_path / "empty", tmp_path / "nowhere"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = demo(tmp_path / "demo", place)
        assert done.returncode == 1
        assert str(place) in done.stderr
        assert "Traceback" not in done.stderr


def test_the_planted_file_opens_and_is_refused(tmp_path: Path, source: Path) -> None:
    plant_truncated(source / "grey.mp4", tmp_path / "broken.mp4")
    with av.open(str(tmp_path / "broken.mp4")) as container:
        assert container.streams.video[0].frames == 60
    with pytest.raises(Unusable) as refused:
        cut_video(str(tmp_path / "broken.mp4"), tmp_path, CutPolicy())
    assert refused.value.code == "truncated"
