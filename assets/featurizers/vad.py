"""Find speech segments with Silero's voice activity detector on onnxruntime, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from loader.errors import InvalidSpec, MissingDependency

from .decoding import Array, kind_field, one_channel
from .featurizer import Features, Featurizer, version_of

RATE_HZ = 16_000
WEIGHTS = "data/silero_vad_16k_sequence.onnx"
"""16 kHz model in the package silero-vad (MIT), for a sequence of frames per call."""

_FRAME, _CONTEXT = 512, 64  # samples: new in a frame, and repeated from the frame before
_STATE = (1, 1, 128)
_AT_ONCE = 512  # frames

_QUIETER = 0.15  # speech ends this far below the threshold, as in Silero's get_speech_timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceActivity(Featurizer):
    """Speech segments of audio.

    Audio is mixed to one channel (ITU-R BS.775) and resampled to 16 kHz. A segment begins where the speech probability
    of 32 ms reaches `threshold`. It ends where that falls more than 0.15 lower, unless it recovers within
    min_silence_s.

    Field vad.npy: int64 [segments, 2], first sample and one past the last, at 16 kHz. Columns: speech_ratio, share of
    the audio within segments; n_speech_segments; None without audio. O(samples), about 200 times real time.
    """

    audio: str | None = "flac"
    """Field of audio; None skips it."""
    video: str | None = None
    """Field with a clip's audio; None skips clips."""
    threshold: float = 0.5
    """Speech probability, 0 to 1, at which a segment begins."""
    min_speech_s: float = 0.25
    """Most seconds of a segment that is left out."""
    min_silence_s: float = 0.1
    """Seconds of silence that end a segment."""
    pad_s: float = 0.03
    """Seconds added at both ends of a segment; neighbours share a shorter pause."""
    name: ClassVar[str] = "vad"
    """Name of the featurizer."""
    output_fields: ClassVar[tuple[str, ...]] = ("vad.npy",)
    output_columns: ClassVar[tuple[str, ...]] = ("speech_ratio", "n_speech_segments")

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise InvalidSpec(
                f"vad(threshold={self.threshold}); accepted: above 0, below 1",
                what="threshold",
                where="vad",
                given=self.threshold,
                accepted="above 0, below 1",
            )
        for name in ("min_speech_s", "min_silence_s", "pad_s"):
            if not 0 <= getattr(self, name) <= 60:
                value = getattr(self, name)
                raise InvalidSpec(
                    f"vad({name}={value}); accepted: 0 to 60",
                    what=name,
                    where="vad",
                    given=value,
                    accepted="0 to 60",
                )

    @property
    def version(self) -> str:
        """See `Featurizer`. Raises: MissingDependency."""
        return version_of(self.code, asdict(self), _digest(str(weights())))

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        dims = ["segment", "first sample and the one behind the last"]
        return {"vad.npy": {"dims": dims, "unit": "sample", "sample_rate_hz": RATE_HZ}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        field = kind_field(self.inputs, kind)
        # A clip without audio: its ratio is unknown, not 0.
        if kind == "video" and field not in sample:
            return Features(
                fields={"vad.npy": np.zeros((0, 2), np.int64)},
                columns={"speech_ratio": None, "n_speech_segments": None},
            )
        samples = one_channel(sample, field, RATE_HZ)
        segments = self.segments(probabilities(samples), len(samples))
        ratio = sum(end - start for start, end in segments) / max(1, len(samples))
        return Features(
            fields={"vad.npy": np.array(segments, np.int64).reshape(-1, 2)},
            columns={"speech_ratio": round(ratio, 6), "n_speech_segments": len(segments)},
        )

    def segments(self, speech: Sequence[float] | Array, n_samples: int) -> list[tuple[int, int]]:
        """Return each speech segment's [start, end) in samples. speech: one probability per 32 ms."""
        spans = self._speech_spans(speech, n_samples)
        pad = int(RATE_HZ * self.pad_s)
        padded = []
        for number, (start, end) in enumerate(spans):
            if number:
                before = start - spans[number - 1][1]
            else:
                before = 2 * start
            if number + 1 < len(spans):
                after = spans[number + 1][0] - end
            else:
                after = 2 * (n_samples - end)
            padded.append((start - min(pad, before // 2), end + min(pad, after // 2)))
        return padded

    def _speech_spans(self, speech: Sequence[float] | Array, n_samples: int) -> list[tuple[int, int]]:
        shortest = RATE_HZ * self.min_speech_s
        pause = RATE_HZ * self.min_silence_s
        quiet = max(self.threshold - _QUIETER, 0.01)
        spans: list[tuple[int, int]] = []
        start: int | None = None
        end: int | None = None  # where a pause starts that may end the segment
        for number, probability in enumerate(speech):
            at = number * _FRAME
            if probability >= self.threshold:
                if start is None:
                    start = at
                else:
                    start = start
                end = None
            elif start is not None and probability < quiet:
                if end is None:
                    end = at
                if at - end >= pause:
                    if end - start > shortest:
                        spans.append((start, end))
                    start = end = None
        if start is not None and n_samples - start > shortest:
            spans.append((start, n_samples))
        return spans


def probabilities(samples: Array) -> Array:
    """Return the speech probability of every 512 samples, padded: float32 [n] at 16 kHz -> [frames]."""
    n_frames = -(-len(samples) // _FRAME)
    padded = np.zeros(_CONTEXT + n_frames * _FRAME, np.float32)
    padded[_CONTEXT : _CONTEXT + len(samples)] = samples
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(padded, (0, _FRAME)), _CONTEXT + _FRAME)
    frames = windows[::_FRAME]
    model = _model(str(weights()))
    h = np.zeros(_STATE, np.float32)
    c = np.zeros(_STATE, np.float32)
    parts = [np.zeros(0, np.float32)]
    for start in range(0, n_frames, _AT_ONCE):
        block = np.ascontiguousarray(frames[start : min(start + _AT_ONCE, n_frames)])
        speech, h, c = model.run(["speech_probs", "hn", "cn"], {"input": block, "h": h, "c": c})
        parts.append(speech)
    return np.concatenate(parts)


def weights() -> Path:
    """Return the path to the model file. Raises: MissingDependency."""
    package = find_spec("silero_vad")  # imports nothing
    if package is None or not package.submodule_search_locations or find_spec("onnxruntime") is None:
        raise MissingDependency(
            "the featurizer vad needs the packages 'silero-vad' and 'onnxruntime': pip install 'penstock-data[vad]'"
        )
    return Path(package.submodule_search_locations[0], WEIGHTS)


@cache
def _digest(path: str) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()


@cache
def _model(path: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread keeps the order of sums fixed.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
