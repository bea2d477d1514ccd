"""Canonical clips of a video file: one decode for all of them, of no more than is needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..container import PacketIndex, first_video, opened
from ..policy import VideoPolicy
from ..scratch import check_scratch
from ..unit import rejected
from ..video.span_frames import CannotSeek, frames_of, prepare
from ..video.spans import Span
from .clip import Clip
from .encoder import MIN_PSNR_DB, QUALITIES
from .maker import ClipMaker, good_enough


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    path: str
    spans: Sequence[Span]
    index: PacketIndex
    scratch: Path
    policy: VideoPolicy


def canonical_clips(
    path: str,
    spans: Sequence[Span],
    index: PacketIndex,
    scratch: Path,
    policy: VideoPolicy,
    audit: Mapping[str, Any],
) -> list[Clip | None]:
    """Return a clip per span, in order; None for a span without a frame.

    audit: the video's row of the media table; without it the video is decoded to its end. If a frame falls below
    `MIN_PSNR_DB`, all clips are made again at a higher quality. Raises: Unusable.
    """
    order = _Order(path=path, spans=spans, index=index, scratch=scratch, policy=policy)
    seeks = bool(audit)
    for quality in QUALITIES:
        try:
            clips = _encoded(order, audit, quality, seeks)
        except CannotSeek:
            seeks = False
            clips = _encoded(order, audit, quality, seeks)
        if good_enough(clips):
            return clips
    raise rejected("cut", "psnr", f"no encoding of it has {MIN_PSNR_DB:.0f} dB in every frame")


def _encoded(
    order: _Order, audit: Mapping[str, Any], quality: Mapping[str, str], seeks: bool
) -> list[Clip | None]:
    """Decode the video once and encode its clips. Raises: Unusable; CannotSeek."""
    import av

    with opened(order.path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file, a moment later
        prepare(stream, audit)
        maker = ClipMaker(order.spans, order.index, order.scratch, order.policy, stream, quality)
        try:
            for timed in frames_of(container, stream, order.spans, audit, seeks=seeks):
                maker.add(timed)
            return maker.finish()
        except av.error.FFmpegError as error:
            check_scratch(error, order.scratch)
            if seeks:  # a container that fails to seek may decode in order
                raise CannotSeek(str(error.strerror)) from error
            reason = f"after frame {maker.n}: {error.strerror}"
            raise rejected("decode", "undecodable", reason, at_frame=maker.n) from error
        finally:
            maker.abandon()
