"""Short videos, windows of consecutive frames of them, and the check that a window is what was written."""

import io
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from .data import Data

FRAMES, WINDOW = 64, 16
HEIGHT_PX, WIDTH_PX = 240, 320
GROUP = 32
"""Frames from one keyframe to the next."""
LEVELS = 2.5
"""Mean difference of levels below which two pictures are one frame: the next frame is 5 or more away."""

Frames = np.ndarray[Any, np.dtype[np.uint8]]
"""uint8 [T, H, W, 3], RGB."""


def encoded(i: int) -> bytes:
    """H.264 of a scene of noise that moves."""
    import av
    from PIL import Image

    rng, out = np.random.default_rng(i), io.BytesIO()
    coarse = (rng.random((60, 80, 3)) * 255).astype(np.uint8)
    scene = np.asarray(Image.fromarray(coarse).resize((2 * WIDTH_PX, 2 * HEIGHT_PX)), np.int16)
    scene = (scene + rng.integers(-12, 13, scene.shape)).clip(0, 255).astype(np.uint8)
    options = {
        "preset": "veryfast",
        "crf": "23",
        "sc_threshold": "0",
        "g": str(GROUP),
        "x264-params": "threads=1",
    }
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=25, options=options | {"keyint_min": str(GROUP)})
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = WIDTH_PX, HEIGHT_PX, "yuv420p", 1
        for n in range(FRAMES):
            y, x = int(120 + 100 * np.sin((n + i) / 17)), int(160 + 140 * np.sin((n + i) / 23))
            cut = np.ascontiguousarray(scene[y : y + HEIGHT_PX, x : x + WIDTH_PX])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(cut, format="rgb24")))
        file.mux(stream.encode(None))
    return out.getvalue()


def window(clip: Any, first: int) -> Frames:
    """Frames from `first` on, by PyAV with one thread: seek to the keyframe before, decode, convert."""
    import av

    out = []
    with av.open(clip) as file:
        stream = file.streams.video[0]
        stream.thread_count = 1
        rate, base = stream.average_rate, stream.time_base
        assert rate is not None
        assert base is not None
        file.seek(round(first // GROUP * GROUP / rate / base), stream=stream)
        for number, frame in enumerate(file.decode(stream), first // GROUP * GROUP):
            if number >= first:
                out.append(frame.to_ndarray(format="rgb24"))
            if len(out) == WINDOW:
                return np.stack(out)
    raise ValueError(f"a clip ended before frame {first + WINDOW}")


def random_window(clip: Any) -> Frames:
    return window(clip, random.randrange(FRAMES - WINDOW + 1))


class Windows:
    """Finds the clips that windows were taken of. Libraries convert colours alike to a level or two only."""

    def __init__(self, data: Data) -> None:
        kept = (
            data.folder / "thumbnails.npy"
        )  # of every frame, decoded in order; made by whoever checks first
        if not kept.exists():
            np.save(kept, np.stack([_thumbnails(clip) for clip in data]))
        self._frames: Frames = np.load(kept)

    def __call__(self, batch: Sequence[Any]) -> list[int | None]:
        return [self._sample(np.asarray(one)) for one in batch]

    def _sample(self, frames: Frames) -> int | None:
        """The clip, if these are consecutive frames of it."""
        if len(frames) != WINDOW:
            return None
        seen = np.stack([_thumbnail(one) for one in frames])
        for i, known in enumerate(self._frames):
            away = [_levels(seen[0], frame) for frame in known]
            first = int(np.argmin(away))
            if away[first] < LEVELS and first + WINDOW <= len(known):
                same = _levels(seen, known[first : first + WINDOW]) < LEVELS
                return i if same else None
        return None


def _thumbnails(clip: bytes) -> Frames:
    import av

    with av.open(io.BytesIO(clip)) as file:
        file.streams.video[0].thread_count = 1
        return np.stack([_thumbnail(frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)])


def _thumbnail(frame: Frames) -> Frames:
    return np.ascontiguousarray(frame[::16, ::16])


def _levels(a: Frames, b: Frames) -> float:
    """Mean difference, of 255 levels."""
    return float(np.abs(a.astype(np.int16) - b).mean())
