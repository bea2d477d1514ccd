"""Encode canonical clips of shots during shot detection: frames wait until their shot is known.

The detector decides on cuts a few dozen frames late, in blocks of a few hundred, so as many small frames are in memory.
Cutting later with the same cuts gives the same clips.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..container import PacketIndex
from ..policy import VideoPolicy
from ..video.audit import SettledCuts
from ..video.colour import Rendering
from ..video.frame_filter import FrameFilter
from ..video.spans import ClipSpan
from ..video.timestamps import TimedFrame
from .canonical import Deinterlacer, finish_clip
from .clip import Clip, PacketTables
from .encoder import ClipEncoder

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

MAX_HELD_BYTES = 256 * 2**20
_ASK_EVERY = 32  # frames


class TooLargeToBuffer(Exception):
    """Raised if waiting frames exceed `MAX_HELD_BYTES`."""


class _WaitingFrame(NamedTuple):
    frame: "VideoFrame"
    pts: int
    rendering: Rendering
    was_interlaced: bool


class ShotMaker:
    """Encodes the clips of all shots from a video's frames in display order."""

    def __init__(
        self,
        index: PacketIndex,
        scratch: Path,
        policy: VideoPolicy,
        stream: "VideoStream",
        quality: Mapping[str, str],
        settled: SettledCuts,
    ) -> None:
        base = Fraction(*index.time_base)
        self._index, self._scratch, self._stream, self._quality = index, scratch, stream, quality
        self._settled = settled
        self._longest = max(1, round(policy.clip_s / base))
        self._shortest = max(1, round(policy.min_clip_s / base))
        self._whole, self._shrink = Deinterlacer(stream), FrameFilter(stream, policy)
        self._tables = PacketTables()
        self._last_pts: int | None = None
        self._n = 0
        self._held: deque[_WaitingFrame] = deque()
        self._shot, self._begin = 0, index.start_pts
        self._is_decided = False  # whether it is known if the span from `_begin` is long enough
        self._encoder: ClipEncoder | None = None
        self._n_deinterlaced = 0
        self._clips: dict[ClipSpan, Clip] = {}

    def add(self, timed: TimedFrame) -> None:
        """Add the next frame. Raises: Unusable; TooLargeToBuffer; av.error.FFmpegError, also if the disk is full."""
        if not self._n:
            self._shrink.begin(timed.frame)
        self._n += 1
        if self._last_pts is None or timed.pts > self._last_pts:
            self._last_pts = timed.pts
            self._hold(self._whole.take(timed))
        if self._n % _ASK_EVERY == 0:
            cuts, front = self._settled()
            if front is not None:
                self._encode_until(front - self._shortest, cuts, None)

    def finish(self, cuts: Sequence[int], spans: Sequence[ClipSpan]) -> list[Clip | None] | None:
        """Return a clip per span, or None for a span without a frame. Returns None if the clips do not match the spans.

        cuts, spans: scene cuts and clip spans of the whole video.
        """
        self._hold(self._whole.rest())
        end = self._index.end_pts
        self._encode_until(None, cuts, end)
        self._close(self._stop([cut for cut in cuts if self._index.start_pts < cut < end], end))
        if set(self._clips) - set(spans):
            return None
        return [self._clips.get(span) for span in spans]

    def abandon(self) -> None:
        """Close the open clip."""
        if self._encoder is not None:
            self._encoder.abandon()

    def _hold(self, ready: Iterable[tuple[TimedFrame, bool]]) -> None:
        for timed, was_interlaced in ready:
            timed.frame.pts = timed.pts
            small = self._shrink.apply(timed.frame)
            assert self._shrink.rendering is not None  # set by `apply`
            self._held.append(_WaitingFrame(small, timed.pts, self._shrink.rendering, was_interlaced))
            if len(self._held) * small.width * small.height * 3 // 2 > MAX_HELD_BYTES:
                raise TooLargeToBuffer

    def _encode_until(self, limit: int | None, cuts: Sequence[int], end: int | None) -> None:
        """Encode the frames before `limit` (None: all). end: the video's end, if known."""
        inside = [cut for cut in cuts if self._index.start_pts < cut < self._index.end_pts]
        while self._held and (limit is None or self._held[0].pts < limit):
            waiting = self._held.popleft()
            self._turn_to(waiting.pts, inside, end)
            if self._begin == end:
                break
            if self._encoder is not None:
                self._encoder.add(waiting.frame, waiting.pts, waiting.rendering)
                self._n_deinterlaced += waiting.was_interlaced

    def _turn_to(self, pts: int, cuts: Sequence[int], end: int | None) -> None:
        # If the end is unknown, it is at least `min_clip_s` away, because `add` waits for that.
        while pts >= (stop := self._stop(cuts, end)):
            self._close(stop)
            self._shot += self._shot < len(cuts) and stop == cuts[self._shot]
            self._begin, self._is_decided = stop, False
            if stop == end:
                return  # nothing after the end belongs to a clip
        if not self._is_decided:
            self._is_decided = True
            if stop - self._begin >= self._shortest:
                target = self._scratch / f"clip-{len(self._clips):04d}.mp4"
                self._encoder = ClipEncoder(target, self._stream, self._quality)
                self._n_deinterlaced = 0

    def _stop(self, cuts: Sequence[int], end: int | None) -> int:
        known = [self._begin + self._longest, *cuts[self._shot : self._shot + 1]]
        return min(known if end is None else [*known, end])

    def _close(self, stop: int) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            span = ClipSpan(start=self._begin, end=stop, shot=self._shot)
            self._clips[span] = finish_clip(encoder, span, self._index, self._n_deinterlaced, self._tables)
