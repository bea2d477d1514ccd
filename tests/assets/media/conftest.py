"""Videos and sounds whose every frame and sample is known."""

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from assets.media.audit import audit
from assets.media.cutters import ALL_KINDS
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.unit import Unusable
from fuzz.seeds import ordinary_priority

Frames = list[np.ndarray]


def encode(
    path: Path,
    frames: Frames,
    *,
    pts: list[int] | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    source_format: str = "rgb24",
    tags: dict[str, int] | None = None,
    options: dict[str, str] | None = None,
    container: str = "mp4",
    matrix: tuple[int, ...] | None = None,
    height_px: int = 0,
    sound: tuple[np.ndarray, int, str] | None = None,
    sound_start_s: float = 0.0,
) -> Path:
    """frames: uint8 [H, W, 3], at `pts` ms (every 40 ms); sound: (int16 samples, rate in Hz, codec)."""
    base = Fraction(1, 1000)
    times = pts if pts is not None else list(range(0, 40 * len(frames), 40))
    more = {"movflags": "faststart", "video_track_timescale": "1000"} if container == "mp4" else {}
    with ordinary_priority(), av.open(str(path), "w", format=container, options=more) as out:
        stream = out.add_stream(codec, rate=25, options=options or {"crf": "1", "g": "25"})
        stream.height, stream.width = height_px or frames[0].shape[0], frames[0].shape[1]
        stream.pix_fmt = pix_fmt
        stream.time_base = base
        stream.codec_context.time_base = base
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        if matrix is not None:
            stream.set_display_matrix(matrix)
        voice = None
        if sound is not None:
            samples, rate_hz, sound_codec = sound
            voice = out.add_stream(sound_codec, rate=rate_hz, layout="mono")
        for ticks, pixels in zip(times, frames, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format=source_format)
            frame.pts, frame.time_base = ticks, base
            for name, value in (tags or {}).items():
                setattr(frame, name, value)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        if sound is not None and voice is not None:
            whole = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
            whole.sample_rate, whole.pts, whole.time_base = rate_hz, 0, Fraction(1, rate_hz)
            resampler = av.AudioResampler(format=voice.codec_context.format, layout="mono", rate=rate_hz)
            fifo = av.AudioFifo()
            for piece in resampler.resample(whole):
                fifo.write(piece)
            size = voice.codec_context.frame_size or 1024
            while (piece := fifo.read(size, partial=True)) is not None:
                if sound_start_s:
                    piece.pts += round(sound_start_s * rate_hz)
                out.mux(voice.encode(piece))
            out.mux(voice.encode(None))
    return path


def noise(n_frames: int, height: int = 64, width: int = 96, seed: int = 0) -> Frames:
    """Smooth colour noise, another picture in every frame: nothing can be predicted."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (n_frames, height // 8, width // 8, 3), np.uint8)
    return [np.kron(picture, np.ones((8, 8, 1), np.uint8)) for picture in small]


def numbered(n_frames: int, height: int = 64, width: int = 96) -> Frames:
    """Frame i is the grey 40 + 2 i."""
    return [np.full((height, width, 3), 40 + 2 * number, np.uint8) for number in range(n_frames)]


@pytest.fixture
def encode_video(tmp_path: Path) -> Callable[..., str]:
    def make(frames: Frames, name: str = "source", **options: object) -> str:
        return str(encode(tmp_path / name, frames, **options))  # type: ignore[arg-type]

    return make


@pytest.fixture
def noise_frames() -> Callable[..., Frames]:
    return noise


@pytest.fixture
def numbered_frames() -> Callable[..., Frames]:
    return numbered


def write_sound(
    path: Path,
    samples: np.ndarray,
    rate_hz: int,
    *,
    codec: str = "pcm_f32le",
    container: str = "wav",
    layout: str = "",
    start_s: float = 0.0,
    hole_s: float = 0.0,
    options: dict[str, str] | None = None,
) -> str:
    """float [channels, n], full scale = 1, through one of FFmpeg's encoders; its timestamps begin at `start_s`, and
    from sample 10,000 on they are `hole_s` later."""
    layout = layout or {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[len(samples)]
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate_hz, layout=layout, options=options or {})
        resampler = av.AudioResampler(format=stream.codec_context.format.name, layout=layout, rate=rate_hz)
        packed = np.ascontiguousarray(samples.T, dtype=np.float32).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
        fifo = av.AudioFifo()
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            fifo.write(piece)
        while (piece := fifo.read(stream.codec_context.frame_size or 1000, partial=True)) is not None:
            piece.pts += round((start_s + (hole_s if piece.pts >= 10_000 else 0)) * rate_hz)
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return str(path)


@pytest.fixture
def sound_file(tmp_path: Path) -> Callable[..., str]:
    def make(samples: np.ndarray, rate_hz: int = 48_000, name: str = "sound", **options: object) -> str:
        return write_sound(tmp_path / name, np.atleast_2d(samples), rate_hz, **options)  # type: ignore[arg-type]

    return make


_ROBOT = "robot/g1_lerobot_v21/videos/chunk-000/observation.images.cam_high/episode_0000{}.mp4"
ALIKE = (
    # Six minutes, a long index: the larger one, a third of the whole corpus' time, comes on one day of four.
    ("video/ax_long_1080p_lowbitrate.mp4", *3 * ("video/ax_long_180p_av1.mp4",)),
    tuple(_ROBOT.format(number) for number in (10, 11, 12, 22, 24)),  # one camera of one robot
)
"""Files of the corpus that cost most, by what they are there for: in CI one of each a day, another each day."""


@pytest.fixture(scope="session")
def nightly_files(at_scale: Callable[[bool, bool], bool]) -> frozenset[str]:
    """Files of the corpus, as its tables name them, that are left to `make test-full` today."""
    day = date.today().toordinal()
    if at_scale(False, True):
        return frozenset()
    return frozenset(name for names in ALIKE for name in names if name != names[day % len(names)])


@pytest.fixture(scope="session")
def audit_row(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    """audit_row(path) -> the audit's row, or {"refused": (outcome, code)}; once per file, whatever process asks."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "audits"
    folder.mkdir(exist_ok=True)

    def run_audit(path: Path) -> dict[str, Any]:
        with open(path, "rb") as file:
            mime = sniff(file.read(HEAD_BYTES))
        try:
            return audit(str(path), mime, ALL_KINDS)
        except Unusable as unusable:
            return {"refused": (unusable.outcome, unusable.code)}

    @cache
    def cached_row(path: Path) -> dict[str, Any]:
        with open(folder / hashlib.sha256(bytes(path)).hexdigest(), "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another process may be at it
            if os.path.getsize(file.fileno()) == 0:
                file.write(pickle.dumps(run_audit(path)))
            file.seek(0)
            row: dict[str, Any] = pickle.load(file)  # noqa: S301 - our own
            return row

    return cached_row
