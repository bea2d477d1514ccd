"""Speech and other sound: decoded whole, brought to the policy's channels and rate, cut into lossless segments."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from loader.modalities.heard import Floats

from .container import check_duration, first_audio, opened
from .energy_segments import Levels, Limits, Meter, Span, complement, heard_spans
from .flac import db_of, safe_gain, write_flac
from .policy import AudioPolicy, CutPolicy
from .sound import Timeline, check_gaps
from .unit import Unit, at, dropped, rejected

__all__ = ["cut_audio", "write_flac"]

MIN_TAIL_S = 0.5
"""A shorter rest stays with the segment before it."""


def cut_audio(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Units with the fields `flac` (a file in `scratch`) and `json`. No sample comes twice, and none is lost
    without being told: a unit's `left_out` are the stretches before it (and, of the last one, behind it) that are
    in no unit, in samples; with fixed segments there are none.

    The sound lies in `scratch` as float32 while it is cut: memory does not grow with its length.

    Raises: Unusable for a file that cannot be opened or decoded to its end, is silent of samples, or whose channels
    cannot be had as the policy wants them.
    """
    with opened(path) as container:
        stream = first_audio(container)
        raw = {"codec": stream.codec_context.name, "rate_hz": stream.rate, "channels": stream.channels}
        timeline = Timeline(container, stream, policy.audio.sample_rate_hz, policy.audio.channels)
        spooled = _Spooled(scratch / "sound.f32", timeline, policy.audio.sample_rate_hz)
        if not timeline.n_source or not spooled.n_samples:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        check_gaps(timeline.n_source, timeline.n_filled)
        check_duration(container, _end_s(timeline))
    try:
        return _units(spooled, timeline, raw, policy.audio)
    finally:
        spooled.path.unlink()


def _end_s(timeline: Timeline) -> float:
    """On the container's clock, with the padding: what headers announce may count it."""
    heard = timeline.heard
    return float((heard.start or 0) + Fraction(heard.n_samples + heard.n_padding, heard.rate_hz))


class _Spooled:
    """A timeline's samples in a file, frame by frame. peak: the largest; levels: of every 20 ms."""

    def __init__(self, path: Path, timeline: Timeline, rate_hz: int) -> None:
        self.path, self.n_samples, self.n_channels, self.peak = path, 0, 0, 0.0
        meter = Meter(rate_hz)
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
        """float32 [channels, samples], mapped."""
        return np.memmap(self.path, "<f4", mode="r", shape=(self.n_samples, self.n_channels)).T


def _units(spooled: _Spooled, timeline: Timeline, raw: Mapping[str, Any], policy: AudioPolicy) -> list[Unit]:
    spans = segments_of(spooled.levels, spooled.frame, spooled.n_samples, policy)
    if not spans:
        raise dropped("cut", "silent", "nothing in it is louder than its background for long enough")
    samples, gain = spooled.samples(), safe_gain(spooled.peak)
    assert timeline.mix is not None  # there are samples
    mix = timeline.mix
    facts = {
        "raw": raw,
        "n_segments": len(spans),
        "n_filled": timeline.heard.n_filled,
        "n_overlapping": timeline.heard.n_overlapping,
        "n_padding": timeline.heard.n_padding,
        "segments": policy.segments,
        "bits": policy.bits,
        "gain_db": db_of(gain),
        "downmix": None if mix.matrix is None else {"name": mix.name, "matrix": mix.matrix},
    }
    left_out = complement(spans, spooled.n_samples)
    units = []
    for number, (start, end) in enumerate(spans):
        path = spooled.path.with_name(f"segment-{number:05d}.flac")
        write_flac(path, samples[:, start:end], policy.sample_rate_hz, bits=policy.bits, gain=gain)
        base = (1, policy.sample_rate_hz)
        before = spans[number - 1][1] if number else 0
        mine = [
            span
            for span in left_out
            if before <= span[0] < start or (span[0] >= end and number + 1 == len(spans))
        ]
        units.append(
            Unit(
                start=at(start, base),
                end=at(end, base),
                fields={"flac": path, "json": {**facts, "left_out": mine}},
                metadata={
                    "sample_rate_hz": policy.sample_rate_hz,
                    "start_s": start / policy.sample_rate_hz,
                    "duration_s": (end - start) / policy.sample_rate_hz,
                    "n_channels": spooled.n_channels,
                    "downmix": mix.name,
                    "mono_cancels": timeline.mono_sum.cancels() if spooled.n_channels == 1 else None,
                    "gain_db": db_of(gain),
                },
            )
        )
    return units


def segments_of(levels: Levels, frame: int, n_samples: int, policy: AudioPolicy) -> list[Span]:
    """[start, end) in samples of every segment, in order. levels: of frames of `frame` samples, dBFS."""
    if policy.segments == "fixed":
        return _fixed(n_samples, policy)
    limits = Limits(
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
