"""Loudness and true peak of a sound by FFmpeg's ebur128 filter; silence and clipping by its samples."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from assets.media.unit import rejected

from .decoding import STAGE, Array, Sound, field_of, inputs_of, sound
from .featurizer import Column, Features, version_of

CODE = 1

WINDOW_S = 0.02
"""Over which the level is taken that is called silent or not."""

FULL_SCALE = 32767 / 32768
"""The largest 16-bit sample. 8-bit sound, whose largest is 127/128, is only seen to clip downwards."""

CLIPPED_RUN = 3
"""Consecutive samples at full scale; a single one is the peak of a normalised sound."""

MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 768_000
"""The K-weighting's filters lie at 38 Hz and 1682 Hz."""

_GATE_LUFS = -70.0  # EBU Tech 3341: quieter blocks do not count. The filter says -70 when none did.


@dataclass(frozen=True, slots=True, kw_only=True)
class Loudness:
    """audio, video: the field that holds the sound of samples of that kind, None to leave the kind out (a
    clip may lie beside its sound; without one, all its columns are None).

    silence_dbfs: a window with a lower mean square over all channels is silent; a sine of amplitude 1 is at
    -3.01 dBFS in this count.

    Columns:

    - loudness_lufs: integrated, of ITU-R BS.1770-4 with EBU R128's gates; one channel is measured as one
      (3 LU less than the same on two). None when no block of 400 ms is louder than -70 LUFS
    - true_peak_dbtp: of the four times oversampled signal; None for digital silence
    - silence_ratio: share of the windows of 20 ms; clipped_ratio: share of the samples that stand in runs of
      3 or more at full scale
    - n_channels: of what was decoded (its rate and length are facts of the unit)
    """

    audio: str | None = "flac"
    video: str | None = None
    silence_dbfs: float = -60.0
    name: ClassVar[str] = "loudness"

    def __post_init__(self) -> None:
        if not -200 <= self.silence_dbfs < 0:
            raise ValueError(f"silence_dbfs={self.silence_dbfs}; accepted: -200 up to, not including, 0")

    @property
    def version(self) -> str:
        return version_of(CODE, asdict(self))

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        return inputs_of(audio=self.audio, video=self.video)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self.inputs)

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, ())

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.inputs, _COLUMNS)

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = field_of(self.inputs, kind)
        if kind == "video" and field not in sample:
            return Features(fields={}, columns=dict.fromkeys(_COLUMNS))
        heard = sound(sample, field)
        values = (*_loudness(heard), *_levels(heard, self.silence_dbfs))
        return Features(fields={}, columns=dict(zip(_COLUMNS, values, strict=True)))


_COLUMNS = (
    "loudness_lufs",
    "true_peak_dbtp",
    "silence_ratio",
    "clipped_ratio",
    "n_channels",
)


def _loudness(heard: Sound) -> tuple[Column, Column]:
    """(LUFS, dBTP). Raises: Unusable."""
    if not MIN_RATE_HZ <= heard.rate_hz <= MAX_RATE_HZ:
        raise rejected(STAGE, "sample_rate", f"{heard.rate_hz} Hz; from {MIN_RATE_HZ} to {MAX_RATE_HZ} Hz")
    lufs = _ebur128(heard, heard.samples, "metadata=1").get("lavfi.r128.I")
    peak = float(np.abs(heard.samples).max())
    if peak == 0:
        return None, None
    # The filter reports the peak with three digits behind the point, which is 1 dB off at -35 dBTP: it gets
    # the sound at full scale. And it looks at whole tenths of a second, through an interpolator with a delay:
    # it gets silence behind the sound.
    tenth = heard.rate_hz // 10
    n_padding = -heard.samples.shape[1] % tenth + 5 * tenth
    scaled = np.pad(heard.samples / np.float32(peak), ((0, 0), (0, n_padding)))
    above = float(_ebur128(heard, scaled, "metadata=1:peak=true")["lavfi.r128.true_peak"])
    integrated = None if lufs is None or float(lufs) <= _GATE_LUFS else round(float(lufs), 2)
    return integrated, round(20 * math.log10(max(above, 1.0) * peak), 2)


def _ebur128(heard: Sound, samples: Array, options: str) -> Mapping[str, str]:
    """The filter's last words about float32 [channels, samples]; none for less than 100 ms. Raises: Unusable."""
    import av
    import av.filter

    said: Mapping[str, str] = {}
    try:
        graph = av.filter.Graph()
        source = graph.add_abuffer(sample_rate=heard.rate_hz, format="fltp", layout=heard.layout)
        meter, sink = graph.add("ebur128", options), graph.add("abuffersink")
        source.link_to(meter)
        meter.link_to(sink)
        graph.configure()
        for start in range(0, samples.shape[1], heard.rate_hz):
            piece = np.ascontiguousarray(samples[:, start : start + heard.rate_hz])
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout=heard.layout)
            frame.sample_rate, frame.pts = heard.rate_hz, start
            graph.push(frame)
            said = _drained(graph) or said
        graph.push(None)
        return _drained(graph) or said
    except (av.error.FFmpegError, ValueError) as error:  # a layout that the filter has no weights for
        raise rejected(STAGE, "unmeasurable", f"{heard.layout} at {heard.rate_hz} Hz: {error}") from error


def _drained(graph: Any) -> Mapping[str, str]:
    """What the last frame says that the graph can give now."""
    import av

    said: Mapping[str, str] = {}
    while True:
        try:
            said = dict(graph.pull().metadata) or said
        except (av.error.BlockingIOError, av.error.EOFError):
            return said


def _levels(heard: Sound, silence_dbfs: float) -> tuple[Column, ...]:
    """silence_ratio, clipped_ratio, n_channels."""
    n_channels, n_samples = heard.samples.shape
    window = max(1, round(WINDOW_S * heard.rate_hz))
    starts = np.arange(0, n_samples, window)
    power = np.add.reduceat(np.square(heard.samples, dtype=np.float64).mean(axis=0), starts)
    power /= np.diff(np.append(starts, n_samples))
    silent = power < 10 ** (silence_dbfs / 10)
    return (
        round(float(silent.mean()), 6),
        round(clipped_ratio(heard.samples), 6),
        n_channels,
    )


def clipped_ratio(samples: Array) -> float:
    """Share of the samples [channels, samples] in runs of CLIPPED_RUN or more at full scale."""
    full = np.abs(samples) >= FULL_SCALE
    run = full[:, 2:] & full[:, 1:-1] & full[:, :-2]
    clipped = np.zeros_like(full)
    for shift in range(CLIPPED_RUN):
        clipped[:, shift : shift + run.shape[1]] |= run
    return float(clipped.mean())
