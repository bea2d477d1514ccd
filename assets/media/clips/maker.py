"""Canonical clips from frames as they come: upright, SDR, encoded anew."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..container import PacketIndex
from ..policy import VideoPolicy
from ..video.deinterlace import Deinterlacer
from ..video.spans import Span
from ..video.timestamps import TimedFrame
from ..video_colour.picture_filter import FrameFilter
from .clip import Clip
from .encoder import MIN_PSNR_DB, ClipEncoder
from .packet_field import PacketTables

if TYPE_CHECKING:
    from av.video.stream import VideoStream


class ClipMaker:
    """Makes the clips of all spans from a video's frames in display order. Spans may overlap. n: frames added."""

    def __init__(
        self,
        spans: Sequence[Span],
        index: PacketIndex,
        scratch: Path,
        policy: VideoPolicy,
        stream: "VideoStream",
        quality: Mapping[str, str],
    ) -> None:
        self.n = 0
        self._spans, self._index, self._scratch = spans, index, scratch
        self._stream, self._quality = stream, quality
        self._whole, self._shrink = Deinterlacer(stream), FrameFilter(stream, policy)
        self._tables = PacketTables()
        self._last_pts: int | None = None
        self._waiting = sorted(range(len(spans)), key=lambda place: -spans[place].start)
        self._open: dict[int, ClipEncoder] = {}
        self._n_deinterlaced: dict[int, int] = {}
        self._clips: list[Clip | None] = [None] * len(spans)

    def add(self, shown: TimedFrame) -> None:
        """Add the next frame; one that is not later than the previous is skipped.

        Raises: Unusable; av.error.FFmpegError, also for a full disk.
        """
        if not self.n:
            self._shrink.begin(shown.frame)
        self.n += 1
        if self._last_pts is None or shown.pts > self._last_pts:
            self._last_pts = shown.pts
            self._encode(self._whole.take(shown))

    def finish(self) -> list[Clip | None]:
        """Return a clip per span, in order; None for a span without a frame. Raises: as `add`."""
        self._encode(self._whole.rest())
        for place in list(self._open):
            self._finish(place)
        return self._clips

    def abandon(self) -> None:
        """Close the open clips."""
        for encoder in self._open.values():
            encoder.abandon()

    def _encode(self, ready: Iterable[tuple[TimedFrame, bool]]) -> None:
        for shown, was_interlaced in ready:
            self._turn_to(shown.pts)
            if not self._open:
                continue
            shown.frame.pts = shown.pts
            small = self._shrink.apply(shown.frame)
            assert self._shrink.rendering is not None  # set by `apply`
            for place, encoder in self._open.items():
                encoder.add(small, shown.pts, self._shrink.rendering)
                self._n_deinterlaced[place] += was_interlaced

    def _turn_to(self, pts: int) -> None:
        """Finish the clips that end before this frame, and open the ones that begin at it."""
        for place in [place for place in self._open if pts >= self._spans[place].end]:
            self._finish(place)
        while self._waiting and pts >= self._spans[self._waiting[-1]].start:
            place = self._waiting.pop()
            span = self._spans[place]
            if pts < span.end:
                target = self._scratch / f"clip-{place:04d}.mp4"
                self._open[place] = ClipEncoder(target, self._stream, self._quality)
                self._n_deinterlaced[place] = 0

    def _finish(self, place: int) -> None:
        encoder = self._open.pop(place)
        span, n_deinterlaced = self._spans[place], self._n_deinterlaced[place]
        self._clips[place] = finished(encoder, span, self._index, n_deinterlaced, self._tables)


def finished(
    encoder: ClipEncoder, span: Span, index: PacketIndex, n_deinterlaced: int, tables: PacketTables
) -> Clip:
    """Return the clip of a span, once the encoder has all its frames. Raises: Unusable; av.error.FFmpegError."""
    end = max(encoder.pts[-1] + 1, min(span.end, index.end_pts))
    try:
        encoder.finish(end)
    finally:
        encoder.abandon()
    assert encoder.rendering is not None  # it has a frame
    fidelity = encoder.fidelity()
    return Clip(
        path=encoder.path,
        packets=tables.write(encoder.path),
        span=span,
        pts=encoder.pts,
        end=end,
        size_px=encoder.size_px,
        requested=(0, len(encoder.pts)),
        mode="canonical",
        metadata={
            "psnr_db": round(fidelity.psnr_db, 3),
            "worst_psnr_db": round(fidelity.worst_db, 3),
            "n_deinterlaced": n_deinterlaced,
            "colour_treatment": encoder.rendering.treatment,
            "colour_assumed": encoder.rendering.assumed,
        },
    )


def good_enough(clips: Sequence[Clip | None]) -> bool:
    """Return whether every frame of every clip reaches `MIN_PSNR_DB`."""
    worst = [float(clip.metadata["worst_psnr_db"] or 0) for clip in clips if clip is not None]
    return min(worst, default=MIN_PSNR_DB) >= MIN_PSNR_DB
