"""The demo over somebody's own files, as `make demo SOURCE=...` starts it. Without photos: no training, so quick."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

import loader
from assets.media.audio.flac import write_flac
from assets.media.clips.cut import cut_video
from assets.media.policy import CutPolicy
from assets.media.unit import Unusable
from examples.demo.__main__ import main
from examples.demo.damage import plant_truncated
from examples.demo.ui import newest_source
from penstock.stages import current_record


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "my files"
    (place / "Töne").mkdir(parents=True)
    noise = np.random.default_rng(3).integers(-9000, 9000, 48000, np.int16)
    write_flac(place / "Töne" / "rauschen.flac", noise, 44100)  # unlike the demo's own speech, of 16 kHz
    with av.open(str(place / "grey.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(60):
            grey = np.full((48, 64, 3), 3 * level, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        output.mux(stream.encode(None))
    return place


Demo = Callable[..., tuple[int, str, str]]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Demo:
    """The program in this process: its exit status and what it prints."""

    def go(into: Path, source: Path, *options: str) -> tuple[int, str, str]:
        for name in ("PENSTOCK_ROOT", "PENSTOCK_LANDING"):
            monkeypatch.setenv(name, "")  # the program sets them, and they are put back
        monkeypatch.setattr("sys.argv", ["demo", "--into", str(into), "--source", str(source), *options])
        status = main()
        return status, *capsys.readouterr()

    return go


def demo_commands(out: str) -> list[str]:
    """Return the commands that the demo prints at its end, less their comments."""
    block = out.partition("next, in ")[2].partition("\n   \n")[0].splitlines()[1:]
    return [text.partition("  #")[0].strip() for text in block]


def shell_output(text: str) -> str:
    """Return what a new shell in this folder prints, one that has nothing on its path."""
    environment = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def root_files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_own_files(tmp_path: Path, source: Path, demo: Demo) -> None:
    into = tmp_path / "demo"
    broken = source / "broken.mp4"
    plant_truncated(source / "grey.mp4", broken)
    (source / "broken too.mp4").write_bytes(broken.read_bytes())
    (source / "notes.bin").write_bytes(bytes(range(256)))  # no media, as folders have it
    before = root_files(source)

    stopped, out, err = demo(into, source)
    assert stopped == 1
    assert "'broken.mp4' (truncated" in err
    assert "(max_reject_rate)" in err
    assert "--max-reject-rate 0.5 (make demo MAX_REJECT_RATE=0.5)" in err
    assert "notes.bin" not in err

    stopped, out, err = demo(into, source, "--max-reject-rate", "0.5", "--max-not-media-rate", "0")
    assert stopped == 1
    assert "are not media; the limit is 0.0% (max_not_media_rate): 'notes.bin'" in err
    assert "--max-not-media-rate 0.5 (make demo MAX_NOT_MEDIA_RATE=0.5)" in err
    with loader.Root(into / "root") as root:
        assert root.datasets() == []

    stopped, out, err = demo(into, source, "--max-reject-rate", "0.5", "--cluster", "no-such.toml")
    assert (stopped, "no-such.toml" in err) == (1, True), err

    done, out, err = demo(into, source, "--max-reject-rate", "0.5")
    assert done == 0, err
    assert "demo@1: 2 samples" in out
    assert "the raw file has that sha256; the Dagster run: job demo_ingest, SUCCESS" in out
    assert "rejected broken.mp4: truncated" in out
    assert root_files(source) == before  # somebody's own files are only read
    assert "penstock view" not in out, "there was no training"
    assert os.path.samefile(newest_source(into), source), "where the sensor of `make ui` looks"
    assert f"what lands in {os.path.relpath(source)}" in out
    commands = [text for text in demo_commands(out) if not text.startswith("make ")]
    assert [text.split()[0] for text in commands] == ["source", "penstock", "penstock"]
    shown = shell_output("\n".join(commands))
    assert "demo@1" in shown
    assert (into / "card.html").stat().st_size > 1000

    kept = root_files(into / "root")
    again, out, err = demo(into, source, "--max-reject-rate", "0.5")
    assert again == 0, err
    assert "nothing to do" in out
    assert root_files(into / "root") == kept


def test_own_files_leave_a_stopped_batch_stopped(tmp_path: Path, source: Path, demo: Demo) -> None:
    into, slow = tmp_path / "demo", tmp_path / "raw/speech-2"
    slow.mkdir(parents=True)
    noise = np.random.default_rng(4).integers(-9000, 9000, 24000, np.int16)
    write_flac(slow / "slow.flac", noise, 8000)
    stopped, _, err = demo(into, slow.parent)
    assert stopped == 1
    assert "were not recorded at 16000 Hz" in err

    published, out, err = demo(into, source)
    assert published == 0, err
    assert "demo@1: 2 samples" in out
    with loader.Root(into / "root") as root:
        batches = {path.parent.name for path in (into / "root/stages/demo/version").rglob("*.json")}
        records = [current_record(root.store, "demo", "version", batch) for batch in batches]
    assert sorted(record.verdict for record in records if record is not None) == ["failed", "published"]


def test_source_that_is_empty_or_not_there(tmp_path: Path, demo: Demo) -> None:
    for place in (tmp_path / "empty", tmp_path / "nowhere"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done, _, err = demo(tmp_path / "demo", place)
        assert done == 1
        assert str(place) in err
        assert "Traceback" not in err


def test_planted_file_opens_and_is_refused(tmp_path: Path, source: Path) -> None:
    plant_truncated(source / "grey.mp4", tmp_path / "broken.mp4")
    with av.open(str(tmp_path / "broken.mp4")) as container:
        assert container.streams.video[0].frames == 60
    with pytest.raises(Unusable) as refused:
        cut_video(str(tmp_path / "broken.mp4"), tmp_path, CutPolicy())
    assert refused.value.code == "truncated"
