"""Stored bytes, which the loader decodes up to limits, and the decoded value's kind then shows.

All of a viewer's threads share one memory budget for decoding, in order of arrival. A thread reserves after reading a
file's header, and takes no other lock meanwhile, so every thread gets its turn.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Condition, local
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from loader.errors import DecodeFailed, MissingDependency, PenstockError
from loader.modalities import DECODERS, WITH_TABLES, find_decoder
from loader.modalities.fields import as_buffer, last_word, load
from loader.modalities.video.packet_runs import mp4_of_run
from loader.modalities.video.packet_table import SUFFIX

from ...card.pictures import MAX_FRAME_PX
from ...units import length, size
from .image import fit_size, jpeg
from .kind import EDGE_PX, Facts, Kind, Mark, Media, TokenBox, mark
from .text import hex_lines, limit_line
from .video import length_marks

DECODED_BYTES = 2**30
"""Bytes decoded at the same time. A larger value is decoded on its own."""
RELEASED_FROM_BYTES = 64 * 2**20
"""Smallest reservation, in bytes, after which freed memory returns to the system."""

MOST_HEAPS = 2
"""glibc makes eight per core: searches in 1e6 samples left 75 MiB in them."""
_M_ARENA_MAX = -8
"""glibc's number of the option, in malloc.h."""


def release_memory() -> None:
    """Return freed memory to the system, if the C library can; takes milliseconds."""
    # Of columns that were read: Arrow's pool keeps their memory.
    pa.default_memory_pool().release_unused()
    # 256 photos and their tensors take 300 MiB, which glibc would keep in growing per-thread heaps.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def limit_heaps() -> None:
    """Let the C library's threads share MOST_HEAPS heaps, if it can: each heap keeps some of what was freed in it."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, MOST_HEAPS)


class DecodeBudget:
    """Reservations of memory. Thread-safe. A thread with one gets more without waiting."""

    def __init__(self, limit: int = DECODED_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._turn = Condition()
        self._waiting = deque[object]()
        self._thread = local()

    # Freed canvases stay in their thread's heap: decoding eight images in turn kept 2.4 GiB.
    @contextmanager
    def reserve(self, nbytes: int) -> Iterator[None]:
        """Wait for this many bytes, and reserve them in the block."""
        held = getattr(self._thread, "held", 0)
        # At most the limit, else a larger value would wait for ever. A nested block counts what the thread has.
        more = max(0, min(nbytes, self._limit) - held)
        # A thread that already holds memory must not wait: the one ahead may wait for its memory.
        self._take(more, waits=not held)
        self._thread.held = held + more
        try:
            yield
        finally:
            self._thread.held = held
            if more >= RELEASED_FROM_BYTES:
                release_memory()
            with self._turn:
                self._used -= more
                self._turn.notify_all()

    def _take(self, nbytes: int, *, waits: bool) -> None:
        ticket = object()
        with self._turn:
            if waits:
                self._waiting.append(ticket)
                try:
                    self._turn.wait_for(
                        # In order of arrival, else small values would overtake a large one again and again.
                        lambda: self._waiting[0] is ticket and self._used + nbytes <= self._limit
                    )
                finally:
                    self._waiting.remove(ticket)
                    self._turn.notify_all()
            self._used += nbytes


BUDGET = DecodeBudget()
"""The process's budget."""


MAX_IMAGE_PX = 2**25
"""Most pixels of a decoded image: 128 MiB with alpha. JPEGs scaled down while decoding may be larger."""
MAX_AUDIO_BYTES = 2**26
"""Decoded audio, at 4 bytes per sample."""
MAX_TEXT_BYTES = 2**24
MAX_JSON_BYTES = 2**20
"""Decoded text and JSON; larger JSON is shown as text."""
CLIP_FRAMES = 16
MAX_CLIP_PX = 2**24
"""Frames decoded per video, and pixels of all these together."""
MAX_PACKETS = 240
"""Packets decoded for these frames; beyond it, key frames are chosen instead."""

_VIDEO_BYTES = 320 * 2**20
_AUDIO_BYTES = 3 * MAX_AUDIO_BYTES
"""Memory of a decoder: reference frames, and copies."""
_PIXEL_BYTES = 24
_JPEG_PIXEL_BYTES = 8
"""Measured bytes per pixel while decoding: Pillow's canvases and copies; JPEG coefficients and pixels."""

KindOf = Callable[[object, Facts], Kind]


class DecodedValue(NamedTuple):
    value: Any
    facts: Facts
    """Facts, also the file's, such as its rate."""
    lines: tuple[str, ...] = ()
    """Text about the file."""
    is_thumbnail: bool = False
    """True for a thumbnail's pixels of a lossy file."""
    marks: tuple[Mark, ...] = ()
    """The file's."""
    seconds: float | None = None
    """Duration of audio or video, if known."""
    frame_s: float = 0.0
    """Duration of a frame, in seconds."""


def stored_bytes_kind(kind_of: KindOf) -> Kind:
    """Return stored bytes' kind. kind_of: returns the decoded value's kind."""
    return Kind(
        name="stored",
        fits=fits,
        lines=partial(_lines, kind_of),
        marks=partial(_marks, kind_of),
        thumbnail=partial(_thumbnail, kind_of),
        detail=partial(_detail, kind_of),
        boxes=partial(_boxes, kind_of),
    )


def fits(value: Any, facts: Facts) -> bool:
    """Return whether a value is bytes of a field that the loader can decode."""
    return isinstance(value, bytes | bytearray | memoryview) and (
        facts.word in DECODERS or facts.word in WITH_TABLES
    )


def card_field(names: Iterable[str]) -> str:
    """Return the field that a sample's card shows: an image, else a video, else audio, or ""."""
    for modality in ("image", "video", "audio"):
        for name in names:
            if _modality(last_word(name)) == modality:
                return name
    return ""


def _modality(word: str) -> str:
    if word in WITH_TABLES:
        return "video"
    return DECODERS.get(word, "").partition(".")[0]


def read_bounded(data: bytes, facts: Facts) -> DecodedValue:
    """Return a value decoded up to the limits. Raises: DecodeFailed; MissingDependency."""
    if not fits(data, facts):
        return DecodedValue(data, facts)
    with BUDGET.reserve(decoded_bytes(data, facts)):
        return _decode(data, facts, None)


def decoded_bytes(data: bytes, facts: Facts) -> int:
    """Return the most memory in bytes that decoding takes, by the header."""
    modality = _modality(facts.word)
    if modality == "image":
        try:
            width, height = _sides(data)
        except DecodeFailed:
            return 0  # an image without a readable header, or above the limit, is not decoded
        if data[:2] == b"\xff\xd8":
            return width * height * _JPEG_PIXEL_BYTES
        if width * height <= MAX_IMAGE_PX:
            return width * height * _PIXEL_BYTES
        return 0
    return {"audio": _AUDIO_BYTES, "video": _VIDEO_BYTES}.get(modality, 3 * len(data))


def _lines(kind_of: KindOf, value: Any, facts: Facts) -> tuple[str, ...]:
    data = _bytes(value)
    head = f"stored: {size(len(data))} of {facts.word}"
    with _decoding(data, facts) as read:
        if isinstance(read, str):
            return head, f"cannot be shown: {read}", *hex_lines(data)
        return head, *read.lines, *kind_of(read.value, read.facts).lines(read.value, read.facts)


def _marks(kind_of: KindOf, value: Any, facts: Facts) -> tuple[Mark, ...]:
    with _decoding(_bytes(value), facts) as read:
        if isinstance(read, str):
            return (mark("unreadable", read),)
        return *read.marks, *kind_of(read.value, read.facts).marks(read.value, read.facts)


def _thumbnail(kind_of: KindOf, value: Any, facts: Facts, edge: int = EDGE_PX) -> Media | None:
    with _decoding(_bytes(value), facts, edge) as read:
        if isinstance(read, str):
            return None
        if read.is_thumbnail:
            return jpeg(read.value)
        return kind_of(read.value, read.facts).thumbnail(read.value, read.facts, edge)


def _detail(kind_of: KindOf, value: Any, facts: Facts) -> tuple[Media, ...]:
    with _decoding(_bytes(value), facts) as read:
        if isinstance(read, str):
            return ()
        return kind_of(read.value, read.facts).detail(read.value, read.facts)


def _boxes(kind_of: KindOf, value: Any, facts: Facts) -> tuple[TokenBox, ...]:
    with _decoding(_bytes(value), facts) as read:
        if isinstance(read, str):
            return ()
        return kind_of(read.value, read.facts).boxes(read.value, read.facts)


def _bytes(value: object) -> bytes:
    buffer = as_buffer(value)
    assert buffer is not None  # guaranteed by `fits`
    return bytes(buffer)


@contextmanager
def _decoding(data: bytes, facts: Facts, edge: int | None = None) -> Iterator[DecodedValue | str]:
    with BUDGET.reserve(decoded_bytes(data, facts)):
        read: DecodedValue | str
        try:
            read = _decode(data, facts, edge)
        except (DecodeFailed, MissingDependency) as error:
            read = limit_line(str(error))
        yield read


def _decode(data: bytes, facts: Facts, edge: int | None) -> DecodedValue:
    modality = _modality(facts.word)
    word = facts.word
    if modality == "image":
        return _image(data, facts, edge)
    if modality == "audio":
        return _audio(data, facts)
    if modality == "video":
        # Packets lie in the shard without a container, which decoders need.
        video = packets_mp4(data, facts) if word in WITH_TABLES else data
        return _video(video, facts, 1 if edge else CLIP_FRAMES)
    if word == "txt" or (word in ("json", "jsonl") and len(data) > MAX_JSON_BYTES):
        return _text(data, facts)
    return DecodedValue(find_decoder(facts.word)(data, None), facts)


def _text(data: bytes, facts: Facts) -> DecodedValue:
    if len(data) <= MAX_TEXT_BYTES:
        return DecodedValue(find_decoder("txt")(data, None), facts)
    start = data[:MAX_TEXT_BYTES].decode("utf-8", "replace")
    return DecodedValue(start, facts, (f"the first {size(MAX_TEXT_BYTES)} are shown",))


def _image(data: bytes, facts: Facts, edge: int | None) -> DecodedValue:
    """Return an upright image [H, W, C], uint8 or for 16-bit gray uint16; large JPEGs at about `edge` pixels."""
    width, height = _sides(data)
    if data[:2] == b"\xff\xd8" and edge is not None and max(width, height) > 4 * edge:
        header = load("image.jpeg_header:read_header")(data)
        if header.components in (1, 3):  # other JPEGs are decoded at full size first
            upright = (width, height) if header.turn.transpose else (height, width)
            pixels = load("image.request:ImageDecoder")(size=fit_size(*upright, edge))(data)
            return DecodedValue(pixels, facts, is_thumbnail=True)
    if width * height > MAX_IMAGE_PX:
        raise DecodeFailed(f"{width} x {height} px; at most {MAX_IMAGE_PX:,} px are shown")
    if load("image.deep_png:needs_bits")(data):
        high = ("16 bits per sample, of which the high byte is shown",)
        return DecodedValue(find_decoder("img", bits=8)(data, None), facts, high)
    return DecodedValue(find_decoder("img")(data, None), facts)


def _sides(data: bytes) -> tuple[int, int]:
    if data[:2] == b"\xff\xd8":
        header = load("image.jpeg_header:read_header")(data)
        return header.width_px, header.height_px
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        # IHDR is a PNG's first chunk, at a fixed place.
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[12:16] == b"VP8X":
        # WebP with extended header: 24 bits each, stored less one.
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        # Lossless WebP: 14 bits each, stored less one.
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if data[12:16] == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return 0, 0


def _audio(data: bytes, facts: Facts) -> DecodedValue:
    samples, rate_hz, whole = load("audio.decode:read_start")(data, MAX_AUDIO_BYTES)
    cut = () if whole else (f"the first {length(samples.shape[1] / rate_hz)} are shown",)
    seconds = None
    if whole:
        seconds = samples.shape[1] / rate_hz
    return DecodedValue(samples, replace(facts, rate=float(rate_hz)), cut, seconds=seconds)


def packets_mp4(data: bytes, facts: Facts) -> bytes:
    """Return packets as mp4, by the sample's packet table. Raises: DecodeFailed; MissingDependency."""
    packets = as_buffer(facts.sample.get(facts.field + SUFFIX))
    if packets is None:
        raise DecodeFailed(f"a run of packets needs its sample's field {facts.field + SUFFIX!r}")
    try:
        return mp4_of_run(data, packets, facts.field)
    except (DecodeFailed, MissingDependency):
        raise
    except PenstockError as error:
        raise DecodeFailed(str(error)) from error


def _video(data: bytes, facts: Facts, most: int) -> DecodedValue:
    whole_file = load("video.demux:whole_file")
    decoded = load("video.decode:decoded")
    with whole_file(data) as file:
        width = file.stream.width
        height = file.stream.height
        timeline = file.timeline
        if width * height > MAX_FRAME_PX:
            raise DecodeFailed(f"frames of {width} x {height} px; at most {MAX_FRAME_PX:,} px are shown")
        if not len(timeline):
            raise DecodeFailed("no frame is shown")
        frames = _choose_frames(timeline, max(1, min(most, MAX_CLIP_PX // (width * height))))
        clip = decoded(file, frames, load("image.crop:Framing")())
        name = file.stream.codec_context.name
        audio_s = _audio_seconds(file.stream.container)
    n = len(timeline)
    seconds = float(timeline.end_s - timeline.begin_s)
    rate = "without a length"
    if seconds > 0:
        rate = f"{n / seconds:.4g} a second"
    times = [float(timeline.time_s(frame)) for frame in frames]
    lines = (
        f"{name}, {n:,} frames, {length(seconds)}, {rate}",
        "frames at " + ", ".join(f"{time:.3f}" for time in times) + " s are shown",
    )
    marks = length_marks(seconds, {"its audio": audio_s} if audio_s else {}, seconds / n)
    return DecodedValue(
        clip, replace(facts, rate=None), lines, marks=marks, seconds=seconds, frame_s=seconds / n
    )


def _audio_seconds(container: Any) -> float | None:
    streams = container.streams.audio
    if not streams or streams[0].duration is None or streams[0].time_base is None:
        return None
    return float(streams[0].duration * streams[0].time_base)


def _choose_frames(timeline: Any, most: int) -> list[int]:
    """Return evenly spaced frames (the middle for `most` 1), or key or first frames beyond MAX_PACKETS."""
    n = len(timeline)
    frames = _spread(np.arange(n), most)
    if sum(run.stop - run.first for run in timeline.runs(frames)) <= MAX_PACKETS:
        return frames
    # [key frames]: positions in showing order of frames that need no other.
    starts = np.flatnonzero(np.isin(timeline.shown, timeline.keys))
    return _spread(starts if len(starts) >= most else np.arange(min(n, MAX_PACKETS)), most)


def _spread(numbers: Any, most: int) -> list[int]:
    if most == 1:
        return [int(numbers[len(numbers) // 2])]
    places = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).astype(int)
    return [int(numbers[at]) for at in np.unique(places)]
