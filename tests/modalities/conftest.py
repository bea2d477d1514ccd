"""Media that the tests encode themselves: videos whose every frame carries its number in its pixels."""

import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest

from fuzz.seeds import ordinary_priority

WIDTH, HEIGHT, BLOCK = 96, 64, 12
_MS = Fraction(1, 1000)


def numbered(n: int) -> np.ndarray:
    """uint8 [64, 96, 3]: the bits of `n` as 8 blocks on a moving gradient; no two halves look alike."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([(x * 2 + n) % 200, (y * 3) % 200, np.full_like(x, 60)], axis=2).astype(np.uint8)
    for bit in range(8):
        picture[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 if n >> bit & 1 else 0
    return picture


def number_in(picture: np.ndarray) -> int:
    """The number that `numbered` burnt into a picture of its size."""
    return sum(
        1 << bit
        for bit in range(8)
        if picture[3 : BLOCK - 3, bit * BLOCK + 3 : (bit + 1) * BLOCK - 3].mean() > 128
    )


def encode_video(
    pts: list[int],
    *,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    movflags: str = "faststart",
    shift: Callable[[av.Packet, int], None] | None = None,
    rate: int = 1000,
) -> bytes:
    """An mp4 with one numbered frame per entry of `pts` (in 1/1000 s); `shift` may change packets before
    they are written. rate: frames a second that the encoder is told."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video.mp4")  # faststart reads the file again: memory will not do
        _write_video(path, pts, codec, options or {}, movflags, shift, rate)
        return path.read_bytes()


def _write_video(path, pts, codec, options, movflags, shift, rate) -> None:
    options_of_mp4 = {"movflags": movflags}
    with ordinary_priority(), av.open(str(path), "w", format="mp4", options=options_of_mp4) as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.thread_count = 1
        stream.codec_context.time_base = stream.time_base = _MS
        count = 0
        frames = [av.VideoFrame.from_ndarray(numbered(n), format="rgb24") for n in range(len(pts))]
        for frame, time in zip([*frames, None], [*pts, 0], strict=True):
            if frame is not None:
                frame.pts, frame.time_base = time, _MS
            for packet in stream.encode(frame):
                if shift is not None:
                    shift(packet, count)
                count += 1
                container.mux(packet)


def sequential(data: bytes) -> Iterator[np.ndarray]:
    """What a plain decode from the start shows, one frame after the other: the reference."""
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def shown(data: bytes, wanted: Sequence[int]) -> list[np.ndarray]:
    """What `sequential` gives of these frames, in their order; no other is turned into RGB, and none after the last is
    decoded."""
    with av.open(io.BytesIO(data)) as container:
        frames = islice(container.decode(video=0), max(wanted) + 1)
        found = {n: frame.to_ndarray(format="rgb24") for n, frame in enumerate(frames) if n in wanted}
    return [found[n] for n in wanted]


@pytest.fixture(scope="session")
def media():
    """The helpers of this file, for test modules that cannot import one another."""
    return MediaHelpers()


class MediaHelpers:
    WIDTH, HEIGHT = WIDTH, HEIGHT
    numbered = staticmethod(numbered)
    number_in = staticmethod(number_in)
    encode_video = staticmethod(encode_video)
    sequential = staticmethod(sequential)
    shown = staticmethod(shown)


VIDEOS = {
    "gop12": {"options": {"crf": "20", "g": "12", "bf": "0", "tune": "fastdecode"}},
    "one_gop_b": {"options": {"crf": "20", "g": "250", "bf": "3"}},
    "open_gop": {
        "options": {
            "crf": "20",
            "g": "10",
            "bf": "3",
            "x264-params": "open-gop=1:b-pyramid=normal:scenecut=0",
        }
    },
    "fragmented": {"options": {"crf": "20", "g": "12"}, "movflags": "frag_keyframe+empty_moov"},
    "hevc": {
        "codec": "libx265",
        "options": {"crf": "20", "x265-params": "keyint=12:bframes=3:open-gop=1:log-level=none:pools=none"},
    },
    "mpeg4": {"codec": "mpeg4", "options": {"g": "9", "bf": "2", "qscale": "4"}},
}


@pytest.fixture(scope="session")
def videos():
    """name -> (mp4 bytes, n_frames): constant and variable frame rates, closed, open and no GOPs."""
    steady = [n * 40 for n in range(60)]
    rng = np.random.default_rng(5)
    uneven = np.cumsum(rng.integers(5, 400, 60)).tolist()
    made = {name: (encode_video(steady, **how), 60) for name, how in VIDEOS.items()}
    made["vfr"] = (encode_video(uneven, **VIDEOS["one_gop_b"]), 60)
    made["vfr_gop12"] = (encode_video(uneven, **VIDEOS["gop12"]), 60)
    return made
