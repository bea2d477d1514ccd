"""Audit a video: one full decode measures frames, timestamps and statistics."""

import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..audio.audit import TrackAudit
from ..container import (
    PacketIndex,
    container_facts,
    demux_packets,
    ffmpeg_refusal,
    first_audio,
    first_video,
    index_packets,
    open_container,
)
from ..media_table import Row
from ..policy import VideoPolicy
from ..unit import rejected
from .colour import frame_rendering
from .frame_levels import Floats, Frames
from .shots import SMALL_PX, ShotDetector
from .stream_facts import frame_facts, packet_facts
from .timestamps import FrameClock, TimedFrame, Timing, frame_crc, seek_ok

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


BLACK_LEVEL, BLACK_SHARE = 26, 0.98  # FFmpeg's blackdetect: 98 % of the pixels below a tenth of white
FLAT_LEVELS = 8
"""Largest range of luma, in levels of 255 at 64 x 36 px, in a frame that shows one level."""
FROZEN_LEVELS = 0.255  # FFmpeg's freezedetect: mean absolute difference of a thousandth

SHARP_PX, SHARP_EVERY = (512, 288), 12
"""(width, height) in px of sharpness, and every how many frames."""

MAX_HASHES = 64
"""Most keyframe hashes; beyond, every other one is dropped."""

_CHUNK_FRAMES = 256
_HASH_SIDE = 8


class FrameStatistics:
    """Luma, motion, black, flat and frozen frames, black bars, sharpness, keyframe hashes and scene cuts."""

    def __init__(self) -> None:
        from av.video.reformatter import Interpolation, VideoReformatter

        self._small = VideoReformatter()
        self._large = VideoReformatter()
        self._area = int(Interpolation.AREA)  # PyAV would look up the name for every frame
        self._chunk: Frames = np.empty((_CHUNK_FRAMES, SMALL_PX[1], SMALL_PX[0]), np.uint8)
        self._pts: list[int] = []
        self._keys: list[int] = []  # positions in the chunk
        self._brightest: Frames = np.zeros((SMALL_PX[1], SMALL_PX[0]), np.uint8)
        self._n = self._n_black = self._n_flat = self._n_frozen = self._n_sharp = 0
        self._luma = self._motion = self._sharpness = 0.0
        self._hashes = KeyframeHashes()
        self._shots = ShotDetector()

    def add(self, frame: "VideoFrame", pts: int) -> None:
        """Add the next frame in display order. pts: its display time."""
        if self._n % SHARP_EVERY == 0:
            large = self._large.reformat(frame, *SHARP_PX, "gray", interpolation=self._area, threads=1)
            self._sharpness += sharpness(_luma(large))
            self._n_sharp += 1
        small = self._small.reformat(frame, *SMALL_PX, "gray", interpolation=self._area, threads=1)
        place = len(self._pts)
        self._chunk[place] = _luma(small)
        if frame.key_frame:
            self._keys.append(place)
        self._pts.append(pts)
        self._n += 1
        if len(self._pts) == _CHUNK_FRAMES:
            self._measure()

    def settled(self) -> tuple[list[int], int | None]:
        """Return the final scene cuts so far: see `ShotDetector.final_boundaries`."""
        return self._shots.final_boundaries()

    def facts(self) -> Mapping[str, Any]:
        """Return the media columns. Raises: ZeroDivisionError if there is no frame."""
        self._measure()
        letterbox, pillarbox = bars(self._brightest)
        return {
            "luma_mean": self._luma / self._n,
            "black_ratio": self._n_black / self._n,
            "flat_ratio": self._n_flat / self._n,
            "frozen_ratio": self._n_frozen / self._n,
            "motion": self._motion / max(1, self._n - 1),
            "sharpness": self._sharpness / self._n_sharp,
            "letterbox_ratio": letterbox,
            "pillarbox_ratio": pillarbox,
            "keyframe_hashes": [text for _, text in self._hashes.items],
            "keyframe_pts": [pts for pts, _ in self._hashes.items],
            "scene_cuts": self._shots.finish(),
        }

    def _measure(self) -> None:
        """Add the statistics of the frames in the chunk, and empty it."""
        n = len(self._pts)
        if not n:
            return
        luma = self._chunk[:n]
        pixels = luma[0].size
        levels = self._shots.feed(luma, self._pts)
        self._luma += int(levels.total.sum()) / pixels
        dark = (luma < BLACK_LEVEL).reshape(n, -1).sum(axis=1, dtype=np.uint32)
        self._n_black += int((dark >= BLACK_SHARE * pixels).sum())
        by_frame = luma.reshape(n, -1)  # [n, 2304]
        ranges = by_frame.max(axis=1) - by_frame.min(axis=1)  # [n], in levels
        self._n_flat += int((ranges <= FLAT_LEVELS).sum())
        change = levels.change[self._n == n :]  # the very first frame has no predecessor
        self._motion += int(change.sum()) / pixels
        self._n_frozen += int((change < FROZEN_LEVELS * pixels).sum())
        self._brightest = np.maximum(self._brightest, luma.max(axis=0))
        for place, text in zip(self._keys, image_hashes(luma[self._keys]), strict=True):
            self._hashes.add(self._pts[place], text)
        self._pts = []
        self._keys = []


def _luma(frame: "VideoFrame") -> Frames:
    plane = frame.planes[0]
    return np.ndarray((frame.height, frame.width), np.uint8, memoryview(plane), 0, (plane.line_size, 1))


class KeyframeHashes:
    """Hashes of at most `MAX_HASHES` evenly spread keyframes."""

    def __init__(self) -> None:
        self.items: list[tuple[int, str]] = []
        self._every = 1
        self._n = 0

    def add(self, pts: int, text: str) -> None:
        """Add the next keyframe's hash, if it is one of every `_every`. If there are too many, that number doubles."""
        if self._n % self._every == 0:
            if len(self.items) == MAX_HASHES:
                self.items = self.items[::2]
                self._every *= 2
            if self._n % self._every == 0:
                self.items.append((pts, text))
        self._n += 1


def sharpness(luma: Frames) -> float:
    """Return the 4-neighbour Laplacian's variance of uint8 [height, width], in squared levels of 255.

    Sides are below 2048 px: a line's squares add up in 32 bits.
    """
    wide = luma.astype(np.int16)
    edges = wide[:-2, 1:-1] + wide[2:, 1:-1]
    edges += wide[1:-1, :-2]
    edges += wide[1:-1, 2:]
    edges -= wide[1:-1, 1:-1] << 2
    exact = edges.astype(np.int32)
    # BLAS is avoided because its threads busy-wait.
    squares = int(np.einsum("ij,ij->i", exact, exact).sum(dtype=np.int64))
    total = int(exact.sum(axis=0, dtype=np.int32).sum(dtype=np.int64))
    return squares / exact.size - (total / exact.size) ** 2


def bars(brightest: Frames) -> tuple[float, float]:
    """Return the shares of (height, width) at the edges that stay black."""
    return _dark_edges(brightest.max(axis=1)), _dark_edges(brightest.max(axis=0))


def _dark_edges(line: Frames) -> float:
    lit = line >= BLACK_LEVEL
    if not lit.any():
        return 1.0
    return float(lit.argmax() + lit[::-1].argmax()) / len(lit)


def image_hashes(luma: Frames) -> list[str]:
    """Return a 64-bit hash in hex per image, uint8 [n, 36, 64]: which low DCT coefficients exceed their median.

    Recompressed copies differ in about 4 bits, other images in 32.
    """
    down = _dct(SMALL_PX[1])
    right = _dct(SMALL_PX[0])
    columns = np.einsum("ki,nij->nkj", down, luma.astype(np.float64))  # as in `sharpness`: without BLAS
    low = np.round(np.einsum("nkj,lj->nkl", columns, right), 3).reshape(len(luma), _HASH_SIDE**2)
    bits = low > np.median(low, axis=1, keepdims=True)
    return [packed.tobytes().hex() for packed in np.packbits(bits, axis=1)]


def _dct(n: int) -> Floats:
    rows = np.arange(_HASH_SIDE)[:, None] * (2 * np.arange(n)[None] + 1) * np.pi / (2 * n)
    cosines: Floats = np.cos(rows)
    return cosines


SettledCuts = Callable[[], tuple[list[int], int | None]]
"""(pts of the final scene cuts, pts before which they are complete); see `ShotDetector.final_boundaries`."""


class FrameWatcher(Protocol):
    """Receives an audit's frames: `begin`, `add` per frame, then `finish` or `abandon`."""

    def begin(self, stream: "VideoStream", index: PacketIndex, settled: SettledCuts) -> None:
        """Start before the first frame. settled: returns the final scene cuts so far."""

    def add(self, timed: TimedFrame) -> None:
        """Add the next frame. Raises: StoreError."""

    def finish(self, cuts: Sequence[int]) -> None:
        """Finish a healthy video, whose scene cuts are `cuts`. Raises: StoreError."""

    def abandon(self) -> None: ...


N_SEEKS = 3
"""Random frames to seek to, in addition to the last and risky ones."""

SEEK_SEED = 20_231

_POLICY = VideoPolicy()

STRICT: Mapping[str, Mapping[str, str]] = {"hevc": {"err_detect": "crccheck+bitstream+buffer+explode"}}
"""Options for decoders that would ignore damaged slices; others mark or reject them, except VP8 and VP9."""

BLIND = ("mpeg4", "h263", "flv", "msmpeg4", "msmpeg4v1", "msmpeg4v2", "wmv1", "wmv2")
"""Decoders that return frames with missing references unmarked."""


def audit_video(path: str, policy: VideoPolicy = _POLICY, watcher: FrameWatcher | None = None) -> Row:
    """Return a video's media columns, in constant memory. watcher: also receives every frame.

    Raises: Unusable if the file cannot be fully decoded, or the policy excludes its HDR or deep colour.
    """
    with open_container(path) as container:
        stream = first_video(container)
        if stream is None:
            raise rejected("probe", "no_streams", "the container has no video stream")
        facts: Row = {**container_facts(container)}
        index = index_packets(container, stream)
        facts |= packet_facts(index)
    with open_container(path) as container:
        stream = first_video(container)
        assert stream is not None  # the same file had one before
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
    """Decode the whole video, and return (its facts, pts -> checksum of some frames). Raises: Unusable."""
    import av

    waits = prepare_strict(stream)
    audio = first_audio(container)
    clock = FrameClock(container)
    streams: list[Any] = [stream]
    track = None
    if audio is not None:
        streams.append(audio)
        track = TrackAudit(container, audio)
    try:
        for packet in demux_packets(container, *streams):
            number = packet.stream.index  # `stream_index` of an empty, final packet is always 0
            if track is not None and audio is not None and number == audio.index:
                track.add(packet)
            if number != stream.index:
                continue
            waits = waits and packet.size > 0 and not packet.is_keyframe
            if waits:
                continue
            for frame in packet.decode():
                assert isinstance(frame, av.VideoFrame)  # from a video stream
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


def prepare_strict(stream: "VideoStream") -> bool:
    """Prepare a decoder: one thread, errors for hidden damage; return whether it must start with a keyframe."""
    stream.thread_count = 1
    options = STRICT.get(stream.codec_context.codec.name)
    if options is not None:
        stream.codec_context.options = dict(options)
    return options is not None


class _FrameAudit:
    def __init__(
        self,
        stream: "VideoStream",
        index: PacketIndex,
        policy: VideoPolicy,
        watcher: FrameWatcher | None,
    ) -> None:
        self.n = 0
        self._stream = stream
        self._index = index
        self._policy = policy
        self._watcher = watcher
        self._n_corrupt = 0
        self._n_interlaced = 0
        self._timing = Timing()
        self._statistics = FrameStatistics()
        self._first_corrupt: int | None = None
        self._first: Row = {}
        """Facts of the first frame."""
        self._last: TimedFrame | None = None
        self._hashes: dict[int, int] = {}
        """Own timestamp in ticks -> CRC-32, of each sampled frame: a seek must find them."""
        self._behind_gap: dict[int, int] = {}
        """The same of the frame that `_hash_behind_gap` chose last."""
        self._known_gap = 0
        """Gap in ticks that the next one is compared with; 0 before the first."""
        n_seeks = min(N_SEEKS, index.n_packets)
        # Numbers of the frames to hash.
        self._sampled = set(random.Random(SEEK_SEED).sample(range(index.n_packets), n_seeks))
        if index.n_discard:  # an edit list hides frames before the first shown one
            self._sampled.add(0)

    def add(self, timed: TimedFrame) -> None:
        frame = timed.frame
        if not self.n:
            frame_rendering(frame, self._policy)
            if self._stream.codec_context.name in BLIND and not frame.key_frame:
                text = "it begins between two keyframes; its first frames lack what they build on"
                raise rejected("decode", "no_keyframe", text, at_frame=0)
            self._first = frame_facts(self._stream, frame)
        self._check_size(frame)
        gap = self._timing.add(timed)
        if self.n in self._sampled:
            self._hashes[timed.tagged] = frame_crc(frame)
        self._hash_behind_gap(gap, timed)
        self._statistics.add(frame, timed.pts)
        if frame.is_corrupt:
            if self._first_corrupt is None:
                self._first_corrupt = self.n
            self._n_corrupt += 1
        self._n_interlaced += frame.interlaced_frame
        self.n += 1
        self._last = timed
        if self._watcher is not None:
            self._watcher.add(timed)

    def _check_size(self, frame: "VideoFrame") -> None:
        first = self._first["width_px"], self._first["height_px"]
        if (frame.width, frame.height) != first:
            sizes = f"from {first[0]}x{first[1]} to {frame.width}x{frame.height}"
            text = f"the resolution changes within the stream at frame {self.n} {sizes}; cut it there, or scale it"
            raise rejected("decode", "resolution_changes", text, at_frame=self.n)

    def _hash_behind_gap(self, gap: int, timed: TimedFrame) -> None:
        """Hash the frame after a gap that is over 1.5 times the longest before."""
        if not self._known_gap:
            self._known_gap = gap
        elif 2 * gap > 3 * self._known_gap:
            self._known_gap = gap
            self._behind_gap = {timed.tagged: frame_crc(timed.frame)}

    def hashes(self) -> Mapping[int, int]:
        if self._last is None:
            last = {}
        else:
            last = {self._last.tagged: frame_crc(self._last.frame)}
        return self._hashes | self._behind_gap | last

    def settled(self) -> tuple[list[int], int | None]:
        return self._statistics.settled()

    def facts(self) -> Row:
        index = self._index
        if not self.n:
            raise rejected(
                "decode", "no_frames", f"{index.n_packets} packets give no frame", given=index.n_packets
            )
        if self._n_corrupt:
            text = f"{self._n_corrupt} of {self.n} frames are damaged"
            raise rejected(
                "decode", "corrupt", text, at_frame=self._first_corrupt, given=self._n_corrupt, accepted=0
            )
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
