"""Time limits of objects: a base, and more for as much sound and picture as there is to decode.

Before the audit the container tells how much that is, or else the number of its bytes; after it, the decoded amount is
known. Headers may lie: a limit is never above a ceiling, and an object with more to decode than its header tells runs
into the limit of the told amount.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from loader.errors import StoreError
from loader.modalities.video.mp4 import check_tables_of
from loader.storage import Store

from .container import first_sound, moving_picture
from .unit import Unusable

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

PIXELS_PER_S = 5_000_000
"""Pixels per second. An idle core audits some 40 million, of H.264 and AV1 alike: eight times as long, for a busy
one."""

VALUES_PER_S = 1_000_000
"""Samples of all channels per second; an idle core audits some 12 million."""

_SLOW = {
    "libdav1d": 2, "av1": 2, "hevc": 2, "vvc": 4, "libvpx-vp9": 2, "vp9": 2, "prores": 2, "ffv1": 2, "jpeg2000": 8,
}  # fmt: skip
"""Factors of decoders that may take so many times as long as others, where a file asks for all that they can do."""

_LEAST_SOUND, _LEAST_PICTURE = 2_000, 50_000
"""Bytes per second below which few files lie: 16 kbit/s of sound, 400 kbit/s of picture."""

_ESTIMATED = ("ogg", "mpegts", "mpeg", "aac", "mp3", "flv")
"""Formats whose length FFmpeg estimates, or finds at their end, which may be that of another part."""

_FRAME_RATE = 30
_AT_ONCE_BYTES = 256 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Amount of sound and picture to decode."""

    duration_s: float
    """Length of the longer one of sound and picture."""
    pixels: float
    """Pixels of all frames, weighted by their codec."""
    values: float
    """Samples of all channels."""

    def limit_s(self, base_s: float, ceiling_s: float) -> float:
        """Return the seconds that it may take: base_s at least, ceiling_s at most (never below base_s)."""
        wanted_s = base_s + self.pixels / PIXELS_PER_S + self.values / VALUES_PER_S
        return min(wanted_s, max(base_s, ceiling_s))

    def __str__(self) -> str:
        what = "video" if self.pixels else "sound"
        return f"{self.duration_s:,.0f} s of {what}"


def work_of(row: Mapping[str, Any]) -> Work:
    """Return the decoded amount of an object, as its row of the media table has it."""
    frames = (
        float(row.get("n_frames_decoded") or 0) * (row.get("width_px") or 0) * (row.get("height_px") or 0)
    )
    return Work(
        duration_s=float(row.get("duration_s") or 0),
        pixels=frames * _SLOW.get(row.get("codec") or "", 1),
        values=float(row.get("n_samples") or 0) * (row.get("channels") or 1),
    )


def told_of(place: tuple[Store, str]) -> tuple[float, float, float] | None:
    """Return duration_s, pixels and values of a `Work`, as a container of sound or video tells them.

    A few ranges of its bytes are read. None for other files, and for a file that cannot be read: decoding it says why.

    place: store and key.
    """
    import av

    store, key = place
    try:
        nbytes = store.head(key).nbytes
        # No protocols: a playlist leads nowhere. Reads are large, whatever FFmpeg asks for.
        file = io.BufferedReader(_Ranges(store, key, nbytes), buffer_size=_AT_ONCE_BYTES)
        check_tables_of(file, all_fragments=False)
        with av.open(file, mode="r", options={"protocol_whitelist": ""}) as container:
            return _told(container, nbytes)
    except (av.error.FFmpegError, StoreError, Unusable, OverflowError, ValueError, LookupError):
        return None


def _told(container: "InputContainer", nbytes: int) -> tuple[float, float, float] | None:
    picture, sound = moving_picture(container), first_sound(container)
    if picture is None and sound is None:
        return None
    told_s = 0.0 if container.duration is None else container.duration / 1_000_000
    least = _LEAST_SOUND if picture is None else _LEAST_PICTURE
    if not told_s or any(name in _ESTIMATED for name in container.format.name.split(",")):
        told_s = max(told_s, nbytes / least)
    pixels = 0.0 if picture is None else _pixels(picture, told_s)
    values = 0.0 if sound is None else _values(sound, told_s)
    return told_s, pixels, values


def _pixels(stream: "VideoStream", told_s: float) -> float:
    codec = stream.codec_context
    rate = Fraction(stream.average_rate or stream.guessed_rate or _FRAME_RATE)
    n_frames = max(float(stream.frames), told_s * float(rate))
    return n_frames * codec.width * codec.height * _SLOW.get(codec.name, 1)


def _values(stream: "AudioStream", told_s: float) -> float:
    return told_s * (stream.rate or 48_000) * (stream.channels or 2)


class _Ranges(io.RawIOBase):
    """An object as a file."""

    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        self._store, self._key, self._nbytes, self._at = store, key, nbytes, 0

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
