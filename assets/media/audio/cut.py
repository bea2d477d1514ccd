"""Cut audio: decode it, convert channels and rate to the policy's, cut it into lossless segments."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loader.modalities.audio.timeline import Floats

from ..container import TAIL_S, check_duration, opened, required_audio
from ..known_facts import NOTHING, Known
from ..policy import AudioPolicy, CutPolicy
from ..segments.read import Segment
from ..unit import MetadataValue, Unit, at, dropped, rejected
from .decode import AudioTimeline, check_gaps
from .energy_segments import LevelMeter, Levels, SegmentLimits, Span, complement, heard_spans, joined
from .flac import db_of, safe_gain, write_flac

__all__ = ["cut_audio", "write_flac"]

MIN_TAIL_S = 0.5
"""A shorter rest stays with the segment before it."""

CAPTION_FIELD = "caption.txt"


def cut_audio(path: str, scratch: Path, policy: CutPolicy, known: Known = NOTHING) -> list[Unit]:
    """Return units with `flac` (a file in `scratch`) and `json`, and a given segment's `caption.txt`.

    Only given segments may overlap. A unit's `left_out` lists the stretches, in samples, that are in no unit: those
    before it, and for the last unit also the rest. Fixed segments leave none out.

    Scratch holds the audio as float32, so memory does not grow with its length.

    Raises: Unusable for a file that cannot be opened or decoded to its end, has no samples or not the policy's
    channels, or does not contain a given segment; StoreError.
    """
    with opened(path) as container:
        stream = required_audio(container)
        raw = {"codec": stream.codec_context.name, "rate_hz": stream.rate, "channels": stream.channels}
        timeline = AudioTimeline(container, stream, policy.audio.sample_rate_hz, policy.audio.channels)
        spooled = _Spooled(scratch / "sound.f32", timeline, policy.audio.sample_rate_hz)
        if not timeline.n_source or not spooled.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        check_gaps(timeline.n_source, timeline.n_filled)
        check_duration(container, _end_s(timeline))
    try:
        return _units(spooled, timeline, raw, policy.audio, known)
    finally:
        spooled.path.unlink()


def _end_s(timeline: AudioTimeline) -> float:
    """Return the end on the container's clock, padding included, which headers may count."""
    heard = timeline.heard
    return float((heard.start or 0) + Fraction(heard.n_samples + heard.n_padding, heard.rate_hz))


class _Spooled:
    """A timeline's samples in a file. peak: largest sample; levels: of every 20 ms."""

    def __init__(self, path: Path, timeline: AudioTimeline, rate_hz: int) -> None:
        self.path, self.n_samples, self.n_channels, self.peak = path, 0, 0, 0.0
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
        self.frame, self.levels = meter.frame, meter.finish()

    def samples(self) -> Floats:
        """Return float32 [channels, samples], mapped."""
        return np.memmap(self.path, "<f4", mode="r", shape=(self.n_samples, self.n_channels)).T


def _units(
    spooled: _Spooled, timeline: AudioTimeline, raw: Mapping[str, Any], policy: AudioPolicy, known: Known
) -> list[Unit]:
    pieces = _pieces(spooled, policy, known)
    gain = safe_gain(spooled.peak)
    assert timeline.mix is not None  # there are samples
    mix, heard = timeline.mix, timeline.heard
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


class _Piece(NamedTuple):
    """[start, end) in samples; number: of its file; segment: its given segment."""

    span: Span
    number: int
    segment: Segment | None


def _pieces(spooled: _Spooled, policy: AudioPolicy, known: Known) -> list[_Piece]:
    """Return the pieces by start."""
    if policy.segments == "given":
        placed = [(_span_of(segment, spooled, policy), segment) for segment in known.segments]
        if not placed:
            raise dropped("cut", "no_segments", "no row of the _segments table names it")
        return [_Piece(span, number, segment) for number, (span, segment) in enumerate(placed)]
    spans = segments_of(spooled.levels, spooled.frame, spooled.n_samples, policy)
    if not spans:
        raise dropped("cut", "silent", "nothing in it is louder than its background for long enough")
    return [_Piece(span, number, None) for number, span in enumerate(spans)]


def _span_of(segment: Segment, spooled: _Spooled, policy: AudioPolicy) -> Span:
    """Return a given segment's span. Raises: Unusable if it lies outside the audio."""
    start_s, end_s = segment.span_s()
    start, end = round(start_s * policy.sample_rate_hz), round(end_s * policy.sample_rate_hz)
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
    """Return for each span the uncovered parts before it; for the last one also those after it."""
    parts: list[list[Span]] = [[] for _ in spans]
    for start, end in complement(joined(spans), n_samples):
        parts[next((n for n, span in enumerate(spans) if span[0] >= end), len(spans) - 1)].append(
            (start, end)
        )
    return parts


def _unit(
    spooled: _Spooled,
    piece: _Piece,
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
        request = repr((segment.start_s, segment.end_s, segment.label, segment.caption))
        if segment.label:
            columns["label"] = segment.label
        if segment.caption:
            fields[CAPTION_FIELD] = segment.caption
    return Unit(start=at(start, base), end=at(end, base), fields=fields, metadata=columns, request=request)


def segments_of(levels: Levels, frame: int, n_samples: int, policy: AudioPolicy) -> list[Span]:
    """Return [start, end) in samples of every segment. levels: dBFS of frames of `frame` samples."""
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
