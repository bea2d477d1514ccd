"""Encode canonical clips that are small, fast to decode, and close to the source by measured PSNR.

Settings: x264 veryfast crf 21, tune fastdecode, keyframe every 12 frames, no B-frames, yuv420p, faststart, square
pixels, limited-range BT.601, source timestamps. `mbtree=0`, because with mbtree x264 sometimes writes other bytes for
the same frames, even on one thread (4 of 100 encodes). `qmax` bounds the error: with crf only, single frames fell to 34
dB; with it the worst measured is 36.5 dB.
"""

import contextlib
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..unit import rejected
from ..video.colour import Rendering

if TYPE_CHECKING:
    from av.packet import Packet, PacketSideData
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

QUALITIES = ({"crf": "21", "qmax": "28"}, {"crf": "16", "qmax": "22"}, {"crf": "10", "qmax": "14"})
"""Encoder settings in order of quality: if a frame falls below `MIN_PSNR_DB`, the next are used."""

MIN_PSNR_DB = 35.0
"""Lowest PSNR in dB of any frame."""

_X264 = {"preset": "veryfast", "tune": "fastdecode", "g": "12", "bf": "0", "x264-params": "mbtree=0"}
_MPEG_RANGE, _SMPTE170M = 1, 6  # AVCOL_RANGE_MPEG, AVCOL_SPC_SMPTE170M
_ERRORS = struct.Struct("<8x3Q")
_BEST_DB = 99.0  # PSNR in dB if there is no error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """PSNR in dB of a clip against its resized source frames, over all samples of Y, U, V."""

    psnr_db: float
    """PSNR of the clip's mean squared error."""
    worst_db: float
    """PSNR of the worst frame."""


class ClipEncoder:
    """Encodes one clip into a scratch file."""

    def __init__(
        self,
        path: Path,
        stream: "VideoStream",
        quality: Mapping[str, str] = QUALITIES[0],
    ) -> None:
        assert stream.time_base is not None  # index_packets rejects such streams
        self.path = path
        self.pts: list[int] = []
        self.size_px = (0, 0)
        self._quality = quality
        self._errors: list[int] = []
        self._rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        self._time_base = stream.time_base
        self.rendering: Rendering | None = None
        self._output: Any = None
        self._encoder: Any = None
        self._held: Any = None

    def add(self, frame: "VideoFrame", pts: int, rendering: Rendering) -> None:
        """Encode a yuv420p frame that is shown at `pts`.

        Raises: Unusable if size or colours change; av.error.FFmpegError.
        """
        if self._output is None:
            self._open(frame, rendering)
        if self.size_px != (frame.width, frame.height):
            now = (frame.width, frame.height)
            raise rejected("cut", "shape_change", f"{self.size_px} px becomes {now} px")
        if rendering is not self.rendering and (
            self.rendering is None or self.rendering.tags != rendering.tags
        ):
            raise rejected("cut", "colour_change", f"its colours change in mid-clip, at {pts} ticks")
        self.pts.append(pts)
        frame.pts = pts - self.pts[0]
        frame.time_base = self._time_base
        frame.pict_type = 0  # otherwise the encoder copies the source's I, P and B types
        self._write(self._encoder.encode(frame))

    def finish(self, end: int) -> None:
        """Write the encoder's remaining frames. end: end of the last frame in source ticks."""
        self._write(self._encoder.encode(None))
        if self._held is not None:  # all other frames last until the next one
            self._held.duration = end - self.pts[-1]
            self._output.mux(self._held)
        self.close()

    def close(self) -> None:
        """Write the muxer's remaining packets. Idempotent."""
        output, self._output = self._output, None
        self._held = None
        if output is not None:
            output.close()

    def abandon(self) -> None:
        """Close an unwanted clip, ignoring FFmpeg errors."""
        import av

        with contextlib.suppress(av.error.FFmpegError):
            self.close()

    def fidelity(self) -> Fidelity:
        """Return the finished clip's PSNR, from x264's own error sums."""
        samples = self.size_px[0] * self.size_px[1] * 3 // 2
        return Fidelity(
            psnr_db=psnr_db(sum(self._errors), samples * len(self._errors)),
            worst_db=psnr_db(max(self._errors), samples),
        )

    def _write(self, packets: "Iterable[Packet[VideoStream]]") -> None:
        for packet in packets:
            self._errors.append(_squared_error(packet.get_sidedata("quality_stats")))
            if self._held is not None:
                self._output.mux(self._held)
            self._held = packet

    def _open(self, frame: "VideoFrame", rendering: Rendering) -> None:
        import av
        from av.codec.context import Flags

        # Keep the source's ticks; the muxer would choose finer ones.
        options = {
            "movflags": "+faststart+write_colr",
            "video_track_timescale": str(self._time_base.denominator),
        }
        self._output = av.open(str(self.path), "w", format="mp4", options=options)
        self._encoder = self._output.add_stream(
            "libx264", rate=self._rate, options={**_X264, **self._quality}
        )
        self.rendering = rendering
        self.size_px = (frame.width, frame.height)
        self._encoder.width, self._encoder.height = self.size_px
        self._encoder.pix_fmt = "yuv420p"
        self._encoder.time_base = self._time_base
        context = self._encoder.codec_context
        context.time_base = self._time_base
        context.thread_count = 1
        context.flags |= Flags.psnr  # sums errors without changing the bytes
        context.color_range, context.colorspace = _MPEG_RANGE, _SMPTE170M
        context.color_primaries, context.color_trc = rendering.primaries, rendering.transfer


def psnr_db(squared_error: float, n_samples: int) -> float:
    """Return 10 log10(255^2 / MSE) for 8-bit samples."""
    if squared_error <= 0:
        return _BEST_DB
    return min(_BEST_DB, 10 * math.log10(255**2 * n_samples / squared_error))


def _squared_error(stats: "PacketSideData") -> int:
    # AV_PKT_DATA_QUALITY_STATS: u32 quality, u8 type, u8 n=3, u16, n u64 errors, one per plane.
    return sum(_ERRORS.unpack_from(memoryview(stats)))
