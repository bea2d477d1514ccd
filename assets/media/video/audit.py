"""A video decoded once from its first frame to its last: its frames, their times, and its look in small."""

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from ..audio.track_of_clip import SoundBeside
from ..container import (
    PacketIndex,
    container_facts,
    ffmpeg_refusal,
    first_sound,
    index_packets,
    moving_picture,
    opened,
    packets_of,
)
from ..media_table import Row
from ..policy import VideoPolicy
from ..unit import rejected
from ..video_colour.colour import rendering_of
from .look import Look
from .probe import frame_facts, packet_facts
from .seek_audit import frame_crc, seek_ok
from .timestamp_checks import Timing
from .timestamps import Clock, Shown
from .watcher import FrameWatcher

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

N_SEEKS = 3
"""Frames at random places that are sought for; the last frame is, and some more where there is reason to."""

SEEK_SEED = 20_231

_POLICY = VideoPolicy()

STRICT: Mapping[str, Mapping[str, str]] = {"hevc": {"err_detect": "crccheck+bitstream+buffer+explode"}}
"""Options of decoders that otherwise pass over a damaged slice without a word. The H.264, MPEG-4 and MPEG-2 decoders
mark a frame that they had to patch, the AV1 decoder refuses it; VP8 and VP9 have nothing that would show it."""

BLIND = ("mpeg4", "h263", "flv", "msmpeg4", "msmpeg4v1", "msmpeg4v2", "wmv1", "wmv2")
"""Decoders that show frames which lack what they build on, and do not mark them, when a recording begins between two
keyframes. The others wait for a keyframe."""


def audit_video(path: str, policy: VideoPolicy = _POLICY, watcher: FrameWatcher | None = None) -> Row:
    """Return the columns of the media table. watcher: is shown every frame as well.

    Time grows with the number of frames, memory does not.

    Raises: Unusable for a file that cannot be decoded to its end, and for HDR and deep colour that the policy does not
    take.
    """
    with opened(path) as container:
        stream = moving_picture(container)
        if stream is None:
            raise rejected("probe", "no_streams", "the container has no video stream")
        facts: Row = {**container_facts(container)}
        index = index_packets(container, stream)
        facts |= packet_facts(index)
    with opened(path) as container:
        stream = moving_picture(container)
        assert stream is not None  # the same file, a moment later
        pictures = _Pictures(stream, index, policy, watcher)
        if watcher is not None:
            watcher.begin(stream, index, pictures.settled)
        try:
            decoded, hashes = _decode(container, stream, pictures)
        finally:
            if watcher is not None:
                watcher.abandon()
    return facts | decoded | {"seek_ok": seek_ok(path, hashes, index)}


def _decode(
    container: "InputContainer", stream: "VideoStream", pictures: "_Pictures"
) -> tuple[Row, Mapping[int, int]]:
    """Return the columns, and CRC-32 by pts of the frames to seek for later. Raises: Unusable."""
    import av

    waits = strictly(stream)
    sound = first_sound(container)
    clock, beside = Clock(container), None if sound is None else SoundBeside(container, sound)
    try:
        for packet in packets_of(container, *([stream] if sound is None else [stream, sound])):
            number = packet.stream.index  # the `stream_index` of the last, empty packets is always 0
            if beside is not None and sound is not None and number == sound.index:
                beside.add(packet)
            if number != stream.index:
                continue
            waits = waits and packet.size > 0 and not packet.is_keyframe
            if waits:
                continue
            for frame in packet.decode():
                assert isinstance(frame, av.VideoFrame)  # of a video stream
                for one in clock.take(frame):
                    pictures.add(one)
        for one in clock.rest():
            pictures.add(one)
    except av.error.FFmpegError as error:
        said = f"after frame {pictures.n}: {error.strerror}"
        raise ffmpeg_refusal(error, container.name, "decode", "undecodable", said, pictures.n) from error
    facts = pictures.facts()
    if beside is not None:
        facts |= beside.facts(facts["start_pts"] * (stream.time_base or Fraction(1)))
    return facts, pictures.hashes()


def strictly(stream: "VideoStream") -> bool:
    """Prepare a decoder before its first packet: one thread, and errors for damage that it would hide.

    Returned is whether it has to begin with a keyframe. Packets before the first keyframe, of a recording that begins
    in the middle, give no frame then, and are no damage.
    """
    stream.thread_count = 1
    options = STRICT.get(stream.codec_context.codec.name)
    if options is not None:
        stream.codec_context.options = dict(options)
    return options is not None


class _Pictures:
    """Measurements of the frames, and the choice of frames to seek for later.

    Sought are `N_SEEKS` frames at random and the last. Two more are at places where containers are known to go wrong:
    the first where an edit list hides others before it, and the one behind the longest gap.
    """

    def __init__(
        self, stream: "VideoStream", index: PacketIndex, policy: VideoPolicy, watcher: FrameWatcher | None
    ) -> None:
        self.n = 0
        self._stream, self._index, self._policy, self._watcher = stream, index, policy, watcher
        self._n_corrupt = self._n_interlaced = 0
        self._timing, self._look = Timing(), Look()
        self._first_corrupt: int | None = None
        self._first: Row = {}
        self._last: Shown | None = None
        self._hashes: dict[int, int] = {}
        self._behind_gap: dict[int, int] = {}
        self._known_gap = 0
        n_seeks = min(N_SEEKS, index.n_packets)
        self._wanted = set(random.Random(SEEK_SEED).sample(range(index.n_packets), n_seeks))
        if index.n_discard:
            self._wanted.add(0)

    def add(self, shown: Shown) -> None:
        """Add the next frame. Raises: Unusable for HDR and deep colour that are not taken."""
        frame = shown.frame
        if not self.n:
            rendering_of(frame, self._policy)
            if self._stream.codec_context.name in BLIND and not frame.key_frame:
                said = "it begins between two keyframes; its first frames lack what they build on"
                raise rejected("decode", "no_keyframe", said, at_frame=0)
            self._first = frame_facts(self._stream, frame)
        self._check_size(frame)
        gap = self._timing.add(shown)
        if self.n in self._wanted:
            self._hashes[shown.tagged] = frame_crc(frame)
        self._seek_behind(gap, shown)
        self._look.add(frame, shown.pts)
        if frame.is_corrupt:
            self._first_corrupt = self.n if self._first_corrupt is None else self._first_corrupt
            self._n_corrupt += 1
        self._n_interlaced += frame.interlaced_frame
        self.n += 1
        self._last = shown
        if self._watcher is not None:
            self._watcher.add(shown)

    def _check_size(self, frame: "VideoFrame") -> None:
        """Check that the size is that of the first frame: a clip has one. Raises: Unusable."""
        before = self._first["width_px"], self._first["height_px"]
        if (frame.width, frame.height) != before:
            sizes = f"from {before[0]}x{before[1]} to {frame.width}x{frame.height}"
            said = f"the resolution changes within the stream at frame {self.n} {sizes}; cut it there, or scale it"
            raise rejected("decode", "resolution_changes", said, at_frame=self.n)

    def _seek_behind(self, gap: int, shown: Shown) -> None:
        """Keep the frame behind a gap that is by half longer than any before it: few of them are hashed."""
        if not self._known_gap:
            self._known_gap = gap
        elif 2 * gap > 3 * self._known_gap:
            self._known_gap = gap
            self._behind_gap = {shown.tagged: frame_crc(shown.frame)}

    def hashes(self) -> Mapping[int, int]:
        """CRC-32 by tagged time."""
        last = {} if self._last is None else {self._last.tagged: frame_crc(self._last.frame)}
        return self._hashes | self._behind_gap | last

    def settled(self) -> tuple[list[int], int | None]:
        """Return the scene cuts known so far: see `ShotDetector.settled`."""
        return self._look.settled()

    def facts(self) -> Row:
        """Return the columns. Raises: Unusable without a frame, and for damaged frames."""
        index = self._index
        if not self.n:
            raise rejected("decode", "no_frames", f"{index.n_packets} packets give no frame")
        if self._n_corrupt:
            said = f"{self._n_corrupt} of {self.n} frames are damaged"
            raise rejected("decode", "corrupt", said, at_frame=self._first_corrupt)
        look = self._look.facts()
        if self._watcher is not None:
            self._watcher.finish(look["scene_cuts"])
        return {
            **self._first,
            "n_frames_decoded": self.n,
            "n_corrupt": self._n_corrupt,
            "interlaced_ratio": self._n_interlaced / self.n,
            **self._timing.facts(Fraction(*index.time_base)),
            **look,
        }
