"""Cut audio: decode it, convert it to the policy's channels and rate, and write FLAC segments.

Segments by energy are louder than their background, the tenth percentile of 20 ms mean squares within 30 s. They start
10 dB above it and end at 6 dB. Levels within 12 dB of the loudest half second always count, so steady noise or a tone
stays whole. Short pauses are bridged, short stretches dropped, long ones split at their quietest point.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loader.modalities.audio.timeline import Floats

from ..container import TAIL_S, check_duration, check_machine, opened, required_audio
from ..cutters import NOTHING, Known
from ..policy import AudioPolicy, CutPolicy
from ..segments import Segment
from ..unit import CAPTION_FIELD, MetadataValue, Unit, at, dropped, rejected
from .decode import AudioTimeline, check_gaps

Levels = np.ndarray[Any, np.dtype[np.float32]]
Span = tuple[int, int]

FRAME_S = 0.02
AROUND_S = 30.0
ON_DB, OFF_DB = 10.0, 6.0
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
        self._levels.append(_db(power[: n_whole * self.frame].reshape(n_whole, self.frame).mean(axis=1)))
        self._rest = power[n_whole * self.frame :]

    def finish(self) -> Levels:
        """Return the levels in dBFS, float32 [frames]; the last frame may be shorter."""
        if len(self._rest):
            self._levels.append(_db(self._rest.mean(keepdims=True)))
        if self._levels:
            return np.concatenate(self._levels)
        return np.zeros(0, np.float32)


def _db(power: np.ndarray[Any, Any]) -> Levels:
    levels: Levels = (10 * np.log10(np.maximum(power, 1e-12))).astype(np.float32)
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


def heard_spans(levels: Levels, limits: SegmentLimits) -> list[Span]:
    """Return the audible stretches, [start, end) in frames, in order."""
    on, off = thresholds(levels)
    spans = _bridged(_stretches(levels, on, off), limits.pause)
    spans = [(start, end) for start, end in spans if end - start >= limits.shortest]
    padded = [
        (max(0, start - limits.padding), min(len(levels), end + limits.padding)) for start, end in spans
    ]
    return [part for span in union_of(padded) for part in split_span(levels, span, limits)]


def thresholds(levels: Levels) -> tuple[Levels, Levels]:
    """Return the levels at which a stretch starts and ends, float32 [frames] each."""
    if not len(levels):
        return levels, levels
    n_blocks = -(-len(levels) // _BLOCK)
    padded = np.pad(
        levels, (0, n_blocks * _BLOCK - len(levels)), mode="reflect" if len(levels) > _BLOCK else "edge"
    )
    blocks = padded.reshape(n_blocks, _BLOCK)
    half = round(AROUND_S / FRAME_S / _BLOCK / 2)
    low = np.array([np.percentile(blocks[max(0, n - half) : n + half + 1], 10) for n in range(n_blocks)])
    n_loud = min(_LOUD_FRAMES, -(-len(levels) // 20))
    high = np.partition(levels, len(levels) - n_loud)[len(levels) - n_loud]
    on = np.maximum(np.minimum(low + ON_DB, high - LOUD_DB), FLOOR_DBFS)
    off = np.maximum(np.minimum(low + OFF_DB, high - LOUD_DB - (ON_DB - OFF_DB)), FLOOR_DBFS)
    each = np.arange(len(levels)) // _BLOCK
    return on[each].astype(np.float32), off[each].astype(np.float32)


def _stretches(levels: Levels, on: Levels, off: Levels) -> list[Span]:
    above = np.concatenate([[False], levels > off, [False]])
    edges = np.flatnonzero(above[1:] != above[:-1])
    starts = edges[::2]
    ends = edges[1::2]
    loud = np.concatenate([[0], np.cumsum(levels > on)])
    return [
        (int(start), int(end)) for start, end in zip(starts, ends, strict=True) if loud[end] > loud[start]
    ]


def _bridged(spans: list[Span], pause: int) -> list[Span]:
    bridged: list[Span] = []
    for start, end in spans:
        if bridged and start - bridged[-1][1] < max(1, pause):
            bridged[-1] = (bridged[-1][0], max(end, bridged[-1][1]))
        else:
            bridged.append((start, end))
    return bridged


def union_of(spans: list[Span]) -> list[Span]:
    """Return the union of spans that are sorted by start."""
    return _bridged(spans, 0)


def split_span(levels: Levels, span: Span, limits: SegmentLimits) -> list[Span]:
    """Split the span into pieces of at most `longest` frames, at the quietest points."""
    start, end = span
    pieces = []
    while end - start > limits.longest:
        high = min(start + limits.longest, end - limits.tail)
        low = min(start + max(limits.longest // 2, limits.tail), high)
        smooth = np.convolve(levels[low - 1 : high + 1], np.ones(3) / 3, mode="same")[1:-1]
        if len(smooth):
            cut = low + int(smooth.argmin())
        else:
            cut = high
        pieces.append((start, cut))
        start = cut
    return [*pieces, (start, end)]


def complement(spans: list[Span], n: int) -> list[Span]:
    """Return the parts of [0, n) outside all spans."""
    edges = [0, *(edge for span in spans for edge in span), n]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


_AT_ONCE = 65_536

# Number of channels -> FLAC's layout (RFC 9639, section 9.1.3).
_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}


def write_flac(
    path: Path, samples: np.ndarray[Any, Any], rate_hz: int, *, bits: int = 16, gain: float | None = None
) -> float:
    """Write FLAC, rounded without dither, and return the applied gain in dB (at most 0).

    samples: float32 at full scale 1, or int16; [channels, n] or [n]. gain: factor; None lowers only audio beyond full
    scale. Equal samples give equal bytes. Raises: StoreError if the disk is full; Unusable.
    """
    import av

    if samples.ndim == 1:
        samples = samples[None, :]
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / np.float32(2**15)
    if gain is None:
        gain = safe_gain(float(np.abs(samples).max(initial=0)))
    kind = "s32"
    if bits == 16:
        kind = "s16"
    layout = _LAYOUTS[len(samples)]
    try:
        with av.open(str(path), "w", format="flac") as output:
            stream = output.add_stream("flac", rate=rate_hz, layout=layout, format=kind)
            if bits == 24:
                stream.codec_context.options = {"bits_per_raw_sample": "24"}
            for start in range(0, samples.shape[1], _AT_ONCE):
                whole = as_int(samples[:, start : start + _AT_ONCE], bits, gain)
                # FFmpeg expects 24 bits left-aligned.
                if bits == 16:
                    packed = whole.T.astype(np.int16)
                else:
                    packed = whole.T << 8
                frame = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(packed).reshape(1, -1), format=kind, layout=layout
                )
                frame.sample_rate = rate_hz
                frame.pts = start
                frame.time_base = Fraction(1, rate_hz)
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except av.error.FFmpegError as error:
        check_machine(error, str(path))
        raise rejected("cut", "unwritable", error.strerror) from error
    return db_of(gain)


def as_int(samples: Floats, bits: int, gain: float = 1.0) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return samples times `gain` as int32 of `bits` bits; exact at gain 1 and that depth."""
    full = 2 ** (bits - 1)
    wide = np.rint(samples.astype(np.float64) * (full * gain))
    whole: np.ndarray[Any, np.dtype[np.int32]] = np.clip(wide, -full, full - 1).astype(np.int32)
    return whole


def safe_gain(peak: float) -> float:
    """Return the factor, at most 1, that brings the largest sample `peak` to full scale."""
    return min(1.0, 1 / max(peak, 1e-9))


def db_of(gain: float) -> float:
    return round(20 * math.log10(gain), 4)


MIN_TAIL_S = 0.5
"""Shorter remainder is added to the previous segment."""


def cut_audio(path: str, scratch: Path, policy: CutPolicy, known: Known = NOTHING) -> list[Unit]:
    """Return units with the fields `flac` and `json`, and `caption.txt` if a given segment has a caption.

    Only given segments may overlap. `left_out` lists the uncovered samples before a unit, and after the last one.
    Memory is constant.

    Raises: Unusable if the audio cannot be fully decoded, has no samples, lacks the policy's channels or a given
    segment; StoreError.
    """
    with opened(path) as container:
        stream = required_audio(container)
        raw = {"codec": stream.codec_context.name, "rate_hz": stream.rate, "channels": stream.channels}
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
    return float((heard.start or 0) + Fraction(heard.n_samples + heard.n_padding, heard.rate_hz))


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
    spooled: _Spooled, timeline: AudioTimeline, raw: Mapping[str, Any], policy: AudioPolicy, known: Known
) -> list[Unit]:
    pieces = _pieces(spooled, policy, known)
    gain = safe_gain(spooled.peak)
    assert timeline.mix is not None  # set, since there are samples
    mix = timeline.mix
    heard = timeline.heard
    facts = {
        "raw": raw,
        "n_segments": len(pieces),
        "n_filled": heard.n_filled,
        "n_overlapping": heard.n_overlapping,
        "n_padding": heard.n_padding,
        "segments": policy.segments,
        "bits": policy.bits,
        "gain_db": db_of(gain),
        "downmix": None if mix.matrix is None else {"name": mix.name, "matrix": mix.matrix},
    }
    metadata: dict[str, MetadataValue] = {
        "sample_rate_hz": policy.sample_rate_hz,
        "n_channels": spooled.n_channels,
        "downmix": mix.name,
        "mono_cancels": timeline.mono_sum.cancels() if spooled.n_channels == 1 else None,
        "gain_db": db_of(gain),
    }
    left_out = _left_out([piece.span for piece in pieces], spooled.n_samples)
    return [
        _unit(spooled, piece, policy, gain, {**facts, "left_out": spans}, metadata)
        for piece, spans in zip(pieces, left_out, strict=True)
    ]


class _SegmentPlan(NamedTuple):
    span: Span
    number: int
    segment: Segment | None


def _pieces(spooled: _Spooled, policy: AudioPolicy, known: Known) -> list[_SegmentPlan]:
    if policy.segments == "given":
        placed = [(_span_of(segment, spooled, policy), segment) for segment in known.segments]
        if not placed:
            raise dropped("cut", "no_segments", "no row of the _segments table names it")
        return [_SegmentPlan(span, number, segment) for number, (span, segment) in enumerate(placed)]
    spans = segments_of(spooled.levels, spooled.frame, spooled.n_samples, policy)
    if not spans:
        raise dropped("cut", "silent", "nothing in it is louder than its background for long enough")
    return [_SegmentPlan(span, number, None) for number, span in enumerate(spans)]


def _span_of(segment: Segment, spooled: _Spooled, policy: AudioPolicy) -> Span:
    start_s, end_s = segment.span_s()
    start = round(start_s * policy.sample_rate_hz)
    end = round(end_s * policy.sample_rate_hz)
    if start >= spooled.n_samples or end > spooled.n_samples + TAIL_S * policy.sample_rate_hz:
        raise rejected(
            "cut",
            "segment",
            f"the segment from {segment.start_s} to {segment.end_s} s lies outside of the sound, which is "
            f"{spooled.n_samples / policy.sample_rate_hz:.3f} s long; correct the _segments table and land the batch "
            "again",
        )
    return start, max(start + 1, min(end, spooled.n_samples))


def _left_out(spans: list[Span], n_samples: int) -> list[list[Span]]:
    parts: list[list[Span]] = [[] for _ in spans]
    for start, end in complement(union_of(spans), n_samples):
        parts[next((n for n, span in enumerate(spans) if span[0] >= end), len(spans) - 1)].append(
            (start, end)
        )
    return parts


def _unit(
    spooled: _Spooled,
    piece: _SegmentPlan,
    policy: AudioPolicy,
    gain: float,
    facts: Mapping[str, Any],
    metadata: Mapping[str, MetadataValue],
) -> Unit:
    (start, end), segment = piece.span, piece.segment
    path = spooled.path.with_name(f"segment-{piece.number:05d}.flac")
    write_flac(path, spooled.samples()[:, start:end], policy.sample_rate_hz, bits=policy.bits, gain=gain)
    base = (1, policy.sample_rate_hz)
    fields: dict[str, Any] = {"flac": path, "json": dict(facts)}
    place = {"start_s": start / policy.sample_rate_hz, "duration_s": (end - start) / policy.sample_rate_hz}
    columns: dict[str, MetadataValue] = {**metadata, **place}
    request = ""
    if segment is not None:
        fields["json"]["segment"] = segment.plain()
        request = segment.request
        if segment.label:
            columns["label"] = segment.label
        if segment.caption:
            fields[CAPTION_FIELD] = segment.caption
    return Unit(start=at(start, base), end=at(end, base), fields=fields, metadata=columns, request=request)


def segments_of(levels: Levels, frame: int, n_samples: int, policy: AudioPolicy) -> list[Span]:
    """Return each segment's [start, end) in samples. levels: dBFS per `frame` samples."""
    if policy.segments == "fixed":
        return _fixed(n_samples, policy)
    limits = SegmentLimits(
        longest=int(policy.segment_s * policy.sample_rate_hz / frame),
        pause=round(policy.pause_s * policy.sample_rate_hz / frame),
        padding=round(policy.padding_s * policy.sample_rate_hz / frame),
        shortest=round(policy.min_sound_s * policy.sample_rate_hz / frame),
        tail=round(min(MIN_TAIL_S, policy.segment_s / 4) * policy.sample_rate_hz / frame),
    )
    return [(start * frame, min(end * frame, n_samples)) for start, end in heard_spans(levels, limits)]


def _fixed(n_samples: int, policy: AudioPolicy) -> list[Span]:
    length = round(policy.segment_s * policy.sample_rate_hz)
    tail = round(MIN_TAIL_S * policy.sample_rate_hz)
    starts = list(range(0, max(1, n_samples - tail + 1), length))
    return list(zip(starts, [*starts[1:], n_samples], strict=True))
