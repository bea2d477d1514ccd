"""Measure a video's frames at 64 x 36 px, and some at 512 x 288 px.

Blocks of 256 frames share NumPy's cost per call: about 0.1 ms per 720p frame.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .shots import SMALL_PX, Floats, Frames, ShotDetector

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

BLACK_LEVEL, BLACK_SHARE = 26, 0.98  # FFmpeg's blackdetect: 98 % of the pixels below a tenth of white
FROZEN_LEVELS = 0.255  # FFmpeg's freezedetect: mean absolute difference of a thousandth

SHARP_PX, SHARP_EVERY = (512, 288), 12
"""(width, height) in px at which sharpness is measured, and the interval in frames."""

MAX_HASHES = 64
"""Most keyframe hashes; whenever there are more, every other one is dropped."""

_CHUNK_FRAMES = 256
_HASH_SIDE = 8


class FrameStatistics:
    """Luma, motion, black and frozen frames, black bars, sharpness, keyframe hashes and scene cuts."""

    def __init__(self) -> None:
        from av.video.reformatter import Interpolation, VideoReformatter

        self._small, self._large = VideoReformatter(), VideoReformatter()
        self._area = int(Interpolation.AREA)  # PyAV would look up the name for every frame
        self._chunk: Frames = np.empty((_CHUNK_FRAMES, SMALL_PX[1], SMALL_PX[0]), np.uint8)
        self._pts: list[int] = []
        self._keys: list[int] = []  # positions in the chunk
        self._brightest: Frames = np.zeros((SMALL_PX[1], SMALL_PX[0]), np.uint8)
        self._n = self._n_black = self._n_frozen = self._n_sharp = 0
        self._luma = self._motion = self._sharpness = 0.0
        self._hashes = KeyframeHashes()
        self._shots = ShotDetector()

    def add(self, frame: "VideoFrame", pts: int) -> None:
        """Add the next frame in display order. pts: its display time."""
        if self._n % SHARP_EVERY == 0:
            large = self._large.reformat(frame, *SHARP_PX, "gray", interpolation=self._area, threads=1)
            self._sharpness += sharpness(_luma(large))
            self._n_sharp += 1
        small = self._small.reformat(frame, *SMALL_PX, "gray", interpolation=self._area, threads=1)
        place = len(self._pts)
        self._chunk[place] = _luma(small)
        if frame.key_frame:
            self._keys.append(place)
        self._pts.append(pts)
        self._n += 1
        if len(self._pts) == _CHUNK_FRAMES:
            self._measure()

    def settled(self) -> tuple[list[int], int | None]:
        """Return the final scene cuts so far: see `ShotDetector.settled`."""
        return self._shots.settled()

    def facts(self) -> Mapping[str, Any]:
        """Return the media table columns. Raises: ZeroDivisionError if there is no frame."""
        self._measure()
        letterbox, pillarbox = bars(self._brightest)
        return {
            "luma_mean": self._luma / self._n,
            "black_ratio": self._n_black / self._n,
            "frozen_ratio": self._n_frozen / self._n,
            "motion": self._motion / max(1, self._n - 1),
            "sharpness": self._sharpness / self._n_sharp,
            "letterbox_ratio": letterbox,
            "pillarbox_ratio": pillarbox,
            "keyframe_hashes": [text for _, text in self._hashes.items],
            "keyframe_pts": [pts for pts, _ in self._hashes.items],
            "scene_cuts": self._shots.finish(),
        }

    def _measure(self) -> None:
        n = len(self._pts)
        if not n:
            return
        luma = self._chunk[:n]
        pixels = luma[0].size
        levels = self._shots.feed(luma, self._pts)
        self._luma += int(levels.total.sum()) / pixels
        dark = (luma < BLACK_LEVEL).reshape(n, -1).sum(axis=1, dtype=np.uint32)
        self._n_black += int((dark >= BLACK_SHARE * pixels).sum())
        change = levels.change[self._n == n :]  # the very first frame has no predecessor
        self._motion += int(change.sum()) / pixels
        self._n_frozen += int((change < FROZEN_LEVELS * pixels).sum())
        self._brightest = np.maximum(self._brightest, luma.max(axis=0))
        for place, text in zip(self._keys, image_hashes(luma[self._keys]), strict=True):
            self._hashes.add(self._pts[place], text)
        self._pts, self._keys = [], []


def _luma(frame: "VideoFrame") -> Frames:
    plane = frame.planes[0]
    return np.ndarray((frame.height, frame.width), np.uint8, memoryview(plane), 0, (plane.line_size, 1))


class KeyframeHashes:
    """Hashes of at most `MAX_HASHES` evenly spread keyframes."""

    def __init__(self) -> None:
        self.items: list[tuple[int, str]] = []
        self._every, self._n = 1, 0

    def add(self, pts: int, text: str) -> None:
        if self._n % self._every == 0:
            if len(self.items) == MAX_HASHES:
                self.items = self.items[::2]
                self._every *= 2
            if self._n % self._every == 0:
                self.items.append((pts, text))
        self._n += 1


def sharpness(luma: Frames) -> float:
    """Return the 4-neighbour Laplacian's variance of uint8 [height, width], in squared levels of 255.

    Both sides must be below 2048 px, so that a line's squares add up in 32 bits.
    """
    wide = luma.astype(np.int16)
    edges = wide[:-2, 1:-1] + wide[2:, 1:-1]
    edges += wide[1:-1, :-2]
    edges += wide[1:-1, 2:]
    edges -= wide[1:-1, 1:-1] << 2
    exact = edges.astype(np.int32)
    # BLAS is avoided because its threads busy-wait.
    squares = int(np.einsum("ij,ij->i", exact, exact).sum(dtype=np.int64))
    total = int(exact.sum(axis=0, dtype=np.int32).sum(dtype=np.int64))
    return squares / exact.size - (total / exact.size) ** 2


def bars(brightest: Frames) -> tuple[float, float]:
    """Return the shares of (height, width) at the edges that are black in every frame."""
    return _dark_edges(brightest.max(axis=1)), _dark_edges(brightest.max(axis=0))


def _dark_edges(line: Frames) -> float:
    lit = line >= BLACK_LEVEL
    if not lit.any():
        return 1.0
    return float(lit.argmax() + lit[::-1].argmax()) / len(lit)


def image_hashes(luma: Frames) -> list[str]:
    """Return a 64-bit hash in hex per image, uint8 [n, 36, 64]: which low DCT coefficients exceed their median.

    Recompressed copies differ in about 4 bits, other images in about 32.
    """
    down, right = _dct(SMALL_PX[1]), _dct(SMALL_PX[0])
    columns = np.einsum("ki,nij->nkj", down, luma.astype(np.float64))  # as in `sharpness`: without BLAS
    low = np.round(np.einsum("nkj,lj->nkl", columns, right), 3).reshape(len(luma), _HASH_SIDE**2)
    bits = low > np.median(low, axis=1, keepdims=True)
    return [packed.tobytes().hex() for packed in np.packbits(bits, axis=1)]


def _dct(n: int) -> Floats:
    rows = np.arange(_HASH_SIDE)[:, None] * (2 * np.arange(n)[None] + 1) * np.pi / (2 * n)
    cosines: Floats = np.cos(rows)
    return cosines
