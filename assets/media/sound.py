"""Sound on the container's timeline: one channel at one rate, every sample at its place.

The first audio stream's decoded frames are laid end to end by their timestamps: a gap is filled with silence,
what overlaps is left out, so that sample n of the result is heard n / rate_hz s after the first. Priming that a
decoder or an edit list hides is not in the frames and not in the result.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .unit import rejected

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

Samples = np.ndarray[Any, np.dtype[np.int16]]

_MAX_GAP_S = 3600
"""A longer gap in the timestamps is taken for a mistake of the file, not for silence."""


class Timeline:
    """Decodes a stream to int16 mono at `rate_hz`. Iterate once; then the counts below are final.

    start: seconds at which the first sample is heard, on the container's clock; None before the first piece.
    n_source: samples per channel that were decoded. n_filled: silent ones put into gaps. n_left_out: overlapping.
    All three count at the source's rate.
    """

    def __init__(self, container: "InputContainer", stream: "AudioStream", rate_hz: int) -> None:
        self.start: Fraction | None = None
        self.n_source = self.n_filled = self.n_left_out = 0
        self._container, self._stream, self._rate_hz = container, stream, rate_hz
        self._source_hz = 0

    def __iter__(self) -> Iterator[Samples]:
        """Raises: Unusable for sound that cannot be decoded to its end."""
        import av

        resampler = av.AudioResampler(format="s16", layout="mono", rate=self._rate_hz)
        n_out = 0
        try:
            for frame in self._placed():
                for piece in resampler.resample(frame):
                    n_out += piece.samples
                    yield piece.to_ndarray()[0]
            last = [piece.to_ndarray()[0] for piece in resampler.resample(None)] if self.n_source else []
        except av.error.FFmpegError as error:
            raise rejected(
                "decode", "undecodable", f"sound, after {self.n_source} samples: {error.strerror}"
            ) from error
        yield from self._exactly(last, n_out)

    def _exactly(self, last: list[Samples], n_out: int) -> Iterator[Samples]:
        """The resampler's rest, cut or filled up so that the whole has the length that the source has."""
        if not self.n_source:
            return
        laid = self.n_source + self.n_filled - self.n_left_out
        left = round(Fraction(laid * self._rate_hz, self._source_hz)) - n_out
        rest = np.concatenate([*last, np.zeros(max(0, left), np.int16)])[: max(0, left)]
        if len(rest):
            yield rest

    def _placed(self) -> Iterator["AudioFrame"]:
        """Decoded frames, and silent ones in the gaps; each begins where the one before ended."""
        position = 0
        for frame in self._container.decode(self._stream):
            if not frame.samples:
                continue
            if not self._source_hz:
                self._source_hz = frame.sample_rate
            elif frame.sample_rate != self._source_hz:
                raise rejected(
                    "decode", "rate_change", f"sound at {self._source_hz} Hz becomes {frame.sample_rate} Hz"
                )
            self.n_source += frame.samples
            late = self._late(frame, position)
            if late < 0:
                self.n_left_out += min(-late, frame.samples)
                if -late >= frame.samples:
                    continue
                frame = _without_head(frame, -late)
            elif late > 0:
                self.n_filled += late
                position += late
                yield from _silence(frame, late)
            position += frame.samples
            frame.pts = None
            yield frame

    def _late(self, frame: "AudioFrame", position: int) -> int:
        """Samples between where the frame belongs and the end of what is there; 0 within its clock's precision."""
        if frame.pts is None or frame.time_base is None:
            self.start = Fraction(0) if self.start is None else self.start
            return 0
        at = frame.pts * frame.time_base
        if self.start is None:
            self.start = at
        late = round((at - self.start) * self._source_hz) - position
        if late > _MAX_GAP_S * self._source_hz:
            raise rejected("decode", "timestamps", f"the sound has a gap of {late // self._source_hz} s")
        # A timestamp is rounded to a tick, and so was the first one.
        slack = max(Fraction(3, 2) * frame.time_base, Fraction(1, 1000)) * self._source_hz
        return late if abs(late) > slack else 0


def check_gaps(n_source: int, n_filled: int) -> None:
    """Raises: Unusable when a file of sound holds more holes than sound: its timestamps or its frames are wrong."""
    if n_filled > n_source:
        raise rejected(
            "decode", "gaps", f"{n_source} samples are decoded, and {n_filled} missing between them"
        )


def _without_head(frame: "AudioFrame", n_samples: int) -> "AudioFrame":
    import av

    samples: Any = frame.to_ndarray()
    width = 1 if frame.format.is_planar else len(frame.layout.channels)  # packed channels lie side by side
    kept = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(samples[:, n_samples * width :]),
        format=frame.format.name,
        layout=frame.layout.name,
    )
    kept.sample_rate = frame.sample_rate
    return kept


def _silence(like: "AudioFrame", n_samples: int) -> Iterator["AudioFrame"]:
    """Silent frames of together `n_samples`, in the format of `like`, one second each at most."""
    import av

    shape: Any = like.to_ndarray()[:, :0]
    width = 1 if like.format.is_planar else len(like.layout.channels)
    level = 128 if shape.dtype == np.uint8 else 0  # unsigned 8-bit sound rests in the middle
    while n_samples > 0:
        n_now = min(n_samples, like.sample_rate)
        quiet = np.full((shape.shape[0], n_now * width), level, shape.dtype)
        frame = av.AudioFrame.from_ndarray(quiet, format=like.format.name, layout=like.layout.name)
        frame.sample_rate = like.sample_rate
        yield frame
        n_samples -= n_now


def pieces_at(
    timeline: Timeline, spans: list[tuple[Fraction, Fraction]], rate_hz: int
) -> list[tuple[Samples, int]]:
    """For each [start, end) in s of the container's clock: its samples, and how many of them are real.

    Where the stream has nothing there is silence. A span's first sample is the one nearest to its start: at most
    half a sample off. Spans are in order and do not overlap; a span without any real sample is all silence.
    """
    lengths = [round((end - start) * rate_hz) for start, end in spans]
    filled = [np.zeros(length, np.int16) for length in lengths]
    real = [0] * len(spans)
    position, first = 0, 0
    for piece in timeline:
        assert timeline.start is not None  # it yielded
        zero = timeline.start
        for number in range(first, len(spans)):
            begin = round((spans[number][0] - zero) * rate_hz)
            low, high = max(begin, position), min(begin + lengths[number], position + len(piece))
            if low < high:
                filled[number][low - begin : high - begin] = piece[low - position : high - position]
                real[number] += high - low
            elif begin >= position + len(piece):
                break
            else:
                first = number + 1 if number == first else first
        position += len(piece)
    return list(zip(filled, real, strict=True))
