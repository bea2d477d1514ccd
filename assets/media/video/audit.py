"""Audit of a video: one decode from first frame to last gives frames, timestamps and statistics."""

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from ..audio.track_of_clip import TrackAudit
from ..container import (
    PacketIndex,
    container_facts,
    ffmpeg_refusal,
    first_audio,
    first_video,
    index_packets,
    opened,
    packets_of,
)
from ..media_table import Row
from ..policy import VideoPolicy
from ..unit import rejected
from ..video_colour.colour import rendering_of
from .look import FrameStatistics
from .probe import frame_facts, packet_facts
from .seek_audit import frame_crc, seek_ok
from .timestamp_checks import Timing
from .timestamps import Clock, TimedFrame
from .watcher import FrameWatcher

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

N_SEEKS = 3
"""Random frames to seek for, next to the last frame and risky ones."""

SEEK_SEED = 20_231

_POLICY = VideoPolicy()

STRICT: Mapping[str, Mapping[str, str]] = {"hevc": {"err_detect": "crccheck+bitstream+buffer+explode"}}
"""Options of decoders that otherwise ignore a damaged slice. The H.264, MPEG-4 and MPEG-2 decoders mark patched
frames, the AV1 decoder refuses them; VP8 and VP9 show no damage."""

BLIND = ("mpeg4", "h263", "flv", "msmpeg4", "msmpeg4v1", "msmpeg4v2", "wmv1", "wmv2")
"""Decoders that return frames without their references, unmarked, if a recording begins between keyframes. Others
wait for a keyframe."""


def audit_video(path: str, policy: VideoPolicy = _POLICY, watcher: FrameWatcher | None = None) -> Row:
    """Return the columns of the media table. watcher: also receives every frame.

    Time is linear in frames, memory constant.

    Raises: Unusable for a file that cannot be decoded to its end, and for HDR and deep colour outside the policy.
    """
    with opened(path) as container:
        stream = first_video(container)
        if stream is None:
            raise rejected("probe", "no_streams", "the container has no video stream")
        facts: Row = {**container_facts(container)}
        index = index_packets(container, stream)
        facts |= packet_facts(index)
    with opened(path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file, a moment later
        frames = _FrameAudit(stream, index, policy, watcher)
        if watcher is not None:
            watcher.begin(stream, index, frames.settled)
        try:
            decoded, hashes = _decode(container, stream, frames)
        finally:
            if watcher is not None:
                watcher.abandon()
    return facts | decoded | {"seek_ok": seek_ok(path, hashes, index)}


def _decode(
    container: "InputContainer", stream: "VideoStream", frames: "_FrameAudit"
) -> tuple[Row, Mapping[int, int]]:
    """Return the columns, and CRC-32 by pts of the frames to seek for. Raises: Unusable."""
    import av

    waits = strictly(stream)
    audio = first_audio(container)
    clock, track = Clock(container), None if audio is None else TrackAudit(container, audio)
    try:
        for packet in packets_of(container, *([stream] if audio is None else [stream, audio])):
            number = packet.stream.index  # `stream_index` of final, empty packets is always 0
            if track is not None and audio is not None and number == audio.index:
                track.add(packet)
            if number != stream.index:
                continue
            waits = waits and packet.size > 0 and not packet.is_keyframe
            if waits:
                continue
            for frame in packet.decode():
                assert isinstance(frame, av.VideoFrame)  # of a video stream
                for timed in clock.take(frame):
                    frames.add(timed)
        for timed in clock.rest():
            frames.add(timed)
    except av.error.FFmpegError as error:
        text = f"after frame {frames.n}: {error.strerror}"
        raise ffmpeg_refusal(error, container.name, "decode", "undecodable", text, frames.n) from error
    facts = frames.facts()
    if track is not None:
        facts |= track.facts(facts["start_pts"] * (stream.time_base or Fraction(1)))
    return facts, frames.hashes()


def strictly(stream: "VideoStream") -> bool:
    """Prepare a decoder: one thread, errors for hidden damage. Return whether it must begin with a keyframe.

    Packets before the first keyframe then give no frame; they are not damage.
    """
    stream.thread_count = 1
    options = STRICT.get(stream.codec_context.codec.name)
    if options is not None:
        stream.codec_context.options = dict(options)
    return options is not None


class _FrameAudit:
    """Measurements of the frames, and hashes of frames to seek for.

    Hashed are `N_SEEKS` random frames, the last, the first if an edit list hides others before it, and the one
    after the longest gap.
    """

    def __init__(
        self, stream: "VideoStream", index: PacketIndex, policy: VideoPolicy, watcher: FrameWatcher | None
    ) -> None:
        self.n = 0
        self._stream, self._index, self._policy, self._watcher = stream, index, policy, watcher
        self._n_corrupt = self._n_interlaced = 0
        self._timing, self._statistics = Timing(), FrameStatistics()
        self._first_corrupt: int | None = None
        self._first: Row = {}
        self._last: TimedFrame | None = None
        self._hashes: dict[int, int] = {}
        self._behind_gap: dict[int, int] = {}
        self._known_gap = 0
        n_seeks = min(N_SEEKS, index.n_packets)
        self._sampled = set(random.Random(SEEK_SEED).sample(range(index.n_packets), n_seeks))
        if index.n_discard:
            self._sampled.add(0)

    def add(self, shown: TimedFrame) -> None:
        """Add the next frame. Raises: Unusable for HDR and deep colour outside the policy."""
        frame = shown.frame
        if not self.n:
            rendering_of(frame, self._policy)
            if self._stream.codec_context.name in BLIND and not frame.key_frame:
                text = "it begins between two keyframes; its first frames lack what they build on"
                raise rejected("decode", "no_keyframe", text, at_frame=0)
            self._first = frame_facts(self._stream, frame)
        self._check_size(frame)
        gap = self._timing.add(shown)
        if self.n in self._sampled:
            self._hashes[shown.tagged] = frame_crc(frame)
        self._seek_behind(gap, shown)
        self._statistics.add(frame, shown.pts)
        if frame.is_corrupt:
            self._first_corrupt = self.n if self._first_corrupt is None else self._first_corrupt
            self._n_corrupt += 1
        self._n_interlaced += frame.interlaced_frame
        self.n += 1
        self._last = shown
        if self._watcher is not None:
            self._watcher.add(shown)

    def _check_size(self, frame: "VideoFrame") -> None:
        """Check that the size never changes: a clip has one. Raises: Unusable."""
        first = self._first["width_px"], self._first["height_px"]
        if (frame.width, frame.height) != first:
            sizes = f"from {first[0]}x{first[1]} to {frame.width}x{frame.height}"
            text = f"the resolution changes within the stream at frame {self.n} {sizes}; cut it there, or scale it"
            raise rejected("decode", "resolution_changes", text, at_frame=self.n)

    def _seek_behind(self, gap: int, shown: TimedFrame) -> None:
        """Remember the frame after a gap 1.5 times longer than any before: few frames are hashed."""
        if not self._known_gap:
            self._known_gap = gap
        elif 2 * gap > 3 * self._known_gap:
            self._known_gap = gap
            self._behind_gap = {shown.tagged: frame_crc(shown.frame)}

    def hashes(self) -> Mapping[int, int]:
        """Return CRC-32 by tagged time."""
        last = {} if self._last is None else {self._last.tagged: frame_crc(self._last.frame)}
        return self._hashes | self._behind_gap | last

    def settled(self) -> tuple[list[int], int | None]:
        """Return the final scene cuts so far: see `ShotDetector.settled`."""
        return self._statistics.settled()

    def facts(self) -> Row:
        """Return the columns. Raises: Unusable without a frame, and for damaged frames."""
        index = self._index
        if not self.n:
            raise rejected("decode", "no_frames", f"{index.n_packets} packets give no frame")
        if self._n_corrupt:
            text = f"{self._n_corrupt} of {self.n} frames are damaged"
            raise rejected("decode", "corrupt", text, at_frame=self._first_corrupt)
        statistics = self._statistics.facts()
        if self._watcher is not None:
            self._watcher.finish(statistics["scene_cuts"])
        return {
            **self._first,
            "n_frames_decoded": self.n,
            "n_corrupt": self._n_corrupt,
            "interlaced_ratio": self._n_interlaced / self.n,
            **self._timing.facts(Fraction(*index.time_base)),
            **statistics,
        }
