"""Time limits per object: a base plus decoding time for its audio and video, by header, size or audit."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from loader.errors import StoreError
from loader.modalities.video.container_checks import check_file_tables
from loader.storage import Store

from .container import first_audio, first_video
from .unit import Unusable

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

PIXELS_PER_S = 5_000_000
"""Pixels per second allowed for: an eighth of what an idle core audits, H.264 or AV1."""

VALUES_PER_S = 1_000_000
"""Samples of all channels per second allowed for; an idle core audits 12 million."""

_ALLOWED_PER_USUAL = 8
"""Allowed time per usual time."""

# Codec -> how many times slower than others it is at worst.
_SLOW = {
    "libdav1d": 2, "av1": 2, "hevc": 2, "vvc": 4, "libvpx-vp9": 2, "vp9": 2, "prores": 2, "ffv1": 2, "jpeg2000": 8,
}  # fmt: skip

# Bytes per second that few files undercut: 16 kbit/s of audio, 400 kbit/s of video.
_LEAST_SOUND, _LEAST_PICTURE = 2_000, 50_000

# FFmpeg estimates the length of these formats, or reads it from the end, possibly for another part.
_ESTIMATED = ("ogg", "mpegts", "mpeg", "aac", "mp3", "flv")

_FRAME_RATE = 30
_AT_ONCE_BYTES = 256 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWork:
    """Amount of audio and video to decode."""

    duration_s: float
    """Seconds of audio or video, whichever is longer."""
    pixels: float
    """Pixels of all frames, weighted by codec."""
    values: float
    """Samples in all channels."""

    def limit_s(self, base_s: float, ceiling_s: float) -> float:
        """Return the allowed seconds, from base_s up to ceiling_s."""
        wanted_s = base_s + self.pixels / PIXELS_PER_S + self.values / VALUES_PER_S
        return min(wanted_s, max(base_s, ceiling_s))

    @property
    def usual_s(self) -> float:
        """Estimated seconds on an idle core, which time limits exceed eightfold."""
        return self.limit_s(0.0, math.inf) / _ALLOWED_PER_USUAL

    def __str__(self) -> str:
        kind = "sound"
        if self.pixels:
            kind = "video"
        return f"{self.duration_s:,.0f} s of {kind}"


def media_work(row: Mapping[str, Any]) -> DecodeWork:
    """Return an object's decoding work from its media row."""
    frames = (
        float(row.get("n_frames_decoded") or 0) * (row.get("width_px") or 0) * (row.get("height_px") or 0)
    )
    return DecodeWork(
        duration_s=float(row.get("duration_s") or 0),
        pixels=frames * _SLOW.get(row.get("codec") or "", 1),
        values=float(row.get("n_samples") or 0) * (row.get("channels") or 1),
    )


def read_header_work(place: tuple[Store, str]) -> tuple[float, float, float] | None:
    """Return `DecodeWork`'s duration_s, pixels and values as a container's header declares them.

    Returns None if the object is not a container or cannot be read. Costs a few range requests. place: (store, key).
    """
    import av

    store, key = place
    try:
        nbytes = store.head(key).nbytes
        # Protocols are off so that a playlist opens nothing. The buffer makes reads large, whatever FFmpeg requests.
        file = io.BufferedReader(_Ranges(store, key, nbytes), buffer_size=_AT_ONCE_BYTES)
        check_file_tables(file, all_fragments=False)
        with av.open(file, mode="r", options={"protocol_whitelist": ""}) as container:
            return _header_work(container, nbytes)
    except (av.error.FFmpegError, StoreError, Unusable, OverflowError, ValueError, LookupError):
        return None


def _header_work(container: "InputContainer", nbytes: int) -> tuple[float, float, float] | None:
    """Return `read_header_work`'s result of an open container. nbytes: of the whole object."""
    video = first_video(container)
    audio = first_audio(container)
    if video is None and audio is None:
        return None
    declared_s = 0.0
    if container.duration is not None:
        declared_s = container.duration / 1_000_000  # FFmpeg's AV_TIME_BASE
    least = _LEAST_PICTURE
    if video is None:
        least = _LEAST_SOUND
    names = container.format.name.split(",")
    if not declared_s or any(name in _ESTIMATED for name in names):
        # As long as a file of so many bytes may be: a limit that is too short would end a good object.
        declared_s = max(declared_s, nbytes / least)
    pixels = 0.0
    if video is not None:
        pixels = _pixels(video, declared_s)
    values = 0.0
    if audio is not None:
        values = _values(audio, declared_s)
    return declared_s, pixels, values


def _pixels(stream: "VideoStream", declared_s: float) -> float:
    codec = stream.codec_context
    rate = Fraction(stream.average_rate or stream.guessed_rate or _FRAME_RATE)
    n_frames = max(float(stream.frames), declared_s * float(rate))
    return n_frames * codec.width * codec.height * _SLOW.get(codec.name, 1)


def _values(stream: "AudioStream", declared_s: float) -> float:
    return declared_s * (stream.rate or 48_000) * (stream.channels or 2)


class _Ranges(io.RawIOBase):
    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        self._store = store
        self._key = key
        self._nbytes = nbytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: object) -> int:
        target = memoryview(cast(bytearray, buffer)).cast("B")
        count = max(0, min(len(target), self._nbytes - self._at))
        if count:
            target[:count] = self._store.get_range(self._key, self._at, count).data
            self._at += count
        return count
