"""Encode clips during the audit, which decodes every frame anyway; they wait in the root until the batch is cut.

If they are missing, damaged or have other spans, the object is cut from its source.

The shot detector decides a few dozen frames late, in blocks of a few hundred, so as many small frames wait in memory.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from loader.dataset.log.entries import DAMAGED
from loader.errors import ObjectNotFound
from loader.json_text import parse_json_object

from ..container import PacketIndex, check_scratch
from ..cutters import ClipStaging
from ..policy import VideoPolicy
from ..segments import Segment
from ..unit import Unusable
from ..video.audit import SettledCuts
from ..video.colour import Rendering
from ..video.frame_filter import FrameFilter
from ..video.spans import Clip, ClipSpan, PacketTables, segment_spans, shots, windows
from ..video.timestamps import TimedFrame
from .canonical import QUALITIES, ClipEncoder, ClipMaker, Deinterlacer, finish_clip, is_good_enough

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
        self._index = index
        self._scratch = scratch
        self._stream = stream
        self._quality = quality
        self._settled = settled
        self._longest = max(1, round(policy.clip_s / base))
        self._shortest = max(1, round(policy.min_clip_s / base))
        self._whole = Deinterlacer(stream)
        self._shrink = FrameFilter(stream, policy)
        self._tables = PacketTables()
        self._last_pts: int | None = None
        self._n = 0
        self._held: deque[_WaitingFrame] = deque()
        self._shot = 0
        self._begin = index.start_pts
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
                self._encode_frames(front - self._shortest, cuts, None)

    def finish(self, cuts: Sequence[int], spans: Sequence[ClipSpan]) -> list[Clip | None] | None:
        """Return a clip per span, None for a span without a frame; None if the clips do not match the spans.

        cuts, spans: of the whole video.
        """
        self._hold(self._whole.rest())
        end = self._index.end_pts
        self._encode_frames(None, cuts, end)
        self._close(self._stop([cut for cut in cuts if self._index.start_pts < cut < end], end))
        if set(self._clips) - set(spans):
            return None
        return [self._clips.get(span) for span in spans]

    def abandon(self) -> None:
        """Close the open clip."""
        if self._encoder is not None:
            self._encoder.abandon()

    def _hold(self, ready: Iterable[tuple[TimedFrame, bool]]) -> None:
        """Buffer small frames until their shot is known. Raises: TooLargeToBuffer; Unusable."""
        for timed, was_interlaced in ready:
            timed.frame.pts = timed.pts
            small = self._shrink.apply(timed.frame)
            assert self._shrink.rendering is not None  # set by `apply`
            self._held.append(_WaitingFrame(small, timed.pts, self._shrink.rendering, was_interlaced))
            frame_nbytes = small.width * small.height * 3 // 2  # yuv420p
            if len(self._held) * frame_nbytes > MAX_HELD_BYTES:
                raise TooLargeToBuffer

    def _encode_frames(self, limit: int | None, cuts: Sequence[int], end: int | None) -> None:
        """Encode the frames before `limit` (None: all). end: the video's end, if known."""
        inside = [cut for cut in cuts if self._index.start_pts < cut < self._index.end_pts]
        while self._held and (limit is None or self._held[0].pts < limit):
            waiting = self._held.popleft()
            self._advance_cuts(waiting.pts, inside, end)
            if self._begin == end:
                break
            if self._encoder is not None:
                self._encoder.add(waiting.frame, waiting.pts, waiting.rendering)
                self._n_deinterlaced += waiting.was_interlaced

    def _advance_cuts(self, pts: int, cuts: Sequence[int], end: int | None) -> None:
        """Close the clips that stop at a time or before it, and open the clip that has it, if it is long enough."""
        # If the end is unknown, it is at least `min_clip_s` away, because `add` waits for that.
        while pts >= (stop := self._stop(cuts, end)):
            self._close(stop)
            if self._shot < len(cuts) and stop == cuts[self._shot]:
                self._shot += 1
            self._begin = stop
            self._is_decided = False
            if stop == end:
                return  # nothing after the end belongs to a clip
        if not self._is_decided:
            self._is_decided = True
            if stop - self._begin >= self._shortest:
                target = self._scratch / f"clip-{len(self._clips):04d}.mp4"
                self._encoder = ClipEncoder(target, self._stream, self._quality)
                self._n_deinterlaced = 0

    def _stop(self, cuts: Sequence[int], end: int | None) -> int:
        """Return where the current clip stops: at its longest, the next cut, or the video's end."""
        stops = [self._begin + self._longest, *cuts[self._shot : self._shot + 1]]
        if end is not None:
            stops.append(end)
        return min(stops)

    def _close(self, stop: int) -> None:
        """Finish the open clip, if any: a shot that is too short has none."""
        encoder = self._encoder
        self._encoder = None
        if encoder is not None:
            span = ClipSpan(start=self._begin, end=stop, shot=self._shot)
            self._clips[span] = finish_clip(encoder, span, self._index, self._n_deinterlaced, self._tables)


# Facts of the clips, and one file of all clips and packet tables, since objects cost more than bytes.
_FACTS, _PACK = "clips.json", "clips.bin"


class EarlyClips:
    """Frame watcher that encodes canonical clips during an audit, up to the first fault, which the cut reports.

    clips: result after `finish`. extent: the video's (first tick, end) from its packets.
    """

    def __init__(self, policy: VideoPolicy, segments: Sequence[Segment], scratch: Path) -> None:
        self.clips: list[Clip | None] = []
        self.extent = (0, 0)
        self._policy = policy
        self._segments = segments
        self._scratch = scratch
        self._index: PacketIndex | None = None
        self._maker: ClipMaker | ShotMaker | None = None

    def begin(self, stream: "VideoStream", index: PacketIndex, settled: SettledCuts) -> None:
        self.extent = (index.start_pts, index.end_pts)
        self._index = index
        if self._policy.mode != "canonical":
            return
        work = (index, self._scratch, self._policy, stream, QUALITIES[0])
        if self._policy.units != "shots":
            spans = self._spans(index, ())
            if spans:
                self._maker = ClipMaker(spans, *work)
            else:
                self._maker = None
        elif self._policy.max_clips is None:  # otherwise choosing clips needs all shots
            self._maker = ShotMaker(*work, settled)

    def add(self, timed: TimedFrame) -> None:
        import av

        if self._maker is None:
            return
        try:
            self._maker.add(timed)
        except (Unusable, TooLargeToBuffer, av.error.FFmpegError) as error:
            self.abandon()
            check_scratch(error, self._scratch)

    def finish(self, cuts: Sequence[int]) -> None:
        import av

        if self._maker is None or self._index is None:
            return
        try:
            if isinstance(self._maker, ShotMaker):
                clips = self._maker.finish(cuts, self._spans(self._index, cuts)) or []
            else:
                clips = self._maker.finish()
        except (Unusable, TooLargeToBuffer, av.error.FFmpegError) as error:
            self.abandon()
            check_scratch(error, self._scratch)
            return
        if is_good_enough(clips):
            self.clips = clips
        else:
            self.clips = []

    def abandon(self) -> None:
        """Close all open clips."""
        maker = self._maker
        self._maker = None
        if maker is not None:
            maker.abandon()

    def _spans(self, index: PacketIndex, cuts: Sequence[int]) -> list[ClipSpan]:
        """Return the spans that the cut will choose; none if it will refuse the video, which is its task to report."""
        try:
            if self._policy.units == "windows":
                return windows(index, self._policy)
            if self._policy.units == "segments":
                return segment_spans(index, self._segments)
            return shots(index, self._policy, cuts).spans
        except Unusable:
            return []


def put_clips(
    staging: ClipStaging,
    clips: Sequence[Clip | None],
    extent: tuple[int, int],
    scratch: Path,
) -> None:
    """Upload the clips, then their facts, and delete their files.

    extent: as in `EarlyClips`. Raises: StoreError; OSError.
    """
    pack = scratch / f"clip-{_PACK}"
    with open(pack, "wb") as out:
        facts = [None if clip is None else _pack_clip(clip, out) for clip in clips]
    staging.store.put_file(f"{staging.key}/{_PACK}", str(pack))
    pack.unlink()
    body = {"extent": list(extent), "clips": facts}
    staging.store.put(f"{staging.key}/{_FACTS}", json.dumps(body).encode())


def _pack_clip(clip: Clip, out: BinaryIO) -> Mapping[str, Any]:
    offset = out.tell()
    files = [clip.path, clip.packets]
    bodies = [file.read_bytes() for file in files]
    out.writelines(bodies)
    for file in files:
        file.unlink()
    return {
        "span": [clip.span.start, clip.span.end, clip.span.shot],
        "pts": clip.pts,
        "end": clip.end,
        "size_px": list(clip.size_px),
        "metadata": dict(clip.metadata),
        "offset": offset,
        "nbytes": [len(body) for body in bodies],
        "sha256": [_sha256(body) for body in bodies],
    }


def get_clips(
    staging: ClipStaging,
    spans: Sequence[ClipSpan],
    extent: tuple[int, int],
    scratch: Path,
) -> list[Clip | None] | None:
    """Download clips to scratch; None unless all are intact and match the spans and extent.

    Raises: StoreError if the store does not respond; OSError.
    """
    try:
        stored = parse_json_object(staging.store.get(f"{staging.key}/{_FACTS}").data)
        facts = stored["clips"]
        if stored["extent"] != list(extent) or len(facts) != len(spans):
            return None
        return [
            None if clip is None else _clip(staging, place, clip, span, scratch)
            for place, (clip, span) in enumerate(zip(facts, spans, strict=True))
        ]
    except (ObjectNotFound, *DAMAGED):
        return None


def _clip(
    staging: ClipStaging,
    place: int,
    facts: Mapping[str, Any],
    span: ClipSpan,
    scratch: Path,
) -> Clip:
    if facts["span"] != [span.start, span.end, span.shot]:
        raise ValueError("a clip of another span")
    target = scratch / f"clip-{place:04d}.mp4"
    packets = target.with_suffix(".packets")
    n_mp4, n_packets = facts["nbytes"]
    body = memoryview(
        staging.store.get_range(f"{staging.key}/{_PACK}", facts["offset"], n_mp4 + n_packets).data
    )
    for file, data, sha256 in zip(
        (target, packets), (body[:n_mp4], body[n_mp4:]), facts["sha256"], strict=True
    ):
        if _sha256(data) != sha256:
            raise ValueError("its SHA-256 differs")
        file.write_bytes(data)
    return Clip(
        path=target,
        packets=packets,
        span=span,
        pts=[int(pts) for pts in facts["pts"]],
        end=int(facts["end"]),
        size_px=(int(facts["size_px"][0]), int(facts["size_px"][1])),
        requested=(0, len(facts["pts"])),
        mode="canonical",
        metadata=facts["metadata"],
    )


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
