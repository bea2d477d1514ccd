"""Convert a decoded frame to a clip's small frame: orientation, square pixels, size, colour."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..policy import VideoPolicy
from ..unit import dropped, rejected
from .colour import (
    LUMA,
    UNTAGGED,
    Rendering,
    VideoSignal,
    bit_depth,
    display_matrix,
    frame_rendering,
    is_full_range,
    to_sdr,
)

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_SCALER = "flags=bicubic+accurate_rnd"
# Scaler from over 8 bits to 8. Without dither, equal samples stay equal. For 8 bits it changes nothing and
# takes 15 % longer.
_ROUNDED = f"{_SCALER}:sws_dither=none"

_OUT = f"{_ROUNDED}:out_color_matrix=bt601:out_range=tv"
_AS_BT601 = (5, 6)
"""H.273's numbers of matrices with BT.601's coefficients: bt470bg and smpte170m."""
_MAX_ASPECT = 16
"""Largest aspect ratio of a pixel, either way."""


class _FrameForm(NamedTuple):
    width: int
    height: int
    pix_fmt: str
    tags: tuple[int, int, int, int]


class FrameFilter:
    """FFmpeg filters, rebuilt whenever size, pixel format or colour tags change."""

    def __init__(self, stream: "VideoStream", policy: VideoPolicy) -> None:
        self._stream = stream
        self._policy = policy
        # Scales frames of `_form`; the first frame of each form builds it.
        self._scaling: _Chain | None = None
        # Converts `to_sdr`'s 16-bit RGB to yuv420p.
        self._rgb_to_yuv: _Chain | None = None
        self._form: _FrameForm | None = None
        # float32 [3, 3] of `step_to_bt601`; None if the scaled frame needs no such conversion.
        self._matrix_step: Samples | None = None
        # Peak luminance in cd/m^2 by the video's first frame; None if it is not HDR.
        self._peak_cd: float | None = None
        self.rendering: Rendering | None = None

    def begin(self, frame: "VideoFrame") -> None:
        """Read the video's first frame, whose metadata determines an HDR curve. Raises: Unusable."""
        signal = frame_rendering(frame, self._policy).signal
        if signal is None:
            self._peak_cd = None
        else:
            self._peak_cd = signal.peak_cd

    def apply(self, frame: "VideoFrame") -> "VideoFrame":
        """Return the frame upright, with square pixels, as 8-bit SDR yuv420p in limited BT.601; sets `rendering`.

        The shorter side is at most the policy's; sides are even. Raises: Unusable.
        """
        form = _frame_form(frame)
        if self._scaling is None or self._form != form:
            self.rendering = self._rendering(frame)
            self._scaling = self._make(frame, self.rendering.signal)
            self._rgb_to_yuv = None
            self._form = form
        small = self._scaling.apply(frame)
        signal = None
        if self.rendering:
            signal = self.rendering.signal
        if signal is not None:
            return self._map_colour(small, signal)
        if self._matrix_step is None:
            return small
        return to_bt601(small, self._matrix_step)

    def _rendering(self, frame: "VideoFrame") -> Rendering:
        """Return the rendering of a frame, with the first frame's peak: one HDR curve for the whole video."""
        rendering = frame_rendering(frame, self._policy)
        if rendering.signal is None or self._peak_cd is None:
            return rendering
        return replace(rendering, signal=replace(rendering.signal, peak_cd=self._peak_cd))

    def _map_colour(self, frame: "VideoFrame", signal: VideoSignal) -> "VideoFrame":
        """Return a scaled frame (yuv444p16le) as yuv420p in SDR."""
        import av

        samples = np.asarray(frame.to_ndarray(), np.uint16)
        rgb = av.VideoFrame.from_ndarray(to_sdr(samples, signal), format="rgb48le")
        rgb.pts = frame.pts
        rgb.time_base = frame.time_base
        if self._rgb_to_yuv is None:
            source = {
                "width": rgb.width,
                "height": rgb.height,
                "format": rgb.format,
                "time_base": frame.time_base or Fraction(1, 1000),  # PyAV's own guess, without its warning
            }
            chain = [("scale", f"{rgb.width}:{rgb.height}:{_OUT}"), ("format", "yuv420p")]
            self._rgb_to_yuv = _Chain(source, chain)
        return self._rgb_to_yuv.apply(rgb)

    def _make(self, frame: "VideoFrame", signal: VideoSignal | None) -> "_Chain":
        """Return the filters that turn and scale frames of this form, and set `_matrix_step`. Raises: Unusable."""
        turns, swapped = matrix_filters(display_matrix(frame))
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        if not Fraction(1, _MAX_ASPECT) <= aspect <= _MAX_ASPECT:
            raise rejected("cut", "pixel_aspect", f"pixels of {aspect.numerator}:{aspect.denominator}")
        width_px = float(frame.width * aspect)
        height_px = float(frame.height)
        if swapped:
            width_px, height_px = height_px, width_px
        width, height = fit(width_px, height_px, self._policy.short_side_px)
        if signal is not None:  # scales only; `to_sdr` converts colours
            self._matrix_step = None
            matrix = signal.matrix
            full = signal.full_range
            pix_fmt = "yuv444p16le"
        elif frame.format.is_rgb:  # the scaler converts it
            self._matrix_step = None
            matrix = BT601
            full = False
            pix_fmt = "yuv420p"
        else:
            tagged = int(frame.colorspace)
            pix_fmt = "yuv420p"
            if tagged == UNTAGGED:
                matrix = BT601
            else:
                matrix = tagged
            full = is_full_range(frame)
            is_limited_bt601 = matrix in _AS_BT601 and not full
            if is_limited_bt601:
                self._matrix_step = None
            else:
                self._matrix_step = step_to_bt601(matrix, full, bit_depth(frame))
        # Matrix and range stay as they are: the scaler must not convert them (`step_to_bt601`).
        range_name = "pc" if full else "tv"
        output = f"out_color_matrix={NAMES[matrix]}:out_range={range_name}"
        flags = _ROUNDED if bit_depth(frame) > 8 else _SCALER
        scale = f"{width}:{height}:{flags}:{output}"
        source = {
            "template": self._stream,
            "width": frame.width,
            "height": frame.height,
            "format": frame.format,
        }
        chain = [*turns, ("scale", scale), ("setsar", "1"), ("format", pix_fmt)]
        return _Chain(source, chain)


class _Chain:
    """Chain of FFmpeg filters. source: arguments for PyAV's `add_buffer`; filters: names and options."""

    def __init__(self, source: Mapping[str, Any], filters: list[tuple[str, str]]) -> None:
        import av.filter

        self._graph = av.filter.Graph()  # its nodes do not keep it alive
        self._graph.threads = 1  # there is a worker per core, so more threads would only wait
        nodes = [self._graph.add_buffer(**source)]
        nodes += [self._graph.add(name, options) for name, options in [*filters, ("buffersink", "")]]
        for before, after in pairwise(nodes):
            before.link_to(after)
        self._graph.configure()
        # Called directly: the graph would search its nodes for source and sink for every frame.
        self._first = nodes[0]
        self._last = nodes[-1]

    def apply(self, frame: "VideoFrame") -> "VideoFrame":
        self._first.push(frame)
        return cast("VideoFrame", self._last.pull())


def _frame_form(frame: "VideoFrame") -> _FrameForm:
    tags = (frame.color_range, frame.colorspace, frame.color_primaries, frame.color_trc)
    return _FrameForm(frame.width, frame.height, frame.format.name, tags)


def fit(width_px: float, height_px: float, short_side_px: int) -> tuple[int, int]:
    """Return the nearest even size whose shorter side is at most `short_side_px`, never enlarged."""
    scale = min(1.0, short_side_px / min(width_px, height_px))
    return max(2, 2 * round(width_px * scale / 2)), max(2, 2 * round(height_px * scale / 2))


def matrix_filters(matrix: tuple[int, ...] | None) -> tuple[list[tuple[str, str]], bool]:
    """Return FFmpeg filters for a display matrix (a b u c d v x y w), and whether width and height swap.

    x' = a x + c y, y' = b x + d y, y down. Raises: Unusable unless it is a quarter turn or mirror, at any uniform
    scale.
    """
    if matrix is None:
        return [], False
    a, b, c, d = (value / 65536 for value in (matrix[0], matrix[1], matrix[3], matrix[4]))
    size = max(map(abs, (a, b, c, d)))
    upright = all(abs(value) <= 0.01 * size for value in (b, c)) and abs(abs(a) - abs(d)) <= 0.01 * size
    sideways = all(abs(value) <= 0.01 * size for value in (a, d)) and abs(abs(b) - abs(c)) <= 0.01 * size
    if size == 0 or not (upright or sideways):
        numbers = ", ".join(f"{value:.3g}" for value in (a, b, c, d))
        raise dropped(
            "cut",
            "rotation",
            f"its display matrix ({numbers}) is neither a quarter turn nor a mirror",
            given=[a, b, c, d],
        )
    if sideways:
        # 1 clock, 2 cclock; mirrored: 0 cclock_flip, 3 clock_flip
        turn = {(True, False): "1", (False, True): "2", (True, True): "0", (False, False): "3"}[b > 0, c > 0]
        return [("transpose", turn)], True
    if a < 0:
        flips = [("hflip", "")]
    else:
        flips = []
    return flips + ([("vflip", "")] if d < 0 else []), False


BT601 = 6
NAMES: Mapping[int, str] = {
    1: "bt709", 4: "fcc", 5: "bt470", 6: "smpte170m", 7: "smpte240m", 9: "bt2020",
}  # fmt: skip
"""ITU-T H.273 number -> matrix name of FFmpeg's scale filter."""

Samples = npt.NDArray[np.float32]


def to_rgb(matrix: int) -> npt.NDArray[np.float64]:
    """Return [3, 3] from Y' (0 to 1), Cb, Cr (-0.5 to 0.5) to R'G'B'; H.273's equations 38 to 40 inverted."""
    kr, kb = LUMA[matrix]
    kg = 1 - kr - kb
    return np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    )


@cache
def step_to_bt601(matrix: int, full_range: bool, bits: int) -> Samples:
    """Return [3, 3] that converts 8-bit samples from this matrix and range to limited BT.601.

    Chroma depends only on chroma, as grey stays grey. FFmpeg's scaler makes green 1.1 to 1.7 levels too dark.
    """
    limited = np.diag([219.0, 224.0, 224.0])  # levels; full range has 255, or 1023 / 4 if 10 bits became 8
    if full_range:
        scale = (2**bits - 1) / 2 ** (bits - 8) * np.eye(3)
    else:
        scale = limited
    step = limited @ np.linalg.inv(to_rgb(BT601)) @ to_rgb(matrix) @ np.linalg.inv(scale)
    matrix_step: Samples = step.astype(np.float32)
    return matrix_step


def to_bt601(frame: "VideoFrame", step: Samples) -> "VideoFrame":
    """Return a yuv420p frame in limited BT.601. step: result of `step_to_bt601`."""
    import av

    samples = convert_layout(np.asarray(frame.to_ndarray()), frame.height, step)
    converted_frame = av.VideoFrame.from_ndarray(samples, format="yuv420p")
    converted_frame.pts = frame.pts
    converted_frame.time_base = frame.time_base
    return converted_frame


def convert_layout(samples: npt.NDArray[Any], height: int, step: Samples) -> npt.NDArray[np.uint8]:
    """Convert uint8 [3/2 height, width] in PyAV's yuv420p layout.

    Two chroma planes of half height and width lie behind the luma. step: float32 [3, 3], result of `step_to_bt601`.
    """
    width = samples.shape[1]
    luma = samples[:height].astype(np.float32).reshape(height // 2, 2, width // 2, 2)
    chroma = samples[height:].reshape(2, height // 2, width // 2).astype(np.float32) - 128
    blue, red = chroma
    if abs(step[0, 0] - 1) > 0.01:  # full range: black is 0
        luma *= step[0, 0]
        luma += 16
    # A chroma sample belongs to 2 x 2 of luma.
    luma += (step[0, 1] * blue + step[0, 2] * red)[:, None, :, None]
    out = np.empty(samples.shape, np.uint8)
    out[:height] = _bytes(luma).reshape(height, width)
    halves = out[height:].reshape(2, height // 2, width // 2)
    halves[0] = _bytes(step[1, 1] * blue + step[1, 2] * red + 128)
    halves[1] = _bytes(step[2, 1] * blue + step[2, 2] * red + 128)
    return out


def _bytes(values: Samples) -> npt.NDArray[np.uint8]:
    np.rint(values, out=values)
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)
