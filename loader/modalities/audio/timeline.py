"""Place decoded audio on its timeline: sample n is heard n / rate_hz s after the first.

Frames are concatenated according to their timestamps, ignoring jitter. A gap becomes silence. If two frames overlap by
up to the earlier one's length, the end of the earlier one is dropped. In MP4 a frame lasts until the next frame's time.
Frames that go back further are dropped until they catch up.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import PenstockError

if TYPE_CHECKING:
    from av import AudioFrame

Floats = np.ndarray[Any, np.dtype[np.float32]]

BLOCK_SAMPLES = 65_536
"""Samples per channel in a block, which bounds memory."""

JITTER_S = 0.25
"""Seconds for which a timestamp shift must last; shorter shifts are ignored as jitter."""

MAX_GAP_S = 3600
"""Longest gap in seconds; a longer one is an error in the file, not silence."""

MAX_PADDING_SAMPLES = 4608
"""Most encoder padding: more samples after the stated end mean that MP3s were concatenated."""


class BadSound(PenstockError, ValueError):
    """code: rate_change, channel_change or timestamps."""

    def __init__(self, code: str, reason: str, **fields: object) -> None:
        super().__init__(code, reason, what=code, **fields)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Statements in a file about the end of its audio."""

    untimed: bool = False
    """True if timestamps are ignored (AVI, where FFmpeg computes them)."""
    restarts: bool = False
    """True if the clock may restart (links of a chained Ogg)."""
    durations_count: bool = False
    """True if the last frame's duration may cut it (MP4, MOV)."""
    end: Fraction | None = None
    """Seconds on the container's clock, at or after the end; None if not stated."""
    n_samples: int | None = None
    """Number of audible samples (iTunSMPB, LAME); None if not stated."""


class _Next(NamedTuple):
    """A frame whose position is final once the following frames are known."""

    samples: Floats
    place: int | None
    """Position of the first sample, from the timestamp."""
    n_beyond: int
    """Samples beyond the frame's own duration."""


class Heard:
    """Converts decoded frames, in order, to float32 [channels, samples], full scale = 1.

        start: time of the first sample on the container's clock, in seconds; None before the first frame.
        n_source: samples per channel decoded.
        n_filled: silent samples inserted in gaps.
        n_overlapping: samples dropped because frames overlap.
        n_padding: samples dropped at the end.
        n_samples: samples yielded so far; finally n_source + n_filled - n_overlapping - n_padding.

    O(samples) time; memory for about BLOCK_SAMPLES, JITTER_S and one frame.
    """

    def __init__(self, ends: Ends) -> None:
        self.start: Fraction | None = None
        self.rate_hz = self.n_channels = 0
        self.channels: tuple[str, ...] = ()
        self.layout = ""
        self.n_source = self.n_filled = self.n_overlapping = self.n_padding = self.n_samples = 0
        self._ends = ends
        self._held: list[Floats] = []  # placed, but not yielded: later frames may cut their end
        self._n_held = self._n_passed = self._first_ticks = 0
        self._ahead: deque[_Next] = deque()  # not placed: `_late` looks at them to tell a shift from jitter
        self._n_ahead = 0
        self._went_back = self._untimed = False  # went back: frames are dropped until they catch up
        self._newest_ticks = 0
        self._clock = (0, 1)  # samples per tick, as a ratio
        self._slack = 0  # samples by which rounding may move a position

    def add(self, frame: "AudioFrame") -> Iterator[Floats]:
        """Yield the samples whose position is final. Raises: BadSound."""
        if not frame.samples:
            return
        if not self.rate_hz:
            self._begin(frame)
        self._check(frame)
        samples = floats(frame)
        self.n_source += samples.shape[1]
        self._ahead.append(_Next(samples, self._place(frame), self._excess(frame)))
        self._n_ahead += samples.shape[1]
        while self._n_ahead - self._ahead[0].samples.shape[1] >= JITTER_S * self.rate_hz:
            yield from self._lay(self._take_next())

    def finish(self) -> Iterator[Floats]:
        last = None
        if self._ahead:
            last = self._ahead[-1]
        while self._ahead:
            yield from self._lay(self._take_next())
        if last is not None:
            if self._ends.durations_count and last.n_beyond and self._held:
                self.n_padding += self._cut_tail(last.n_beyond)
            self._cut_padding()
        yield from self._give(self._n_held)

    def _take_next(self) -> "_Next":
        frame = self._ahead.popleft()
        self._n_ahead -= frame.samples.shape[1]
        return frame

    def _lay(self, frame: "_Next") -> Iterator[Floats]:
        """Put a frame at its place after the held samples, and yield samples that nothing can cut any more."""
        samples = frame.samples
        late = self._late(frame)
        if late >= 0:
            self._went_back = False
            yield from self._fill(late)
        else:
            samples = self._without_overlap(samples, -late)
        if samples.shape[1]:
            self._held.append(samples)
            self._n_held += samples.shape[1]
        # The next frame may cut all of this one, and `finish` the padding.
        n_kept = max(samples.shape[1], MAX_PADDING_SAMPLES)
        if self._n_held >= BLOCK_SAMPLES + n_kept:
            yield from self._give(self._n_held - n_kept)

    def _begin(self, frame: "AudioFrame") -> None:
        self.rate_hz = frame.sample_rate
        self.n_channels = frame.layout.nb_channels
        self.layout = frame.layout.name
        self.channels = tuple(channel.name for channel in frame.layout.channels)
        self.start = Fraction(0)
        self._untimed = self._ends.untimed or frame.pts is None
        if frame.pts is not None and frame.time_base is not None:
            self._first_ticks = frame.pts
            self.start = frame.pts * frame.time_base
            self._clock = (frame.time_base * self.rate_hz).as_integer_ratio()
            # A timestamp is rounded to a tick, as was the first one.
            self._slack = int(max(Fraction(3, 2) * frame.time_base, Fraction(1, 1000)) * self.rate_hz)

    def _check(self, frame: "AudioFrame") -> None:
        if frame.sample_rate != self.rate_hz:
            raise BadSound(
                "rate_change",
                f"audio at {self.rate_hz} Hz becomes {frame.sample_rate} Hz",
                given=frame.sample_rate,
                accepted=self.rate_hz,
            )
        n_channels = frame.layout.nb_channels
        if n_channels != self.n_channels:
            raise BadSound(
                "channel_change",
                f"{self.n_channels} channels become {n_channels}",
                given=n_channels,
                accepted=self.n_channels,
            )

    def _place(self, frame: "AudioFrame") -> int | None:
        """Return the position of a frame's first sample, rounded from its timestamp; None if it has no timestamp."""
        if frame.pts is None or self._untimed:
            return None
        num, den = self._clock
        if self._ends.restarts:
            if (self._newest_ticks - frame.pts) * num > JITTER_S * self.rate_hz * den:
                # The clock began anew: this frame follows all samples so far.
                behind = self._n_passed + self._n_held + self._n_ahead
                self._first_ticks = frame.pts - (2 * behind * den + num) // (2 * num)
                self._newest_ticks = frame.pts
            self._newest_ticks = max(self._newest_ticks, frame.pts)
        place: int = (2 * (frame.pts - self._first_ticks) * num + den) // (2 * den)
        return place

    def _late(self, frame: "_Next") -> int:
        """Return how many samples after the current end a frame begins: negative if it overlaps, 0 for jitter."""
        # Recorders' timestamps jitter by a few ms. FFmpeg's timestamp for a single Vorbis packet at the start of an Ogg
        # page may be off by most of a block. Silence or cuts there would be audible clicks that no player produces.
        if frame.place is None:
            return 0
        end = self._n_passed + self._n_held
        late = frame.place - end
        if late > MAX_GAP_S * self.rate_hz:
            gap_s = late // self.rate_hz
            raise BadSound("timestamps", f"the audio has a gap of {gap_s} s", given=gap_s, accepted=MAX_GAP_S)
        if abs(late) <= self._slack:
            return 0
        n_samples = frame.samples.shape[1]
        if len(self._ahead) < 2 and abs(late) < n_samples:
            return 0  # too close to the end to decide
        # The following frames cover JITTER_S. The shift counts if it lasts in all of them, in one direction.
        end += n_samples
        for following in self._ahead:
            if following.place is not None:
                shift = following.place - end
                if abs(shift) <= self._slack or (shift < 0) != (late < 0):
                    return 0
            end += following.samples.shape[1]
        return late

    def _fill(self, n_samples: int) -> Iterator[Floats]:
        if not n_samples:
            return
        self.n_filled += n_samples
        yield from self._give(self._n_held)
        while n_samples > 0:
            n_now = min(n_samples, BLOCK_SAMPLES)
            self._held.append(np.zeros((self.n_channels, n_now), np.float32))
            self._n_held += n_now
            n_samples -= n_now
            if n_samples:
                yield from self._give(self._n_held)

    def _without_overlap(self, samples: Floats, n_over: int) -> Floats:
        """Return a frame's samples that remain: all if the held frame before it gives way, otherwise the later ones."""
        earlier = 0
        if self._held:
            earlier = self._held[-1].shape[1]
        if n_over <= earlier and not self._went_back:
            self.n_overlapping += self._cut_tail(n_over)
            return samples
        self._went_back = True
        self.n_overlapping += min(n_over, samples.shape[1])
        return samples[:, n_over:]

    def _excess(self, frame: "AudioFrame") -> int:
        """Return how many samples a frame has beyond its duration, 0 if it states none."""
        if not frame.duration:
            return 0
        num, den = self._clock
        n_samples: int = frame.samples
        return max(0, n_samples - (2 * frame.duration * num + den) // (2 * den))

    def _cut_tail(self, n_samples: int) -> int:
        """Cut the newest held array, and return by how many samples; it may become empty."""
        last = self._held.pop()
        n_cut: int = min(n_samples, last.shape[1])
        self._held.append(last[:, : last.shape[1] - n_cut])
        self._n_held -= n_cut
        return n_cut

    def _cut_padding(self) -> None:
        """Drop the samples after the earliest stated end, if they are few enough for an encoder's padding."""
        assert self.start is not None  # there was a frame
        if self._ends.n_samples is None:
            stated = []
        else:
            stated = [self._ends.n_samples]
        if self._ends.end is not None:
            stated.append(round((self._ends.end - self.start) * self.rate_hz))
        beyond = self._n_passed + self._n_held - min(stated, default=2**62)
        if not 0 < beyond <= MAX_PADDING_SAMPLES:
            return
        self.n_padding += beyond
        while beyond and self._held:
            n_cut = self._cut_tail(beyond)
            beyond -= n_cut
            if not self._held[-1].shape[1]:
                self._held.pop()

    def _give(self, n_samples: int) -> Iterator[Floats]:
        """Yield the first held samples as one array; nothing for 0."""
        if not n_samples:
            return
        whole = np.concatenate(self._held, axis=1)
        if n_samples < whole.shape[1]:
            self._held = [whole[:, n_samples:]]
        else:
            self._held = []
        self._n_held -= n_samples
        self._n_passed += n_samples
        self.n_samples += n_samples
        yield whole[:, :n_samples]


def floats(frame: "AudioFrame") -> Floats:
    """Return a decoded frame as float32 [channels, samples], full scale = 1.

    Integers are divided by a power of two, exactly up to 24 bits (FFmpeg shifts 20- and 24-bit samples up to 32).
    Floats may exceed 1.
    """
    # Not frame.to_ndarray(): PyAV 18 reads beyond the planes for 8 or more channels, and lacks s64.
    n_channels = frame.layout.nb_channels
    n_samples = frame.samples
    name = frame.format.name
    kind = _DTYPES[name.removesuffix("p")]
    out = np.empty((n_channels, n_samples), np.float32)
    planes: Any = frame.planes
    if name.endswith("p"):
        for channel, plane in zip(out, planes, strict=False):  # PyAV may list more planes than exist
            channel[:] = np.frombuffer(plane, kind, count=n_samples)
    else:
        out[:] = np.frombuffer(planes[0], kind, count=n_samples * n_channels).reshape(-1, n_channels).T
    if kind == np.uint8:
        out -= np.float32(128)
        out *= np.float32(1 / 128)
    elif kind.kind == "i":
        out *= np.float32(2.0 ** (1 - 8 * kind.itemsize))
    return out


_DTYPES: Mapping[str, Any] = {
    "u8": np.dtype("u1"),
    "s16": np.dtype("i2"),
    "s32": np.dtype("i4"),
    "s64": np.dtype("i8"),
    "flt": np.dtype("f4"),
    "dbl": np.dtype("f8"),
}
