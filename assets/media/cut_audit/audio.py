"""Compare stored audio with its source: length for all units, position, level and channels for one.

The source is laid out by timestamps and correlated per channel. If timestamps jitter, frames are laid end to end, and
most pieces must match near their times.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loader.modalities.audio.timeline import floats

from ..audio.audit import FULL_SCALE
from ..container import first_audio, opened
from ..unit import Unit, Unusable
from . import findings
from .findings import finding

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame

Samples = np.ndarray[Any, np.dtype[np.float64]]

MARGIN_S = Fraction(3, 2)
"""Seconds searched before and after a unit's span."""

MAX_OFFSET_S = 0.001
JUMP_S = Fraction(2, 1000)
"""Smallest offset in seconds that is not rounding."""

RESTART_S = Fraction(1, 4)
"""In Ogg, seconds by which timestamps jump back at the next link of a chain."""

QUIET_RMS = 0.001  # -60 dBFS; quieter audio is not compared
SILENT_SHARE = 0.05
"""Share of the loudest channel's level below which a mix is silent."""

SAME_CORRELATION = 0.8
"""Lowest correlation of stored mono audio with its source."""

LOUD_SHARE = 0.25  # channels above this share of the loudest one's level must be audible
HEARD_SHARE = 0.15
"""Share of the largest weight above which a channel is audible; ITU-R BS.775 gives surrounds 0.7."""

MORE_CLIPPED = 0.001  # share of samples


def audit_sounds(path: str, units: Sequence[Unit], field: str) -> None:
    """Audit the audio that units store in `field`. Raises: Unusable, named after the fault."""
    for unit in units:
        _check_length(unit, field)
    if units:
        _check_sound(path, units[len(units) // 2], field)


def _check_length(unit: Unit, field: str) -> None:
    samples, rate_hz = decoded(unit.fields[field])
    start, end = span_of(unit)
    expected = round((end - start) * rate_hz)
    if abs(samples.shape[1] - expected) > 1:
        raise finding(
            findings.SOUND_LENGTH,
            f"{samples.shape[1]} samples at {rate_hz} Hz stored of a span of {expected} ({float(end - start):.4f} s)",
        )


def _check_sound(path: str, unit: Unit, field: str) -> None:
    stored, rate_hz = decoded(unit.fields[field])
    start, end = span_of(unit)
    source = SourceAudio(path, start, end - start, from_first="mp4" not in unit.fields)
    if not source.rate_hz:
        return
    clipped, own_clipped = source.clipped_share(), float((np.abs(stored) >= FULL_SCALE).mean())
    if own_clipped > clipped + MORE_CLIPPED:
        raise finding(
            findings.SOUND_CLIPPED,
            f"{own_clipped:.2%} of the samples are at full scale, {clipped:.2%} of the source's",
        )
    mixed = stored.mean(axis=0)
    channels = source.at_rate(rate_hz, len(mixed))[source.is_heard]
    try:
        check_alignment(mixed, channels, rate_hz, cancels=bool(unit.metadata.get("mono_cancels")))
    except Unusable as unusable:
        # If timestamps jitter, `source` overlaps frames; players and the cutter lay them end to end.
        if unusable.code == findings.CHANNEL_LOST or not source.is_uneven:
            raise
        stretches = laid_end_to_end(source.stretches, source.rate_hz, rate_hz, source.is_heard)
        if not is_heard_in_place(mixed, rate_hz, start, stretches):
            raise


def check_alignment(mixed: Samples, channels: Samples, rate_hz: int, *, cancels: bool = False) -> None:
    """Check that a mix is at the right position and contains all channels that it must.

    mixed: [n]; channels: [c, margin + n + margin]; both at `rate_hz`. Raises: Unusable.
    """
    margin = (channels.shape[1] - len(mixed)) // 2
    inside = channels[:, margin : margin + len(mixed)]
    levels = np.sqrt(np.square(inside).mean(axis=1)) if inside.size else np.zeros(len(channels))
    if not len(mixed) or levels.max(initial=0.0) < QUIET_RMS or cancels:
        return
    loud = levels > LOUD_SHARE * levels.max()
    level = float(np.sqrt(np.square(mixed).mean()))
    if level < QUIET_RMS and level < SILENT_SHARE * levels.max():
        if float(np.sqrt(np.square(inside[loud].mean(axis=0)).mean())) < SILENT_SHARE * levels.max():
            return  # the channels cancel one another in this unit; `cancels` covers the whole audio
        raise finding(findings.SOUND_DIFFERS, "what is stored is silent, its source is not")
    candidates = [channels[loud].sum(axis=0), *channels[loud]]
    best = max((_lagged(mixed, channel) for channel in candidates), key=lambda fit: fit[1])
    lag, at_best, in_place = best
    slack = max(1, round(MAX_OFFSET_S * rate_hz))
    if abs(lag - margin) > slack and at_best >= SAME_CORRELATION and in_place < 0.95 * at_best:
        raise finding(
            findings.SOUND_OFFSET,
            f"heard {(margin - lag) / rate_hz * 1000:+.1f} ms from its place (correlates {at_best:.2f} there)",
        )
    if max(in_place, at_best) < SAME_CORRELATION / 2:
        raise finding(findings.SOUND_DIFFERS, f"correlates {in_place:.2f} with its source")
    if loud.sum() < 2:
        return
    weights = _weights(mixed, channels[loud, lag : lag + len(mixed)])
    if (weights < HEARD_SHARE * weights.max()).any():
        lost = np.flatnonzero(loud)[int(weights.argmin())]
        raise finding(
            findings.CHANNEL_LOST, f"channel {lost} of {len(channels)} is loud in the source and not heard"
        )


def _weights(mixed: Samples, channels: Samples) -> Samples:
    # BLAS is avoided because its threads busy-wait.
    gram, shared = np.einsum("in,jn->ij", channels, channels), np.einsum("in,n->i", channels, mixed)
    weights: Samples = np.linalg.pinv(gram, rcond=1e-3, hermitian=True) @ shared
    return weights


def _lagged(mixed: Samples, source: Samples) -> tuple[int, float, float]:
    """Return (best position in `source`, normalised correlation there, normalised correlation at the middle)."""
    size = 1 << (len(source) + len(mixed) - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(source, size) * np.conj(np.fft.rfft(mixed, size)), size)
    n_places = len(source) - len(mixed) + 1
    energy = np.concatenate([[0.0], np.cumsum(np.square(source))])
    windows = energy[len(mixed) :] - energy[:n_places]
    norm = np.sqrt(np.maximum(windows, 1e-12) * max(float(np.square(mixed).sum()), 1e-12))
    correlation = products[:n_places] / norm
    lag = int(correlation.argmax())
    return lag, float(correlation[lag]), float(correlation[n_places // 2])


def span_of(unit: Unit) -> tuple[Fraction, Fraction]:
    """Return the unit's start and end in seconds on the source's clock."""
    start, end = (_seconds(place) for place in (unit.start, unit.end))
    return start, end


def _seconds(place: str) -> Fraction:
    ticks, base = place.split("@")
    return int(ticks) * Fraction(base)


def decoded(file: Path) -> tuple[Samples, int]:
    """Return (samples of stored audio, float64 [channels, samples]; sample rate in Hz)."""
    with opened(str(file)) as container:
        stream = container.streams.audio[0]
        pieces = [floats(frame) for frame in container.decode(stream)]
        return np.concatenate(pieces, axis=1).astype(np.float64), stream.rate


class _AudioClock:
    """Time of the next frame. restarts: whether timestamps may restart in mid-stream."""

    def __init__(self, start_s: Fraction, *, restarts: bool) -> None:
        self.position_s = start_s
        self._restarts = restarts
        self._shift_s = self._jump_s = Fraction(0)
        self._jumped_to_s = start_s

    def jumps_to(self, tagged_s: Fraction) -> bool:
        """Move to a timestamp, and return whether it differs from the previous frame's end."""
        at_s = tagged_s + self._shift_s
        if self._restarts and self.position_s - at_s > RESTART_S:
            if self.position_s - self._jumped_to_s < RESTART_S:
                self.position_s -= self._jump_s  # undo the previous link's last jump
            self._shift_s += self.position_s - at_s
            return False
        if abs(at_s - self.position_s) <= JUMP_S:
            return False
        self._jump_s, self._jumped_to_s, self.position_s = at_s - self.position_s, at_s, at_s
        return True


class SourceAudio:
    """Source audio around [start_s, start_s + length_s), laid out by its timestamps.

    start_s: on the container's clock, or after the first sample if `from_first`.
    channels: float64 [channels, n] at `rate_hz` from `first_s` on; zeros where the source has no audio.
    is_heard: per channel, whether a mix must contain it (ITU-R BS.775 allows leaving out low-frequency effects).
    stretches: decoded frames.
    is_uneven: a timestamp differs from the previous frame's end.
    """

    def __init__(self, path: str, start_s: Fraction, length_s: Fraction, *, from_first: bool) -> None:
        self.rate_hz = 0
        self.first_s = start_s - MARGIN_S
        self.channels: Samples = np.zeros((0, 0))
        self.is_heard: list[bool] = []
        self.stretches: list[PlacedFrame] = []
        self.is_uneven = False
        self._stop_s = start_s + length_s + MARGIN_S
        self._from_first = from_first
        self._read(path)

    def _read(self, path: str) -> None:
        with opened(path) as container:
            stream = first_audio(container)
            assert stream is not None  # it was cut
            zero, clock = Fraction(0), None
            for frame in container.decode(stream):
                if not frame.samples:
                    continue
                tagged = None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base
                if clock is None:
                    clock = _AudioClock(tagged or Fraction(0), restarts=container.format.name == "ogg")
                    zero = clock.position_s if self._from_first else zero
                    self._open(frame)
                elif tagged is not None and clock.jumps_to(tagged):
                    self.is_uneven = True
                if clock.position_s - zero >= self._stop_s:
                    break
                self._put(floats(frame), clock.position_s - zero)
                clock.position_s += Fraction(frame.samples, frame.sample_rate)

    def _open(self, frame: "AudioFrame") -> None:
        self.rate_hz = frame.sample_rate
        length = math.ceil((self._stop_s - self.first_s) * self.rate_hz)
        self.channels = np.zeros((len(frame.layout.channels), length))
        self.is_heard = ["LFE" not in channel.name for channel in frame.layout.channels]

    def _put(self, values: np.ndarray[Any, Any], at_s: Fraction) -> None:
        begin = round((at_s - self.first_s) * self.rate_hz)
        if begin + values.shape[1] > 0 and len(values) == len(self.channels):
            self.stretches.append(PlacedFrame(at_s, values))
        low, high = max(0, begin), min(self.channels.shape[1], begin + values.shape[1])
        if low < high and len(values) == len(self.channels):
            self.channels[:, low:high] = values[:, low - begin : high - begin]

    def at_rate(self, rate_hz: int, n_samples: int) -> Samples:
        """Resample by averaging and interpolation: float64 [channels, margin + n_samples + margin]."""
        width = max(1, round(self.rate_hz / rate_hz))
        box = np.ones(width) / width
        smooth = [np.convolve(channel, box, mode="same") for channel in self.channels]
        margin = round(MARGIN_S * rate_hz)
        times = np.arange(n_samples + 2 * margin) / rate_hz
        own = np.arange(self.channels.shape[1]) / self.rate_hz
        if width % 2 == 0:
            own = own - 0.5 / self.rate_hz  # an even box filter is half a sample early
        return np.stack([np.interp(times, own, channel) for channel in smooth])

    def clipped_share(self) -> float:
        """Return the share of the span's samples at full scale."""
        margin = round(MARGIN_S * self.rate_hz)
        inside = self.channels[:, margin : self.channels.shape[1] - margin]
        return float((np.abs(inside) >= FULL_SCALE).mean()) if inside.size else 0.0


PIECE_S = 0.02
"""Length of a piece in seconds."""

AROUND_S = 0.25
"""Longest jitter in seconds."""

ROUNDED_S = 0.004
"""Most seconds of rounding to ms."""

PIECE_CORRELATION = 0.8
MATCHED_SHARE = 0.7
"""Share of pieces that must match."""

QUIET_SHARE = 0.1
"""Share of the audio's level below which no piece is compared."""


class PlacedFrame(NamedTuple):
    """Decoded audio frame."""

    at_s: Fraction
    """Time in seconds at which the frame is played."""
    samples: np.ndarray[Any, Any]
    """Float32 [channels, n]: samples of the frame."""


class FrameSequence(NamedTuple):
    """Audio frames end to end."""

    sound: list[Samples]
    """Sum of the channels, then each channel, float64 [n]."""
    times_s: Samples
    """Float64 [frames]: timestamp of each frame in seconds."""
    edges: Any
    """Int [frames + 1]: where each frame starts in `sound`, in samples, and the end."""


def laid_end_to_end(
    stretches: Sequence[PlacedFrame], source_rate_hz: int, rate_hz: int, is_heard: Sequence[bool]
) -> FrameSequence:
    """Lay frames end to end at `rate_hz`, using only the channels that `is_heard` selects."""
    whole = np.concatenate([one.samples for one in stretches], axis=1)[list(is_heard)].astype(np.float64)
    width = max(1, round(source_rate_hz / rate_hz))
    own = np.arange(whole.shape[1]) / source_rate_hz - (0.5 / source_rate_hz if width % 2 == 0 else 0)
    times = np.arange(whole.shape[1] * rate_hz // source_rate_hz) / rate_hz
    box = np.ones(width) / width
    channels = [np.interp(times, own, np.convolve(one, box, mode="same")) for one in whole]
    edges = np.cumsum([0, *(one.samples.shape[1] for one in stretches)]) * rate_hz // source_rate_hz
    times_s = np.array([float(one.at_s) for one in stretches])
    return FrameSequence([np.sum(channels, axis=0), *channels], times_s, edges)


def is_heard_in_place(mixed: Samples, rate_hz: int, start_s: Fraction, sequence: FrameSequence) -> bool:
    """Return whether most pieces of `mixed` [n], from start_s on, match frames near their times."""
    slack_s = ROUNDED_S + 2 * _jitter_s(sequence, rate_hz)
    size = max(16, round(PIECE_S * rate_hz))
    loud = QUIET_SHARE * float(np.sqrt(np.square(mixed).mean()))
    n_pieces = 0
    n_matched = np.zeros(len(sequence.sound))
    for begin in range(0, len(mixed) - size + 1, size):
        piece = mixed[begin : begin + size]
        if float(np.sqrt(np.square(piece).mean())) < loud:
            continue
        n_pieces += 1
        at_s = float(start_s) + begin / rate_hz
        low, high = _around(sequence, rate_hz, at_s - slack_s, at_s + size / rate_hz + slack_s)
        n_matched += [_best(piece, one[low:high]) >= PIECE_CORRELATION for one in sequence.sound]
    return bool(n_pieces) and bool(n_matched.max() >= MATCHED_SHARE * n_pieces)


def _jitter_s(sequence: FrameSequence, rate_hz: int) -> float:
    late = sequence.times_s - sequence.edges[:-1] / rate_hz
    reach = max(1, round(AROUND_S * rate_hz * len(late) / max(1, sequence.edges[-1])))
    padded = np.pad(late, reach, mode="edge")
    median = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return min(AROUND_S, float(np.abs(late - median).max()))


def _around(sequence: FrameSequence, rate_hz: int, at_s: float, until_s: float) -> tuple[int, int]:
    lengths = np.diff(sequence.edges)
    near = np.flatnonzero((sequence.times_s < until_s) & (sequence.times_s + lengths / rate_hz > at_s))
    if not len(near):
        return 0, 0
    first, last = int(near[0]), int(near[-1])
    low = sequence.edges[first] + max(0, int((at_s - sequence.times_s[first]) * rate_hz))
    high = sequence.edges[last] + min(
        int(lengths[last]), int((until_s - sequence.times_s[last]) * rate_hz) + 1
    )
    return int(low), int(high)


def _best(piece: Samples, around: Samples) -> float:
    if len(around) < len(piece):
        return 0.0
    products = np.correlate(around, piece, mode="valid")
    energy = np.concatenate([[0.0], np.cumsum(np.square(around))])
    windows = np.maximum(energy[len(piece) :] - energy[: len(products)], 1e-12)
    return float((products / np.sqrt(windows * max(float(np.square(piece).sum()), 1e-12))).max())
