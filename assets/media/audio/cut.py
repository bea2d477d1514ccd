"""Cut audio: decode it, convert it to the policy's channels and rate, and write FLAC segments.

Segments by energy are louder than their background, the tenth percentile of 20 ms mean squares within 30 s. They start
10 dB above it and end at 6 dB. Levels within 12 dB of the loudest half second always count, so steady noise or a tone
stays whole. Short pauses are bridged, short stretches dropped, long ones split at their quietest point.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loader.modalities.audio.timeline import Floats

from ..container import TAIL_S, check_duration, open_container, require_audio
from ..cutters import NOTHING, Known
from ..policy import AudioPolicy, CutPolicy
from ..segments import Segment
from ..unit import CAPTION_FIELD, MetadataValue, Unit, at, dropped, rejected
from .decode import AudioTimeline, check_gaps
from .flac import decibels, safe_gain, write_flac

Levels = np.ndarray[Any, np.dtype[np.float32]]
Span = tuple[int, int]

FRAME_S = 0.02
AROUND_S = 30.0
ON_DB = 10.0
OFF_DB = 6.0
LOUD_DB = 12.0
FLOOR_DBFS = -70.0
"""Quieter levels in dBFS are inaudible; 16-bit noise is 30 dB lower."""

_LOUD_FRAMES = 25
_BLOCK = 50  # frames; there is one percentile per second


class LevelMeter:
    """Levels of audio, block by block."""

    def __init__(self, rate_hz: int) -> None:
        self.frame = max(1, round(FRAME_S * rate_hz))
        self._levels: list[Levels] = []
        self._rest = np.zeros(0, np.float32)

    def add(self, samples: Floats) -> None:
        """Add float32 [channels, samples], averaging the channels' squares."""
        squares = np.square(samples, dtype=np.float64)  # samples may be huge
        power = np.concatenate([self._rest, squares.mean(axis=0)])
        n_whole = len(power) // self.frame
        n_used = n_whole * self.frame
        frames = power[:n_used].reshape(n_whole, self.frame)
        self._levels.append(_db(frames.mean(axis=1)))
        self._rest = power[n_used:]

    def finish(self) -> Levels:
        """Return the levels in dBFS, float32 [frames]; the last frame may be shorter."""
        if len(self._rest):
            self._levels.append(_db(self._rest.mean(keepdims=True)))
        if self._levels:
            return np.concatenate(self._levels)
        return np.zeros(0, np.float32)


def _db(power: np.ndarray[Any, Any]) -> Levels:
    audible = np.maximum(power, 1e-12)  # -120 dB: silence has no logarithm
    levels: Levels = (10 * np.log10(audible)).astype(np.float32)
    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """Limits for stretches, in frames."""

    longest: int
    """Longest stretch."""
    pause: int
    """Shortest pause that ends a stretch."""
    padding: int
    """Padding before and after a stretch."""
    shortest: int
    """Shortest stretch, before padding."""
    tail: int
    """Shortest piece of a split stretch."""


def audible_spans(levels: Levels, limits: SegmentLimits) -> list[Span]:
    """Return the audible stretches, [start, end) in frames, in order."""
    on, off = thresholds(levels)
    padded = []
    for start, end in _bridge(_stretches(levels, on, off), limits.pause):
        if end - start < limits.shortest:
            continue
        padded_start = max(0, start - limits.padding)
        padded_end = min(len(levels), end + limits.padding)
        padded.append((padded_start, padded_end))
    parts = []
    for span in union(padded):
        parts += split_span(levels, span, limits)
    return parts


def thresholds(levels: Levels) -> tuple[Levels, Levels]:
    """Return the levels at which a stretch starts and ends, float32 [frames] each."""
    if not len(levels):
        return levels, levels
    n_blocks = -(-len(levels) // _BLOCK)
    n_missing = n_blocks * _BLOCK - len(levels)
    if len(levels) > _BLOCK:
        padded = np.pad(levels, (0, n_missing), mode="reflect")
    else:
        padded = np.pad(levels, (0, n_missing), mode="edge")  # too short to be mirrored
    blocks = padded.reshape(n_blocks, _BLOCK)
    half = round(AROUND_S / FRAME_S / _BLOCK / 2)
    percentiles = []
    for n in range(n_blocks):
        around = blocks[max(0, n - half) : n + half + 1]
        percentiles.append(np.percentile(around, 10))
    low = np.array(percentiles)  # [n_blocks]: level of the background
    # Loudest half second, or a twentieth of short audio.
    n_loud = min(_LOUD_FRAMES, -(-len(levels) // 20))
    at_high = len(levels) - n_loud
    high = np.partition(levels, at_high)[at_high]
    loud = high - LOUD_DB
    on = np.maximum(np.minimum(low + ON_DB, loud), FLOOR_DBFS)
    off = np.maximum(np.minimum(low + OFF_DB, loud - (ON_DB - OFF_DB)), FLOOR_DBFS)
    block_of_frame = np.arange(len(levels)) // _BLOCK
    return on[block_of_frame].astype(np.float32), off[block_of_frame].astype(np.float32)


def _stretches(levels: Levels, on: Levels, off: Levels) -> list[Span]:
    """Return the stretches above `off` that reach `on`."""
    is_above = np.concatenate([[False], levels > off, [False]])
    edges = np.flatnonzero(is_above[1:] != is_above[:-1])  # starts and ends in turn
    starts = edges[::2].tolist()
    ends = edges[1::2].tolist()
    n_loud = np.concatenate([[0], np.cumsum(levels > on)])  # loud frames before each frame
    spans = zip(starts, ends, strict=True)
    return [(start, end) for start, end in spans if n_loud[end] > n_loud[start]]


def _bridge(spans: list[Span], pause: int) -> list[Span]:
    """Return spans, sorted by start, joined where they touch, overlap, or have fewer than `pause` between them."""
    bridged: list[Span] = []
    for start, end in spans:
        if bridged and start - bridged[-1][1] < max(1, pause):
            bridged[-1] = (bridged[-1][0], max(end, bridged[-1][1]))
        else:
            bridged.append((start, end))
    return bridged


def union(spans: list[Span]) -> list[Span]:
    """Return the union of spans that are sorted by start."""
    return _bridge(spans, 0)


def split_span(levels: Levels, span: Span, limits: SegmentLimits) -> list[Span]:
    """Split the span into pieces of at most `longest` frames, at the quietest points."""
    start, end = span
    pieces = []
    while end - start > limits.longest:
        high = min(start + limits.longest, end - limits.tail)
        low = min(start + max(limits.longest // 2, limits.tail), high)
        # Means of three frames; the outer two lack a neighbour.
        smooth = np.convolve(levels[low - 1 : high + 1], np.ones(3) / 3, mode="same")[1:-1]
        cut = high
        if len(smooth):
            cut = low + int(smooth.argmin())
        pieces.append((start, cut))
        start = cut
    return [*pieces, (start, end)]


def complement(spans: list[Span], n: int) -> list[Span]:
    """Return the parts of [0, n) outside all spans."""
    gaps = []
    position = 0
    for start, end in spans:
        gaps.append((position, start))
        position = end
    gaps.append((position, n))
    return [(start, end) for start, end in gaps if start < end]


MIN_TAIL_S = 0.5
"""Shorter remainder is added to the previous segment."""


def cut_audio(
    path: str,
    scratch: Path,
    policy: CutPolicy,
    known: Known = NOTHING,
) -> list[Unit]:
    """Return units with the fields `flac` and `json`, and `caption.txt` if a given segment has a caption.

    Only given segments may overlap. `left_out` lists the uncovered samples before a unit, and after the last one.
    Memory is constant.

    Raises: Unusable if the audio cannot be fully decoded, has no samples, lacks the policy's channels or a given
    segment; StoreError.
    """
    with open_container(path) as container:
        stream = require_audio(container)
        raw = {
            "codec": stream.codec_context.name,
            "rate_hz": stream.rate,
            "channels": stream.channels,
        }
        timeline = AudioTimeline(container, stream, policy.audio.sample_rate_hz, policy.audio.channels)
        spooled = _Spooled(scratch / "sound.f32", timeline, policy.audio.sample_rate_hz)
        if not timeline.heard.n_source or not spooled.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        check_gaps(timeline.heard)
        check_duration(container, _end_s(timeline))
    try:
        return _units(spooled, timeline, raw, policy.audio, known)
    finally:
        spooled.path.unlink()


def _end_s(timeline: AudioTimeline) -> float:
    heard = timeline.heard
    # Padding counts, because headers may include it.
    length_s = Fraction(heard.n_samples + heard.n_padding, heard.rate_hz)
    return float((heard.start or 0) + length_s)


class _Spooled:
    """A timeline's samples in a file. peak: largest sample; levels: dBFS, one per 20 ms."""

    def __init__(self, path: Path, timeline: AudioTimeline, rate_hz: int) -> None:
        self.path = path
        self.n_samples = 0
        self.n_channels = 0
        self.peak = 0.0
        meter = LevelMeter(rate_hz)
        with open(path, "wb") as file:
            for piece in timeline:
                if not piece.shape[1]:
                    continue
                self.n_channels = len(piece)
                self.n_samples += piece.shape[1]
                self.peak = max(self.peak, float(np.abs(piece).max()))
                meter.add(piece)
                file.write(np.ascontiguousarray(piece.T, "<f4").data)
        self.frame = meter.frame
        self.levels = meter.finish()

    def samples(self) -> Floats:
        return np.memmap(self.path, "<f4", mode="r", shape=(self.n_samples, self.n_channels)).T


def _units(
    spooled: _Spooled,
    timeline: AudioTimeline,
    raw: Mapping[str, Any],
    policy: AudioPolicy,
    known: Known,
) -> list[Unit]:
    pieces = _pieces(spooled, policy, known)
    gain = safe_gain(spooled.peak)
    assert timeline.mix is not None  # set, since there are samples
    mix = timeline.mix
    heard = timeline.heard
    downmix = None
    if mix.matrix is not None:
        downmix = {"name": mix.name, "matrix": mix.matrix}
    mono_cancels = None
    if spooled.n_channels == 1:
        mono_cancels = timeline.mono_sum.cancels()
    facts = {
        "raw": raw,
        "n_segments": len(pieces),
        "n_filled": heard.n_filled,
        "n_overlapping": heard.n_overlapping,
        "n_padding": heard.n_padding,
        "segments": policy.segments,
        "bits": policy.bits,
        "gain_db": decibels(gain),
        "downmix": downmix,
    }
    metadata: dict[str, MetadataValue] = {
        "sample_rate_hz": policy.sample_rate_hz,
        "n_channels": spooled.n_channels,
        "downmix": mix.name,
        "mono_cancels": mono_cancels,
        "gain_db": decibels(gain),
    }
    left_out = _remaining_spans([piece.span for piece in pieces], spooled.n_samples)
    units = []
    for piece, spans in zip(pieces, left_out, strict=True):
        unit_facts = {**facts, "left_out": spans}
        units.append(_unit(spooled, piece, policy, gain, unit_facts, metadata))
    return units


class _SegmentPlan(NamedTuple):
    """A segment to cut."""

    span: Span
    """First sample, and the sample after the last, at the policy's rate."""
    number: int
    segment: Segment | None
    """Row of the _segments table; None for a segment that was found by its loudness."""


def _pieces(spooled: _Spooled, policy: AudioPolicy, known: Known) -> list[_SegmentPlan]:
    """Return the segments to cut, given or audible ones. Raises: Unusable if there are none."""
    if policy.segments == "given":
        plans = []
        for number, segment in enumerate(known.segments):
            span = _segment_span(segment, spooled, policy)
            plans.append(_SegmentPlan(span, number, segment))
        if not plans:
            raise dropped("cut", "no_segments", "no row of the _segments table names it")
        return plans
    spans = audible_segments(spooled.levels, spooled.frame, spooled.n_samples, policy)
    if not spans:
        raise dropped("cut", "silent", "nothing in it is louder than its background for long enough")
    return [_SegmentPlan(span, number, None) for number, span in enumerate(spans)]


def _segment_span(segment: Segment, spooled: _Spooled, policy: AudioPolicy) -> Span:
    """Return the samples of a given segment. Raises: Unusable if it lies outside the audio."""
    start_s, end_s = segment.span_s()
    start = round(start_s * policy.sample_rate_hz)
    end = round(end_s * policy.sample_rate_hz)
    tail = TAIL_S * policy.sample_rate_hz  # it may end at the header's duration, which may be rounded up
    if start >= spooled.n_samples or end > spooled.n_samples + tail:
        length_s = spooled.n_samples / policy.sample_rate_hz
        raise rejected(
            "cut",
            "segment",
            f"the segment from {segment.start_s} to {segment.end_s} s lies outside of the sound, which is "
            f"{length_s:.3f} s long; correct the _segments table and land the batch again",
            given=[segment.start_s, segment.end_s],
            accepted=length_s,
        )
    end = min(end, spooled.n_samples)
    end = max(end, start + 1)  # one sample at least
    return start, end


def _remaining_spans(spans: list[Span], n_samples: int) -> list[list[Span]]:
    """Return for each span what is left out right before it; the last one also has what follows it."""
    parts: list[list[Span]] = [[] for _ in spans]
    for gap in complement(union(spans), n_samples):
        _, end = gap
        following = [n for n, span in enumerate(spans) if span[0] >= end]
        if following:
            parts[following[0]].append(gap)
        else:
            parts[-1].append(gap)
    return parts


def _unit(
    spooled: _Spooled,
    piece: _SegmentPlan,
    policy: AudioPolicy,
    gain: float,
    facts: Mapping[str, Any],
    metadata: Mapping[str, MetadataValue],
) -> Unit:
    start, end = piece.span
    segment = piece.segment
    rate_hz = policy.sample_rate_hz
    path = spooled.path.with_name(f"segment-{piece.number:05d}.flac")
    samples = spooled.samples()[:, start:end]
    write_flac(path, samples, rate_hz, bits=policy.bits, gain=gain)
    fields: dict[str, Any] = {"flac": path, "json": dict(facts)}
    columns: dict[str, MetadataValue] = dict(metadata)
    columns["start_s"] = start / rate_hz
    columns["duration_s"] = (end - start) / rate_hz
    request = ""
    if segment is not None:
        fields["json"]["segment"] = segment.plain()
        request = segment.request
        if segment.label:
            columns["label"] = segment.label
        if segment.caption:
            fields[CAPTION_FIELD] = segment.caption
    base = (1, rate_hz)
    return Unit(
        start=at(start, base),
        end=at(end, base),
        fields=fields,
        metadata=columns,
        request=request,
    )


def audible_segments(
    levels: Levels,
    frame: int,
    n_samples: int,
    policy: AudioPolicy,
) -> list[Span]:
    """Return each segment's [start, end) in samples. levels: dBFS per `frame` samples."""
    if policy.segments == "fixed":
        return _fixed_spans(n_samples, policy)
    rate_hz = policy.sample_rate_hz
    limits = SegmentLimits(
        longest=int(policy.segment_s * rate_hz / frame),
        pause=round(policy.pause_s * rate_hz / frame),
        padding=round(policy.padding_s * rate_hz / frame),
        shortest=round(policy.min_sound_s * rate_hz / frame),
        tail=round(min(MIN_TAIL_S, policy.segment_s / 4) * rate_hz / frame),
    )
    spans = audible_spans(levels, limits)
    return [(start * frame, min(end * frame, n_samples)) for start, end in spans]


def _fixed_spans(n_samples: int, policy: AudioPolicy) -> list[Span]:
    length = round(policy.segment_s * policy.sample_rate_hz)
    tail = round(MIN_TAIL_S * policy.sample_rate_hz)
    starts = list(range(0, max(1, n_samples - tail + 1), length))
    ends = [*starts[1:], n_samples]
    return list(zip(starts, ends, strict=True))
