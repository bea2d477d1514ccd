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
from ..container import first_audio, open_container
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
LEAST_ENERGY = 1e-12  # silence would divide by zero


def audit_sounds(path: str, units: Sequence[Unit], field: str) -> None:
    """Audit the audio that units store in `field`. Raises: Unusable, named after the fault."""
    for unit in units:
        _check_length(unit, field)
    if units:
        _check_sound(path, units[len(units) // 2], field)


def _check_length(unit: Unit, field: str) -> None:
    samples, rate_hz = decoded(unit.fields[field])
    start, end = unit_span(unit)
    expected = round((end - start) * rate_hz)
    if abs(samples.shape[1] - expected) > 1:
        raise finding(
            findings.SOUND_LENGTH,
            f"{samples.shape[1]} samples at {rate_hz} Hz stored of a span of {expected} ({float(end - start):.4f} s)",
        )


def _check_sound(path: str, unit: Unit, field: str) -> None:
    stored, rate_hz = decoded(unit.fields[field])
    start, end = unit_span(unit)
    source = SourceAudio(path, start, end - start, from_first="mp4" not in unit.fields)
    if not source.rate_hz:
        return
    clipped = source.clipped_share()
    is_clipped = np.abs(stored) >= FULL_SCALE  # [channels, n]
    own_clipped = float(is_clipped.mean())
    if own_clipped > clipped + MORE_CLIPPED:
        raise finding(
            findings.SOUND_CLIPPED,
            f"{own_clipped:.2%} of the samples are at full scale, {clipped:.2%} of the source's",
        )
    mixed = stored.mean(axis=0)
    channels = source.at_rate(rate_hz, len(mixed))[source.is_heard]
    cancels = bool(unit.metadata.get("mono_cancels"))
    try:
        check_alignment(mixed, channels, rate_hz, cancels=cancels)
    except Unusable as unusable:
        # If timestamps jitter, `source` overlaps frames; players and the cutter lay them end to end.
        if unusable.code == findings.CHANNEL_LOST or not source.is_uneven:
            raise
        stretches = lay_frames(source.stretches, source.rate_hz, rate_hz, source.is_heard)
        if not is_heard_in_place(mixed, rate_hz, start, stretches):
            raise


def check_alignment(mixed: Samples, channels: Samples, rate_hz: int, *, cancels: bool = False) -> None:
    """Check that a mix is at the right position and contains all channels that it must.

    mixed: [n]; channels: [c, margin + n + margin]; both at `rate_hz`. Raises: Unusable.
    """
    margin = (channels.shape[1] - len(mixed)) // 2
    inside = channels[:, margin : margin + len(mixed)]  # [c, n]: the source over the unit's span
    levels = np.zeros(len(channels))  # [c]: RMS of each channel
    if inside.size:
        levels = np.sqrt(np.square(inside).mean(axis=1))
    if not len(mixed) or levels.max(initial=0.0) < QUIET_RMS or cancels:
        return
    is_loud = levels > LOUD_SHARE * levels.max()  # [c]
    silent_level = SILENT_SHARE * levels.max()
    if rms(mixed) < QUIET_RMS and rms(mixed) < silent_level:
        if rms(inside[is_loud].mean(axis=0)) < silent_level:
            return  # the channels cancel one another in this unit; `cancels` covers the whole audio
        raise finding(findings.SOUND_DIFFERS, "what is stored is silent, its source is not")
    loud_channels = channels[is_loud]
    candidates = [loud_channels.sum(axis=0), *loud_channels]
    fits = [_best_lag(mixed, candidate) for candidate in candidates]
    lag, at_best, in_place = max(fits, key=lambda fit: fit[1])
    slack = max(1, round(MAX_OFFSET_S * rate_hz))
    is_away = abs(lag - margin) > slack
    # A periodic signal correlates as well one period later: an offset must fit clearly better than the middle.
    if is_away and at_best >= SAME_CORRELATION and in_place < 0.95 * at_best:
        raise finding(
            findings.SOUND_OFFSET,
            f"heard {(margin - lag) / rate_hz * 1000:+.1f} ms from its place (correlates {at_best:.2f} there)",
        )
    if max(in_place, at_best) < SAME_CORRELATION / 2:
        raise finding(findings.SOUND_DIFFERS, f"correlates {in_place:.2f} with its source")
    if is_loud.sum() < 2:
        return
    weights = _weights(mixed, loud_channels[:, lag : lag + len(mixed)])
    if (weights < HEARD_SHARE * weights.max()).any():
        loud_numbers = np.flatnonzero(is_loud)
        lost = loud_numbers[int(weights.argmin())]
        raise finding(
            findings.CHANNEL_LOST, f"channel {lost} of {len(channels)} is loud in the source and not heard"
        )


def rms(samples: Samples) -> float:
    """Return the root mean square of all samples."""
    return float(np.sqrt(np.square(samples).mean()))


def _weights(mixed: Samples, channels: Samples) -> Samples:
    """Return the weight of each channel [c] in the mix, by least squares."""
    # BLAS is avoided because its threads busy-wait.
    gram = np.einsum("in,jn->ij", channels, channels)
    shared = np.einsum("in,n->i", channels, mixed)
    # Channels that are equal make the Gram matrix singular: the pseudo-inverse shares their weight.
    inverse = np.linalg.pinv(gram, rcond=1e-3, hermitian=True)
    weights: Samples = inverse @ shared
    return weights


def _best_lag(mixed: Samples, source: Samples) -> tuple[int, float, float]:
    """Return (best position in `source`, normalised correlation there, normalised correlation at the middle)."""
    # A power of two that holds both: otherwise the circular correlation of the FFT would wrap around.
    size = 1 << (len(source) + len(mixed) - 1).bit_length()
    spectrum = np.fft.rfft(source, size) * np.conj(np.fft.rfft(mixed, size))
    products = np.fft.irfft(
        spectrum, size
    )  # [size]: inner product of the mix and the source from each position
    n_places = len(source) - len(mixed) + 1
    windows = _window_energies(source, len(mixed))  # [n_places]
    mixed_energy = max(float(np.square(mixed).sum()), LEAST_ENERGY)
    norm = np.sqrt(np.maximum(windows, LEAST_ENERGY) * mixed_energy)
    correlation = products[:n_places] / norm
    lag = int(correlation.argmax())
    return lag, float(correlation[lag]), float(correlation[n_places // 2])


def _window_energies(samples: Samples, length: int) -> Samples:
    """Return the sum of squares of each window of `length` samples: [n - length + 1]."""
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples))])
    n_windows = len(samples) - length + 1
    windows: Samples = energy[length:] - energy[:n_windows]
    return windows


def unit_span(unit: Unit) -> tuple[Fraction, Fraction]:
    """Return the unit's start and end in seconds on the source's clock."""
    return _seconds(unit.start), _seconds(unit.end)


def _seconds(place: str) -> Fraction:
    ticks, base = place.split("@")
    return int(ticks) * Fraction(base)


def decoded(file: Path) -> tuple[Samples, int]:
    """Return (samples of stored audio, float64 [channels, samples]; sample rate in Hz)."""
    with open_container(str(file)) as container:
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

    def advance(self, tagged_s: Fraction) -> bool:
        """Move to a timestamp, and return whether it differs from the previous frame's end."""
        at_s = tagged_s + self._shift_s
        if self._restarts and self.position_s - at_s > RESTART_S:
            if self.position_s - self._jumped_to_s < RESTART_S:
                self.position_s -= self._jump_s  # undo the previous link's last jump
            self._shift_s += self.position_s - at_s
            return False
        if abs(at_s - self.position_s) <= JUMP_S:
            return False
        self._jump_s = at_s - self.position_s
        self._jumped_to_s = at_s
        self.position_s = at_s
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
        with open_container(path) as container:
            stream = first_audio(container)
            assert stream is not None  # it was cut
            restarts = container.format.name == "ogg"
            zero = Fraction(0)
            clock = None
            for frame in container.decode(stream):
                if not frame.samples:
                    continue
                tagged = None
                if frame.pts is not None and frame.time_base is not None:
                    tagged = frame.pts * frame.time_base
                if clock is None:
                    clock = _AudioClock(tagged or Fraction(0), restarts=restarts)
                    if self._from_first:
                        zero = clock.position_s
                    self._open(frame)
                elif tagged is not None and clock.advance(tagged):
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
        if len(values) != len(self.channels):
            return  # the number of channels changed in mid-stream
        begin = round((at_s - self.first_s) * self.rate_hz)
        end = begin + values.shape[1]
        if end > 0:
            self.stretches.append(PlacedFrame(at_s, values))
        low = max(0, begin)
        high = min(self.channels.shape[1], end)
        if low < high:
            self.channels[:, low:high] = values[:, low - begin : high - begin]

    def at_rate(self, rate_hz: int, n_samples: int) -> Samples:
        """Resample by averaging and interpolation: float64 [channels, margin + n_samples + margin]."""
        margin = round(MARGIN_S * rate_hz)
        times = np.arange(n_samples + 2 * margin) / rate_hz
        return np.stack(_resampled(self.channels, self.rate_hz, rate_hz, times))

    def clipped_share(self) -> float:
        """Return the share of the span's samples at full scale."""
        margin = round(MARGIN_S * self.rate_hz)
        inside = self.channels[:, margin : self.channels.shape[1] - margin]
        if not inside.size:
            return 0.0
        is_clipped = np.abs(inside) >= FULL_SCALE
        return float(is_clipped.mean())


def _resampled(channels: Samples, from_hz: int, to_hz: int, times_s: Samples) -> list[Samples]:
    """Return each channel at `times_s`, from a box filter as wide as a sample at the new rate."""
    width = max(1, round(from_hz / to_hz))
    box = np.ones(width) / width
    own_s = np.arange(channels.shape[1]) / from_hz
    if width % 2 == 0:
        own_s = own_s - 0.5 / from_hz  # an even box filter is half a sample early
    out = []
    for channel in channels:
        smooth = np.convolve(channel, box, mode="same")
        out.append(np.interp(times_s, own_s, smooth))
    return out


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


def lay_frames(
    stretches: Sequence[PlacedFrame], source_rate_hz: int, rate_hz: int, is_heard: Sequence[bool]
) -> FrameSequence:
    """Lay frames end to end at `rate_hz`, using only the channels that `is_heard` selects."""
    frames = [frame.samples for frame in stretches]
    whole = np.concatenate(frames, axis=1)  # [channels, n]
    heard = whole[list(is_heard)].astype(np.float64)
    n_samples = whole.shape[1] * rate_hz // source_rate_hz
    times = np.arange(n_samples) / rate_hz
    channels = _resampled(heard, source_rate_hz, rate_hz, times)
    lengths = [frame.shape[1] for frame in frames]
    edges = np.cumsum([0, *lengths]) * rate_hz // source_rate_hz
    times_s = np.array([float(frame.at_s) for frame in stretches])
    return FrameSequence([np.sum(channels, axis=0), *channels], times_s, edges)


def is_heard_in_place(mixed: Samples, rate_hz: int, start_s: Fraction, sequence: FrameSequence) -> bool:
    """Return whether most pieces of `mixed` [n], from start_s on, match frames near their times."""
    slack_s = ROUNDED_S + 2 * _jitter_s(sequence, rate_hz)
    size = max(16, round(PIECE_S * rate_hz))
    quiet = QUIET_SHARE * rms(mixed)
    n_pieces = 0
    n_matched = np.zeros(len(sequence.sound))  # [channels + 1]: pieces that match
    for begin in range(0, len(mixed) - size + 1, size):
        piece = mixed[begin : begin + size]
        if rms(piece) < quiet:
            continue
        n_pieces += 1
        at_s = float(start_s) + begin / rate_hz
        until_s = at_s + size / rate_hz
        low, high = _sample_range(sequence, rate_hz, at_s - slack_s, until_s + slack_s)
        correlations = [_best(piece, sound[low:high]) for sound in sequence.sound]
        n_matched += np.array(correlations) >= PIECE_CORRELATION
    if n_pieces == 0:
        return False
    return bool(n_matched.max() >= MATCHED_SHARE * n_pieces)


def _jitter_s(sequence: FrameSequence, rate_hz: int) -> float:
    """Return the largest distance in seconds of a timestamp from the median of its neighbours' lateness."""
    late = sequence.times_s - sequence.edges[:-1] / rate_hz  # [frames]
    reach = max(1, round(AROUND_S * rate_hz * len(late) / max(1, sequence.edges[-1])))
    padded = np.pad(late, reach, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)  # [frames, 2 reach + 1]
    median = np.median(windows, axis=1)
    return min(AROUND_S, float(np.abs(late - median).max()))


def _sample_range(sequence: FrameSequence, rate_hz: int, at_s: float, until_s: float) -> tuple[int, int]:
    """Return the samples [low, high) of the sequence whose timestamps are within [at_s, until_s)."""
    lengths = np.diff(sequence.edges)
    ends_s = sequence.times_s + lengths / rate_hz
    near = np.flatnonzero((sequence.times_s < until_s) & (ends_s > at_s))
    if not len(near):
        return 0, 0
    first = int(near[0])
    last = int(near[-1])
    skipped = int((at_s - sequence.times_s[first]) * rate_hz)
    low = sequence.edges[first] + max(0, skipped)
    used = int((until_s - sequence.times_s[last]) * rate_hz) + 1
    high = sequence.edges[last] + min(int(lengths[last]), used)
    return int(low), int(high)


def _best(piece: Samples, around: Samples) -> float:
    """Return the highest normalised correlation of the piece with a stretch of `around`."""
    if len(around) < len(piece):
        return 0.0
    products = np.correlate(around, piece, mode="valid")
    windows = np.maximum(_window_energies(around, len(piece)), LEAST_ENERGY)
    piece_energy = max(float(np.square(piece).sum()), LEAST_ENERGY)
    correlation = products / np.sqrt(windows * piece_energy)
    return float(correlation.max())
