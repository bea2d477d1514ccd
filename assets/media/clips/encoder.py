"""The canonical clip: small, quick to decode, and near to its source by a measured amount.

x264 veryfast crf 21, tune fastdecode, a keyframe every 12 frames, no B-frames, yuv420p, faststart, display orientation
and square pixels. Limited-range BT.601, and tagged so with the primaries and transfer that the samples have. Every
frame is at its source's timestamp, and the last one lasts as long as the source shows it within the clip.

`mbtree=0`: with it x264 gives other bytes for the same frames now and then, on one thread too (4 of 100 encodes of one
clip). The same video must give the same clip. Without it crf 21 has the bytes of crf 20 with it and 5 % more, and 0.2
dB more. Rate control is no longer misled at hard cuts either.

`qmax` bounds the error: by rate control alone single frames fell to 34 dB; now the worst frame of the media this was
tried on is at 36.5 dB. The encoder, which knows bit for bit what a decoder will see, measures how near a clip came;
`Fidelity` tells it.
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
from ..video_colour.colour import Rendering

if TYPE_CHECKING:
    from av.packet import Packet, PacketSideData
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

QUALITIES = ({"crf": "21", "qmax": "28"}, {"crf": "16", "qmax": "22"}, {"crf": "10", "qmax": "14"})
"""A video of which a frame falls below `MIN_PSNR_DB` is cut again with the next; none of the media tried needed it."""

MIN_PSNR_DB = 35.0
"""PSNR that every frame of every clip reaches."""

_X264 = {"preset": "veryfast", "tune": "fastdecode", "g": "12", "bf": "0", "x264-params": "mbtree=0"}
_MPEG_RANGE, _SMPTE170M = 1, 6  # AVCOL_RANGE_MPEG, AVCOL_SPC_SMPTE170M
_ERRORS = struct.Struct("<8x3Q")
_BEST_DB = 99.0
"""PSNR in dB of a picture without any error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """PSNR in dB of a clip against its source's frames brought to the clip's size, over all samples of Y, U, V.

    `_BEST_DB` stands for no error.
    """

    psnr_db: float
    """PSNR of the clip's mean squared error."""
    worst_db: float
    """PSNR of its worst frame."""


class ClipEncoder:
    """One clip being encoded into a scratch file."""

    def __init__(
        self,
        path: Path,
        stream: "VideoStream",
        quality: Mapping[str, str] = QUALITIES[0],
    ) -> None:
        assert stream.time_base is not None  # index_packets refused such a stream
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

    def add(self, picture: "VideoFrame", pts: int, rendering: Rendering) -> None:
        """Encode a picture, yuv420p, shown at `pts`.

        Raises: Unusable when its size or colours are not those of the clip's first; av.error.FFmpegError, also for a
        full disk.
        """
        if self._output is None:
            self._open(picture, rendering)
        if self.size_px != (picture.width, picture.height):
            now = (picture.width, picture.height)
            raise rejected("cut", "shape_change", f"{self.size_px} px becomes {now} px")
        if rendering is not self.rendering and (
            self.rendering is None or self.rendering.tags != rendering.tags
        ):
            raise rejected("cut", "colour_change", f"its colours change in mid-clip, at {pts} ticks")
        self.pts.append(pts)
        picture.pts = pts - self.pts[0]
        picture.time_base = self._time_base
        picture.pict_type = 0  # the source's I, P and B types are not the encoder's business
        self._write(self._encoder.encode(picture))

    def finish(self, end: int) -> None:
        """Write the frames that the encoder still holds. end: when the last frame ends, in the source's ticks."""
        self._write(self._encoder.encode(None))
        if self._held is not None:  # of the others the next one's time says how long they are shown
            self._held.duration = end - self.pts[-1]
            self._output.mux(self._held)
        self.close()

    def close(self) -> None:
        """Write the packets that the muxer still holds; the second time do nothing."""
        output, self._output = self._output, None
        self._held = None
        if output is not None:
            output.close()

    def abandon(self) -> None:
        """Close a clip that is not wanted any more, whatever goes wrong."""
        import av

        with contextlib.suppress(av.error.FFmpegError):
            self.close()

    def fidelity(self) -> Fidelity:
        """Fidelity of a finished clip."""
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

    def _open(self, picture: "VideoFrame", rendering: Rendering) -> None:
        import av
        from av.codec.context import Flags

        # The clip counts in the source's own ticks; the muxer would choose a multiple of them.
        options = {
            "movflags": "+faststart+write_colr",
            "video_track_timescale": str(self._time_base.denominator),
        }
        self._output = av.open(str(self.path), "w", format="mp4", options=options)
        self._encoder = self._output.add_stream(
            "libx264", rate=self._rate, options={**_X264, **self._quality}
        )
        self.rendering = rendering
        self.size_px = (picture.width, picture.height)
        self._encoder.width, self._encoder.height = self.size_px
        self._encoder.pix_fmt = "yuv420p"
        self._encoder.time_base = self._time_base
        context = self._encoder.codec_context
        context.time_base = self._time_base
        context.thread_count = 1
        context.flags |= Flags.psnr  # the errors are counted; the bytes are the same
        context.color_range, context.colorspace = _MPEG_RANGE, _SMPTE170M
        context.color_primaries, context.color_trc = rendering.primaries, rendering.transfer


def psnr_db(squared_error: float, n_samples: int) -> float:
    """Return 10 log10(255^2 / MSE) of 8-bit samples."""
    if squared_error <= 0:
        return _BEST_DB
    return min(_BEST_DB, 10 * math.log10(255**2 * n_samples / squared_error))


def _squared_error(stats: "PacketSideData") -> int:
    """Return the sum over the planes.

    AV_PKT_DATA_QUALITY_STATS: u32 quality, u8 type, u8 n, u16, n u64 errors; n is 3.
    """
    return sum(_ERRORS.unpack_from(memoryview(stats)))
