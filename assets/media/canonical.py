"""Canonical clips of a video: decoded, made upright and SDR, encoded anew. One decode for all clips."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .clip import Clip
from .clip_encoder import MIN_PSNR_DB, QUALITIES, ClipEncoder
from .colour import Rendering
from .container import PacketIndex, moving_picture, opened
from .deinterlace import Deinterlacer
from .packet_field import write_packets
from .picture_filter import PictureFilter
from .policy import VideoPolicy
from .scratch import check_scratch
from .span_frames import CannotSeek, frames_of, prepare
from .spans import Span
from .timestamps import Shown
from .unit import rejected

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


class Picture(NamedTuple):
    """A picture as it is encoded, when it is shown, how its colours came about."""

    picture: "VideoFrame"
    pts: int
    rendering: Rendering
    was_interlaced: bool


def canonical_clips(
    path: str,
    spans: Sequence[Span],
    index: PacketIndex,
    scratch: Path,
    policy: VideoPolicy,
    audit: Mapping[str, Any],
) -> list[Clip | None]:
    """A clip per span, in their order; None for one in which no frame begins.

    audit: the video's row of the media table; without it the video is decoded to its end. A clip of which a frame falls
    below `MIN_PSNR_DB` is made again at a higher quality, and all others with it. Raises: Unusable.
    """
    order = _Order(path=path, spans=spans, index=index, scratch=scratch, policy=policy)
    seeks = bool(audit)
    for quality in QUALITIES:
        try:
            clips = _encoded(order, audit, quality, seeks)
        except CannotSeek:
            seeks = False
            clips = _encoded(order, audit, quality, seeks)
        worst = [float(clip.metadata["worst_psnr_db"] or 0) for clip in clips if clip is not None]
        if min(worst, default=MIN_PSNR_DB) >= MIN_PSNR_DB:
            return clips
    raise rejected("cut", "psnr", f"no encoding of it has {MIN_PSNR_DB:.0f} dB in every frame")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What is to be cut."""

    path: str
    spans: Sequence[Span]
    index: PacketIndex
    scratch: Path
    policy: VideoPolicy


def _encoded(
    order: _Order, audit: Mapping[str, Any], quality: Mapping[str, str], seeks: bool
) -> list[Clip | None]:
    """Raises: Unusable; CannotSeek."""
    import av

    with opened(order.path) as container:
        stream = moving_picture(container)
        assert stream is not None  # the same file, a moment later
        prepare(stream, audit)
        work = _Work(order, stream, quality)
        try:
            frames = frames_of(container, stream, order.spans, audit, seeks=seeks)
            for one in _pictures(frames, stream, order.policy):
                work.add(one)
            return work.finished()
        except av.error.FFmpegError as error:
            check_scratch(error, order.scratch)
            if seeks:  # a container that fails to seek may decode in order
                raise CannotSeek(str(error.strerror)) from error
            raise rejected("decode", "undecodable", f"after frame {work.n}: {error.strerror}") from error
        finally:
            work.abandon()


def _pictures(frames: Iterable[Shown], stream: "VideoStream", policy: VideoPolicy) -> Iterator[Picture]:
    """Frames with a place in time, deinterlaced where that is needed, as they are encoded. Raises: Unusable."""
    whole, shrink = Deinterlacer(stream), PictureFilter(stream, policy)
    last_pts: int | None = None

    def rendered(ready: Iterable[tuple[Shown, bool]]) -> Iterator[Picture]:
        for one, was_interlaced in ready:
            one.frame.pts = one.pts
            picture = shrink.apply(one.frame)
            assert shrink.rendering is not None  # set by `apply`
            yield Picture(picture, one.pts, shrink.rendering, was_interlaced)

    for one in frames:
        if last_pts is None or one.pts > last_pts:  # else shown at the same moment as the one before
            last_pts = one.pts
            yield from rendered(whole.take(one))
    yield from rendered(whole.rest())


class _Work:
    """The clips in the making; spans may overlap. n: pictures that came."""

    def __init__(self, order: _Order, stream: "VideoStream", quality: Mapping[str, str]) -> None:
        self.n = 0
        self._order, self._stream, self._quality = order, stream, quality
        self._waiting = sorted(range(len(order.spans)), key=lambda place: -order.spans[place].start)
        self._open: dict[int, ClipEncoder] = {}
        self._n_deinterlaced: dict[int, int] = {}
        self._clips: list[Clip | None] = [None] * len(order.spans)

    def add(self, one: Picture) -> None:
        """The next picture, to every clip that shows it. Raises: Unusable; av.error.FFmpegError."""
        self.n += 1
        for place in [place for place in self._open if one.pts >= self._order.spans[place].end]:
            self._finish(place)
        while self._waiting and one.pts >= self._order.spans[self._waiting[-1]].start:
            place = self._waiting.pop()
            span = self._order.spans[place]
            if one.pts < span.end:
                target = self._order.scratch / f"clip-{place:04d}.mp4"
                self._open[place] = ClipEncoder(target, span, self._stream, self._quality)
                self._n_deinterlaced[place] = 0
        for place, encoder in self._open.items():
            encoder.add(one.picture, one.pts, one.rendering)
            self._n_deinterlaced[place] += one.was_interlaced

    def finished(self) -> list[Clip | None]:
        for place in list(self._open):
            self._finish(place)
        return self._clips

    def abandon(self) -> None:
        for encoder in self._open.values():
            encoder.abandon()

    def _finish(self, place: int) -> None:
        encoder = self._open[place]
        end = max(encoder.pts[-1] + 1, min(encoder.span.end, self._order.index.end_pts))
        encoder.finish(end)
        del self._open[place]
        assert encoder.rendering is not None  # it has a picture
        fidelity = encoder.fidelity()
        self._clips[place] = Clip(
            path=encoder.path,
            packets=write_packets(encoder.path),
            span=encoder.span,
            pts=encoder.pts,
            end=end,
            size_px=encoder.size_px,
            wanted=(0, len(encoder.pts)),
            mode="canonical",
            metadata={
                "psnr_db": round(fidelity.psnr_db, 3),
                "worst_psnr_db": round(fidelity.worst_db, 3),
                "n_deinterlaced": self._n_deinterlaced[place],
                "colour_treatment": encoder.rendering.treatment,
                "colour_assumed": encoder.rendering.assumed,
            },
        )
