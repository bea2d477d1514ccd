"""Decoded inputs of a featurizer; any fault in them is Unusable, at the stage "featurize"."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader.errors import DecodeFailed
from loader.modalities import decoder_for
from loader.modalities.audio.downmix import UnknownLayout, mix_for
from loader.modalities.audio.resample import StrangeRate, resampled
from loader.modalities.fields import is_of_the_machine

from ..media.unit import rejected

Array = np.ndarray[Any, np.dtype[Any]]

STAGE = "featurize"

_FRAMES_AT_ONCE = 32  # 200 MB of full HD


def inputs_of(**fields: str | None) -> dict[str, tuple[str, ...]]:
    """Return `Featurizer.inputs` of kinds with one field each; a kind whose field is None is not taken."""
    return {kind: (field,) for kind, field in fields.items() if field is not None}


def field_of(inputs: Mapping[str, tuple[str, ...]], kind: str) -> str:
    """Return the one field read of this kind. Raises: ValueError for a kind that is not taken."""
    if kind not in inputs:
        raise ValueError(f"a sample of kind {kind!r}; accepted: {', '.join(sorted(inputs))}")
    return inputs[kind][0]


def bytes_of(sample: Mapping[str, bytes], field: str) -> bytes:
    """Return the bytes of a field. Raises: Unusable (the field is missing or empty)."""
    data = sample.get(field)
    if data is None:
        raise rejected(STAGE, "missing_field", f"the sample has no field {field!r}")
    if not data:
        raise rejected(STAGE, "empty", f"field {field!r} has no bytes")
    return data


def decoded(sample: Mapping[str, bytes], field: str) -> Any:
    """Decode a field as the loader does. Raises: Unusable."""
    data = bytes_of(sample, field)
    try:
        return decoder_for(field)(data, None)
    except DecodeFailed as error:
        raise rejected(STAGE, "undecodable", error) from error


def photo(sample: Mapping[str, bytes], field: str) -> Array:
    """Return a photo as uint8 [H, W, 3] sRGB, upright; transparency is laid on white. Raises: Unusable."""
    pixels: Array = decoded(sample, field)
    if pixels.shape[2] == 3:
        return pixels
    alpha = pixels[:, :, 3:].astype(np.float32) / 255
    return np.rint(pixels[:, :, :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def frames(sample: Mapping[str, bytes], field: str, pick: Callable[[int], Sequence[int]]) -> Array:
    """Return uint8 [T, H, W, 3] RGB: the frames that `pick(n_frames)` names, ascending and each once.

    Raises: Unusable.
    """
    from loader.modalities.video.decode import read_clip

    data = bytes_of(sample, field)

    def wanted(n_frames: int) -> Sequence[int]:
        if not n_frames:
            raise rejected(STAGE, "no_frames", "the video shows no frames")
        return pick(n_frames)

    try:
        return read_clip(data, wanted)
    except DecodeFailed as error:
        raise rejected(STAGE, "undecodable", error) from error


def small_frames(sample: Mapping[str, bytes], field: str, size: tuple[int, int], max_frames: int) -> Array:
    """Return uint8 [T, h, w, 3] RGB: every frame, shrunk to `size` (height, width) in px as `shrunk` does.

    Raises: Unusable (also for more than `max_frames`).
    """
    small: list[Array] = []
    n_found = 1

    def next_ones(n_frames: int) -> range:
        nonlocal n_found
        n_found = n_frames
        if n_frames > max_frames:
            raise rejected(STAGE, "too_long", f"{n_frames} frames; at most {max_frames} are taken")
        return range(len(small), min(n_frames, len(small) + _FRAMES_AT_ONCE))

    while len(small) < n_found:
        small += [shrunk(frame, size) for frame in frames(sample, field, next_ones)]
    return np.stack(small)


def shrunk(pixels: Array, size: tuple[int, int]) -> Array:
    """Return uint8 [h, w, 3] of uint8 [H, W, 3]: the mean over the area of each new pixel, whatever the shape."""
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BOX))


def three_of(n_frames: int) -> list[int]:
    """Return the first, middle and last frame, as far as these are different ones: a `pick` of `frames`."""
    return sorted({0, n_frames // 2, n_frames - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """The first audio stream of a field, decoded."""

    samples: Array
    """float32 [channels, samples], full scale 1."""
    rate_hz: int
    """Sample rate."""
    layout: str
    """FFmpeg's name of the layout."""
    channels: tuple[str, ...]
    """FFmpeg's name of each channel."""


def sound(sample: Mapping[str, bytes], field: str) -> Sound:
    """Return the first audio stream at its stored rate. Raises: Unusable (also for samples that are no numbers)."""
    import io

    import av

    from loader.modalities.audio.decode import FORMATS

    samples: Array = decoded(sample, field)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
    try:
        with av.open(io.BytesIO(sample[field]), options=options) as container:
            stream = container.streams.audio[0]
            rate_hz, layout = stream.rate, stream.layout
            if layout.nb_channels != samples.shape[0]:  # the header's word; the decoder's counts
                layout = av.AudioLayout(f"{samples.shape[0]} channels")
            name, places = layout.name, tuple(channel.name for channel in layout.channels)
    except (av.error.FFmpegError, ValueError, LookupError) as error:
        if is_of_the_machine(error):
            raise
        raise rejected(STAGE, "undecodable", error) from error
    if not samples.size:
        raise rejected(STAGE, "no_samples", "the audio stream holds no samples")
    if not np.isfinite(samples).all():
        raise rejected(STAGE, "not_finite", "the sound has samples that are NaN or infinite")
    return Sound(samples=samples, rate_hz=rate_hz, layout=name, channels=places)


def one_channel(sample: Mapping[str, bytes], field: str, rate_hz: int) -> Array:
    """Return float32 [n] at `rate_hz`: the first audio stream, mixed by ITU-R BS.775 and resampled.

    Raises: Unusable.
    """
    heard = sound(sample, field)
    try:
        mixed = mix_for(heard.channels, heard.layout, "mono")(heard.samples)
        one: Array = resampled(mixed, heard.rate_hz, rate_hz)[0]
    except UnknownLayout as error:
        raise rejected(STAGE, "unknown_layout", error) from error
    except StrangeRate as error:
        raise rejected(STAGE, "sample_rate", error) from error
    return one
