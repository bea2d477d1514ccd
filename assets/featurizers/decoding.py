"""Decode a featurizer's inputs. Any fault in them raises Unusable with the stage "featurize"."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import DecodeFailed, InvalidSpec
from loader.modalities import find_decoder
from loader.modalities.audio.downmix import UnknownLayout, channel_mix
from loader.modalities.audio.resample import StrangeRate, resample
from loader.modalities.fields import is_machine_fault

from ..media.unit import rejected

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]

STAGE = "featurize"

_FRAMES_AT_ONCE = 32  # 200 MB of full HD


def kind_inputs(**fields: str | None) -> dict[str, tuple[str, ...]]:
    """Return `Featurizer.inputs` for one field per kind; None leaves a kind out."""
    return {kind: (field,) for kind, field in fields.items() if field is not None}


def kind_field(inputs: Mapping[str, tuple[str, ...]], kind: str) -> str:
    """Return the field to read for this kind. Raises: InvalidSpec for any other kind."""
    if kind not in inputs:
        raise InvalidSpec(
            f"a sample of kind {kind!r}; accepted: {', '.join(sorted(inputs))}",
            what="kind",
            given=kind,
            accepted=sorted(inputs),
        )
    return inputs[kind][0]


def bytes_of(sample: Mapping[str, bytes], field: str) -> bytes:
    """Return the bytes of a field. Raises: Unusable if they are missing or empty."""
    data = sample.get(field)
    if data is None:
        raise rejected(STAGE, "missing_field", f"the sample has no field {field!r}", where=field)
    if not data:
        raise rejected(STAGE, "empty", f"field {field!r} has no bytes", where=field, given=0)
    return data


def decoded(sample: Mapping[str, bytes], field: str) -> Any:
    """Decode a field as the loader does, images to 8 bits per sample. Raises: Unusable."""
    data = bytes_of(sample, field)
    try:
        return find_decoder(field, bits=8)(data, None)
    except DecodeFailed as error:
        raise rejected(STAGE, "undecodable", error) from error


def photo(sample: Mapping[str, bytes], field: str) -> Array:
    """Return a photo as uint8 [H, W, 3] in sRGB, upright, with transparency on white. Raises: Unusable."""
    pixels: Array = decoded(sample, field)
    if pixels.shape[2] == 3:
        return pixels
    alpha = pixels[:, :, 3:].astype(np.float32) / 255
    return np.rint(pixels[:, :, :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def frames(sample: Mapping[str, bytes], field: str, pick: Callable[[int], Sequence[int]]) -> Array:
    """Return a clip's frames numbered `pick(n_frames)`, ascending: uint8 [T, H, W, 3] RGB. Raises: Unusable."""
    from loader.modalities.video.decode import read_clip

    data = bytes_of(sample, field)

    def numbers(n_frames: int) -> Sequence[int]:
        if not n_frames:
            raise rejected(STAGE, "no_frames", "the video shows no frames", where=field)
        return pick(n_frames)

    try:
        return read_clip(data, numbers, bits=8)
    except DecodeFailed as error:
        raise rejected(STAGE, "undecodable", error) from error


def small_frames(
    sample: Mapping[str, bytes],
    field: str,
    size: tuple[int, int],
    max_frames: int,
) -> Array:
    """Return every frame, shrunk to `size` (height, width) in px: uint8 [T, h, w, 3] RGB.

    Raises: Unusable, also if there are more than `max_frames`.
    """
    small: list[Array] = []
    n_total = 1  # unknown until `next_numbers` is called; one, so that there is a first round

    def next_numbers(n_frames: int) -> range:
        """Return the numbers of the next chunk's frames, and learn the clip's length."""
        nonlocal n_total
        n_total = n_frames
        if n_frames > max_frames:
            raise rejected(
                STAGE,
                "too_long",
                f"{n_frames} frames; at most {max_frames} are taken",
                where=field,
                given=n_frames,
                accepted=max_frames,
            )
        return range(len(small), min(n_frames, len(small) + _FRAMES_AT_ONCE))

    # Each round opens the clip again, and decodes one chunk: all frames of full size may not fit into memory.
    while len(small) < n_total:
        small += [shrink(frame, size) for frame in frames(sample, field, next_numbers)]
    return np.stack(small)


def shrink(pixels: Array, size: tuple[int, int]) -> Array:
    """Shrink uint8 [H, W, 3] to `size` (height, width) by area means, ignoring the aspect ratio."""
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BOX))


def three_frames(n_frames: int) -> list[int]:
    """Return the distinct numbers of the first, middle and last frame: a `pick` for `frames`."""
    return sorted({0, n_frames // 2, n_frames - 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A field's first audio stream, decoded."""

    samples: Array
    """Float32 [channels, samples], full scale 1."""
    rate_hz: int
    """Sample rate in Hz."""
    layout: str
    """FFmpeg's name of the channel layout."""
    channels: tuple[str, ...]
    """FFmpeg's names of the channels."""


def sound(sample: Mapping[str, bytes], field: str) -> Sound:
    """Return a field's first audio stream at its stored rate. Raises: Unusable."""
    import io

    import av

    from loader.modalities.audio.decode import FORMATS

    samples: Array = decoded(sample, field)
    # The bytes are untrusted: a playlist could name files and addresses.
    options = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
    try:
        with av.open(io.BytesIO(sample[field]), options=options) as container:
            stream = container.streams.audio[0]
            rate_hz = stream.rate
            layout = stream.layout
            if layout.nb_channels != samples.shape[0]:  # trust the decoder, not the header
                layout = av.AudioLayout(f"{samples.shape[0]} channels")
            name = layout.name
            places = tuple(channel.name for channel in layout.channels)
    except (av.error.FFmpegError, ValueError, LookupError) as error:
        if is_machine_fault(error):
            raise
        raise rejected(STAGE, "undecodable", error) from error
    if not samples.size:
        raise rejected(STAGE, "no_samples", "the audio stream holds no samples", where=field)
    if not np.isfinite(samples).all():
        raise rejected(STAGE, "not_finite", "the sound has samples that are NaN or infinite", where=field)
    return Sound(samples=samples, rate_hz=rate_hz, layout=name, channels=places)


def one_channel(sample: Mapping[str, bytes], field: str, rate_hz: int) -> Array:
    """Return the first audio stream, mixed to mono: float32 [n] at `rate_hz`. Raises: Unusable."""
    audio = sound(sample, field)
    try:
        mixed = channel_mix(audio.channels, audio.layout, "mono")(audio.samples)
        mono: Array = resample(mixed, audio.rate_hz, rate_hz)[0]
    except UnknownLayout as error:
        raise rejected(STAGE, "unknown_layout", error, where=field, given=audio.layout) from error
    except StrangeRate as error:
        raise rejected(STAGE, "sample_rate", error, where=field, given=audio.rate_hz) from error
    return mono


# Largest aspect ratio. Longer images lose their ends: a strip 1 px high would be enlarged to gigabytes.
_WIDEST = 8


def sample_images(
    kind: str,
    sample: Mapping[str, bytes],
    field: str,
    pick: Callable[[int], Sequence[int]],
) -> Sequence[Array]:
    """Return the photo, or a clip's frames numbered `pick(n_frames)`, each uint8 [H, W, 3]. Raises: Unusable."""
    if kind == "image":
        return [photo(sample, field)]
    return list(frames(sample, field, pick))


def spread(n_frames: int, count: int) -> list[int]:
    """Return up to `count` frame numbers, evenly spaced from first to last, without repeats."""
    return sorted({int(place) for place in np.linspace(0, n_frames - 1, min(count, n_frames)).round()})


def crop_centre(pixels: Array, size_px: int) -> Array:
    """Scale the shorter side as CLIP does and return the centre: uint8 [size_px, size_px, 3]."""
    from PIL import Image

    pixels = _centre(pixels, *(min(side, _WIDEST * min(pixels.shape[:2])) for side in pixels.shape[:2]))
    height, width = pixels.shape[:2]
    short = min(height, width)
    size = (int(size_px * width / short), int(size_px * height / short))
    return _centre(
        np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)), size_px, size_px
    )


def whole_blocks(pixels: Array, block_px: int) -> Array:
    """Return the image's centre, cropped to multiples of `block_px`."""
    height, width = (side // block_px * block_px for side in pixels.shape[:2])
    return _centre(pixels, height, width)


def normalise_pixels(
    pixels: "torch.Tensor",
    mean: "torch.Tensor",
    std: "torch.Tensor",
    dtype: "torch.dtype",
) -> "torch.Tensor":
    """Return (pixels / 255 - mean) / std as [N, 3, H, W], computed in float32, cast to `dtype`."""
    scaled = (pixels.permute(0, 3, 1, 2).float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    return scaled.to(dtype)


def _centre(pixels: Array, height: int, width: int) -> Array:
    top = (pixels.shape[0] - height) // 2
    start = (pixels.shape[1] - width) // 2
    return np.ascontiguousarray(pixels[top : top + height, start : start + width])
