"""Speech and other sound: decoded whole, mono, resampled, cut into lossless segments."""

from fractions import Fraction
from pathlib import Path

import numpy as np

from .container import check_duration, first_audio, opened
from .policy import AudioPolicy, CutPolicy
from .scratch import check_scratch
from .sound import Samples, Timeline, check_gaps
from .unit import Unit, at, rejected

MIN_TAIL_S = 0.5
"""A shorter rest stays with the segment before it."""


def cut_audio(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Units with the fields `flac` (a file in `scratch`: 16-bit mono) and `json`. No sample is lost or comes twice:
    the segments are together as long as the source, to half a sample.

    Raises: Unusable for a file that cannot be opened or decoded to its end, or that is silent of samples.
    """
    with opened(path) as container:
        stream = first_audio(container)
        raw = {"codec": stream.codec_context.name, "rate_hz": stream.rate, "channels": stream.channels}
        cutter = _Cutter(scratch, policy.audio)
        timeline = Timeline(container, stream, policy.audio.sample_rate_hz)
        for piece in timeline:
            cutter.add(piece)
        cutter.finish()
        if not timeline.n_source or not cutter.spans:
            raise rejected("decode", "no_samples", "the audio stream holds no samples")
        check_gaps(timeline.n_source, timeline.n_filled)
        check_duration(container, float((timeline.start or 0) + cutter.laid_s))
    base = (1, policy.audio.sample_rate_hz)
    facts = {"raw": raw, "n_segments": len(cutter.spans), "n_filled": timeline.n_filled}
    return [
        Unit(
            start=at(start, base),
            end=at(end, base),
            fields={"flac": segment, "json": facts},
            metadata={
                "sample_rate_hz": policy.audio.sample_rate_hz,
                "start_s": start / policy.audio.sample_rate_hz,
                "duration_s": (end - start) / policy.audio.sample_rate_hz,
            },
        )
        for segment, (start, end) in cutter.spans.items()
    ]


class _Cutter:
    """Collects samples and writes a segment whenever one is full and enough is left for the next."""

    def __init__(self, scratch: Path, policy: AudioPolicy) -> None:
        self.spans: dict[Path, tuple[int, int]] = {}
        self._scratch, self._rate_hz = scratch, policy.sample_rate_hz
        self._segment = round(policy.segment_s * policy.sample_rate_hz)
        self._tail = round(MIN_TAIL_S * policy.sample_rate_hz)
        self._pieces: list[Samples] = []
        self._held = self._start = 0

    @property
    def laid_s(self) -> Fraction:
        return Fraction(self._start + self._held, self._rate_hz)

    def add(self, piece: Samples) -> None:
        self._pieces.append(piece)
        self._held += len(piece)
        while self._held >= self._segment + self._tail:
            self._write(self._segment)

    def finish(self) -> None:
        if self._held:
            self._write(self._held)

    def _write(self, n_samples: int) -> None:
        joined = np.concatenate(self._pieces)
        path = self._scratch / f"segment-{len(self.spans):05d}.flac"
        write_flac(path, joined[:n_samples], self._rate_hz)
        self._pieces = [joined[n_samples:]]
        self._held -= n_samples
        self.spans[path] = (self._start, self._start + n_samples)
        self._start += n_samples


def write_flac(path: Path, samples: Samples, rate_hz: int) -> None:
    """int16 [samples], mono, as FLAC. Raises: StoreError when the disk is full; Unusable."""
    import av

    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples[None, :]), format="s16", layout="mono")
    frame.sample_rate = rate_hz
    frame.pts = 0
    try:
        with av.open(str(path), "w", format="flac") as output:
            stream = output.add_stream("flac", rate=rate_hz, layout="mono", format="s16")
            output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except av.error.FFmpegError as error:
        check_scratch(error, path.parent)
        raise rejected("cut", "unwritable", error.strerror) from error
