"""A video decoded once from its first frame to its last: what came, when, and what it looks like in small."""

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .audio_audit import Loudness
from .colour import refuse_deep
from .container import PacketIndex, first_sound, index_packets, moving_picture, opened
from .media_table import Row
from .probe import container_facts, frame_facts, packet_facts, sound_facts
from .seek_audit import frame_crc, seek_ok
from .timestamps import Clock, Shown
from .unit import rejected

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

SMALL_PX = (64, 36)
"""Width and height of the picture that is measured."""

BLACK_LEVEL, BLACK_SHARE = 25.5, 0.98  # FFmpeg's blackdetect: 98 % of the pixels below a tenth of white
FROZEN_LEVELS = 0.255  # FFmpeg's freezedetect: mean absolute difference of a thousandth

N_SEEKS = 4
SEEK_SEED = 20_231


class Timing:
    """Counts timestamps: backward and equal ones as tagged, gaps as shown."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last = self.n_backward = self.n_dup = self.last_duration = 0
        self.gaps: set[int] = set()
        self._newest: int | None = None

    def add(self, shown: Shown) -> None:
        newest = self._newest
        if newest is not None:
            self.n_dup += shown.tagged == newest
            self.n_backward += shown.tagged < newest
        self._newest = shown.tagged if newest is None else max(newest, shown.tagged)
        if self.first is None:
            self.first = self.last = shown.pts
        elif shown.pts > self.last:
            self.gaps.add(shown.pts - self.last)
            self.last = shown.pts
        if shown.pts == self.last:
            self.last_duration = shown.frame.duration or 0

    def facts(self, time_base: Fraction) -> Mapping[str, Any]:
        """Variable when gaps differ by more than a tick, or than 2 ms where ticks are finer than that."""
        assert self.first is not None  # called after a frame
        low, high = min(self.gaps, default=0), max(self.gaps, default=0)
        slack = max(1, round(Fraction(2, 1000) / time_base))
        end = self.last + max(1, self.last_duration or low)
        return {
            "start_pts": self.first,
            "end_pts": end,
            "duration_s": float((end - self.first) * time_base),
            "min_pts_gap": low if self.gaps else None,
            "max_pts_gap": high if self.gaps else None,
            "is_vfr": high - low > slack,
            "n_pts_backward": self.n_backward,
            "n_pts_dup": self.n_dup,
        }


class Look:
    """Luma, motion, black and frozen frames of the 64 x 36 picture, full range 0 to 255."""

    def __init__(self) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformatter = VideoReformatter()
        self._before: np.ndarray[Any, np.dtype[np.int16]] | None = None
        self._n = self._n_black = self._n_frozen = 0
        self._luma = self._motion = 0.0

    def add(self, frame: "VideoFrame") -> None:
        small = self._reformatter.reformat(frame, *SMALL_PX, "gray", interpolation="AREA", threads=1)
        luma = small.to_ndarray().astype(np.int16)
        self._n += 1
        self._luma += float(luma.mean())
        self._n_black += bool((luma < BLACK_LEVEL).mean() >= BLACK_SHARE)
        if self._before is not None:
            difference = float(np.abs(luma - self._before).mean())
            self._motion += difference
            self._n_frozen += difference < FROZEN_LEVELS
        self._before = luma

    def facts(self) -> Mapping[str, Any]:
        return {
            "luma_mean": self._luma / self._n,
            "black_ratio": self._n_black / self._n,
            "frozen_ratio": self._n_frozen / self._n,
            "motion": self._motion / max(1, self._n - 1),
        }


def audit_video(path: str) -> Row:
    """Columns of the media table. Raises: Unusable for what cannot be decoded to its end, and for HDR."""
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
        decoded, hashes = _decode(container, stream, index)
    return facts | decoded | {"seek_ok": seek_ok(path, hashes, index) if hashes else None}


def _decode(
    container: "InputContainer", stream: "VideoStream", index: PacketIndex
) -> tuple[Row, dict[int, int]]:
    """Columns, and CRC-32 by pts of the frames to seek for later. Raises: Unusable."""
    import av

    stream.thread_count = 1
    sound = first_sound(container)
    clock, loudness = Clock(container), Loudness()
    pictures = _Pictures(stream, index)
    try:
        for packet in container.demux(*([stream] if sound is None else [stream, sound])):
            for frame in packet.decode():
                if isinstance(frame, av.AudioFrame):
                    loudness.add(frame)
                else:
                    assert isinstance(frame, av.VideoFrame)  # the two streams that were asked for
                    for one in clock.take(frame):
                        pictures.add(one)
        for one in clock.rest():
            pictures.add(one)
    except av.error.FFmpegError as error:
        raise rejected("decode", "undecodable", f"after frame {pictures.n}: {error.strerror}") from error
    facts = pictures.facts(index)
    if sound is not None:
        start_s = facts["start_pts"] * Fraction(*index.time_base)
        facts |= {**sound_facts(sound), **loudness.facts(start_s)}
    return facts, pictures.hashes


class _Pictures:
    """What is known of the frames. hashes: CRC-32 by tagged time of those to seek for later."""

    def __init__(self, stream: "VideoStream", index: PacketIndex) -> None:
        self.n = 0
        self.hashes: dict[int, int] = {}
        self._stream, self._n_corrupt = stream, 0
        self._timing, self._look = Timing(), Look()
        self._first: Row = {}
        n_seeks = min(N_SEEKS, index.n_packets)
        self._wanted = set(random.Random(SEEK_SEED).sample(range(index.n_packets), n_seeks))

    def add(self, shown: Shown) -> None:
        """Raises: Unusable for HDR and deep colour."""
        frame = shown.frame
        if not self.n:
            refuse_deep(frame)
            self._first = frame_facts(self._stream, frame)
        self._timing.add(shown)
        if self.n in self._wanted:
            self.hashes[shown.tagged] = frame_crc(frame)
        self._look.add(frame)
        self._n_corrupt += frame.is_corrupt
        self.n += 1

    def facts(self, index: PacketIndex) -> Row:
        """Raises: Unusable without a frame, and for damaged ones."""
        if not self.n:
            raise rejected("decode", "no_frames", f"{index.n_packets} packets give no frame")
        if self._n_corrupt:
            raise rejected("decode", "corrupt", f"{self._n_corrupt} of {self.n} frames are damaged")
        counts = {"n_frames_decoded": self.n, "n_corrupt": self._n_corrupt}
        timing = self._timing.facts(Fraction(*index.time_base))
        return {**self._first, **counts, **timing, **self._look.facts()}
