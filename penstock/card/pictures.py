"""Samples as small images: thumbnails, video frames, spectrograms, contact sheets. Deterministic."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.errors import DecodeFailed, MissingDependency
from loader.modalities import find_decoder
from loader.modalities.fields import last_word, load
from loader.modalities.video.container_checks import check_tables
from loader.modalities.video.packet_table import read_packets

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAIL_PX = (320, 240)
"""Largest width and height."""
CLIP_FRAMES = 6
"""Most frames per clip."""
CLIP_FRAME_PX = (212, 160)
"""A frame's largest width and height."""
SOUND_PX = (400, 150)
SOUND_S = 30.0
"""Longest audio drawn in full, in seconds."""
MAX_SOUND_S = 4 * 3600.0
"""Longest audio decoded, in seconds."""
MAX_FRAME_PX = 4096 * 2304
"""Largest frame, in pixels; a few larger ones take a gigabyte."""

Floats = np.ndarray[Any, np.dtype[np.float32]]
_JPEG_QUALITY = 82
_GROUND = (238, 239, 243)
# Spectrogram colours, dark to light: near black, violet, magenta, orange, cream; interpolated in RGB.
_SOUND_COLOURS = np.array(
    [(12, 10, 30), (66, 28, 110), (150, 44, 122), (234, 92, 74), (253, 235, 190)], float
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImage:
    data: bytes
    """Encoded bytes, or b""."""
    media_type: str
    """`image/jpeg` or `image/png`."""
    width_px: int
    """In pixels."""
    height_px: int
    """In pixels."""
    alt: str
    """Alternative text."""


def field_image(modality: str, field: str, data: bytes, packets: bytes | None = None) -> EncodedImage:
    """Return an image of one field. packets: a run's packet table.

    Raises: DecodeFailed; MissingDependency.
    """
    drawers: dict[str, Callable[[str, bytes], EncodedImage]] = {
        "image": image_picture,
        "video": partial(video_picture, packets=packets),
        "audio": audio_picture,
    }
    try:
        return drawers[modality](field, data)
    except MissingDependency:
        raise
    except ImportError as error:
        raise MissingDependency(
            f"an image of {field} needs the package {error.name!r}, which is not installed: "
            "pip install 'penstock-data[media]', or ask for a card without examples"
        ) from error


def image_picture(field: str, data: bytes) -> EncodedImage:
    """Return an upright thumbnail; transparent areas become grey."""
    pixels = _decode(field, data)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 3:
        raise DecodeFailed(f"{field}: no decoder for it here")
    small = _shrink(_flat(pixels), THUMBNAIL_PX)
    alt = f"photo, {pixels.shape[1]} x {pixels.shape[0]} px"
    return _jpeg(small, alt)


def video_picture(field: str, data: bytes, packets: bytes | None = None) -> EncodedImage:
    """Return evenly spaced frames, three per row. packets: a run's packet table."""
    n_frames = _n_frames(field, data, packets)
    n_shown = min(CLIP_FRAMES, n_frames)
    stride = 1
    if n_shown > 1:
        stride = (n_frames - 1) // (n_shown - 1)
    # Half of what the stride leaves over is before the first frame.
    start = (n_frames - 1 - stride * (n_shown - 1)) // 2
    decode = loader.video(frames=n_shown, stride=stride, start=start, bits=8)
    frames: Any = decode(data) if packets is None else decode.of_run(data, packets)
    height, width = frames.shape[1:3]
    tiles = [_shrink(_flat(frame), CLIP_FRAME_PX) for frame in frames]
    alt = f"{n_shown} of {n_frames} frames, {width} x {height} px"
    return _jpeg(_tile(tiles, across=3, gap=2), alt)


def audio_picture(field: str, data: bytes) -> EncodedImage:
    """Return the envelope above a spectrogram with a logarithmic frequency axis."""
    from PIL import Image

    rate_hz = _rate_hz(field, data)
    samples: Any = _decode(field, data)
    if not isinstance(samples, np.ndarray) or samples.ndim != 2 or not samples.shape[1]:
        raise DecodeFailed(f"{field}: no decoder for it here")
    n_drawn = int(SOUND_S * rate_hz)
    heard: Floats = samples[:, :n_drawn].mean(axis=0)  # [samples], one channel
    # A file of floats may hold NaN, which would blank the whole spectrogram.
    heard = np.nan_to_num(heard, nan=0.0, posinf=1.0, neginf=-1.0)
    width, height = SOUND_PX
    top = height // 3
    upper = envelope(heard, width, top)
    lower = spectrogram(heard, width, height - top)
    pixels = np.concatenate([upper, lower])  # [height, width, 3]
    # Dithering would be noise, which PNG does not compress.
    drawn = Image.fromarray(pixels).quantize(64, dither=Image.Dither.NONE)
    sink = io.BytesIO()
    drawn.save(sink, "PNG", optimize=True)
    seconds = samples.shape[1] / rate_hz
    shown = ""
    if seconds > SOUND_S:
        shown = f", the first {SOUND_S:.0f} s shown"
    alt = f"waveform and spectrogram, {seconds:.1f} s at {rate_hz} Hz{shown}"
    return EncodedImage(
        data=sink.getvalue(), media_type="image/png", width_px=width, height_px=height, alt=alt
    )


def sheet(pictures: Sequence[bytes], *, across: int = 3, width_px: int = 960) -> bytes:
    """Return one JPEG, `width_px` wide, of encoded images, `across` per row."""
    from PIL import Image

    across = min(across, len(pictures))
    tile_px = (width_px - 4 * (across - 1)) // across
    tiles = []
    for data in pictures:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        tiles.append(_shrink(picture, (tile_px, tile_px), enlarge=True))
    return _jpeg(_tile(tiles, across=across, gap=4), "").data


def _decode(field: str, data: bytes) -> object:
    return find_decoder(field, bits=8)(data, None)


def _flat(pixels: Any) -> "Image":
    from PIL import Image

    if pixels.shape[2] == 3:
        return Image.fromarray(np.ascontiguousarray(pixels))
    layer = Image.fromarray(pixels)
    ground = Image.new("RGBA", layer.size, (*_GROUND, 255))
    return Image.alpha_composite(ground, layer).convert("RGB")


def _fit(width: int, height: int, most: tuple[int, int], *, enlarge: bool = False) -> tuple[int, int]:
    most_width, most_height = most
    scale = min(most_width / width, most_height / height)
    if not enlarge:
        scale = min(1.0, scale)
    # A narrow strip has at least a pixel across.
    fitted_width = max(1, round(width * scale))
    fitted_height = max(1, round(height * scale))
    return fitted_width, fitted_height


def _shrink(picture: "Image", most: tuple[int, int], *, enlarge: bool = False) -> "Image":
    from PIL import Image

    size = _fit(*picture.size, most, enlarge=enlarge)
    if size == picture.size:
        return picture
    return picture.resize(size, Image.Resampling.LANCZOS)


def _tile(tiles: Sequence["Image"], *, across: int, gap: int) -> "Image":
    from PIL import Image

    across = min(across, len(tiles))
    cell_width = max(tile.width for tile in tiles)
    rows = [tiles[at : at + across] for at in range(0, len(tiles), across)]
    heights = [max(tile.height for tile in row) for row in rows]
    width = cell_width * across + gap * (across - 1)
    height = sum(heights) + gap * (len(rows) - 1)
    whole = Image.new("RGB", (width, height), "white")
    row_y = 0
    for row, row_height in zip(rows, heights, strict=True):
        cell_x = 0
        for tile in row:
            x = cell_x + (cell_width - tile.width) // 2
            y = row_y + (row_height - tile.height) // 2
            whole.paste(tile, (x, y))
            cell_x += cell_width + gap
        row_y += row_height + gap
    return whole


def _jpeg(picture: "Image", alt: str) -> EncodedImage:
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return EncodedImage(
        data=sink.getvalue(),
        media_type="image/jpeg",
        width_px=picture.width,
        height_px=picture.height,
        alt=alt,
    )


def _n_frames(field: str, data: bytes, packets: bytes | None) -> int:
    if packets is not None:
        table = read_packets(packets)
        return _n_shown(field, table.facts.width_px, table.facts.height_px, table.discard)
    if last_word(field) != "mp4":
        raise DecodeFailed(f"{field}: only mp4 is decoded here")
    with load("video.demux:whole_file")(data) as file:
        return _n_shown(field, file.stream.width, file.stream.height, file.discard)


def _n_shown(field: str, width_px: int, height_px: int, discard: "np.ndarray[Any, Any]") -> int:
    if width_px * height_px > MAX_FRAME_PX:
        raise DecodeFailed(f"{field}: frames of {width_px} x {height_px} px are not drawn")
    if discard.all():
        raise DecodeFailed(f"{field}: no frames")
    return int((~discard).sum())


def _rate_hz(field: str, data: bytes) -> int:
    import av

    from loader.modalities.audio.decode import FORMATS

    alone = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
    try:
        check_tables(data)
        with av.open(io.BytesIO(data), mode="r", options=alone) as container:
            duration_s = (container.duration or 0) / av.time_base
            if duration_s > MAX_SOUND_S:  # stated by the file: checked before anything is decoded
                raise DecodeFailed(f"{field}: longer than {MAX_SOUND_S / 3600:.0f} h is not drawn")
            return int(container.streams.audio[0].rate)
    except (av.FFmpegError, ValueError, LookupError) as error:
        raise DecodeFailed(f"{field}: {type(error).__name__}: {error}") from error


def envelope(heard: Floats, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 [height, width, 3]: the range of samples per pixel column, at full scale."""
    edges = np.linspace(0, len(heard), width + 1).astype(np.int64)  # [width + 1]
    # `reduceat` accepts no start at the end, which audio of fewer samples than columns would have.
    starts = np.minimum(edges[:-1], len(heard) - 1)
    low = np.clip(np.minimum.reduceat(heard, starts), -1, 1)  # [width]
    high = np.clip(np.maximum.reduceat(heard, starts), -1, 1)  # [width]
    rows = np.linspace(1, -1, height)[:, None]  # [height, 1]: each pixel row's level
    half = 1.0 / height  # half a pixel, so that silence is a line
    is_above = rows >= low[None] - half  # [height, width]
    is_below = rows <= high[None] + half  # [height, width]
    inked = is_above & is_below
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:] = _SOUND_COLOURS[0].astype(np.uint8)
    pixels[inked] = _SOUND_COLOURS[3].astype(np.uint8)
    return pixels


def spectrogram(heard: Floats, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return uint8 [height, width, 3]: power down to 80 dB below the maximum, from Hann windows of 512 samples."""
    n = 512
    n_missing = max(0, n - len(heard))
    padded = np.pad(heard, (0, n_missing))
    starts = np.linspace(0, len(padded) - n, width).astype(np.int64)
    positions = starts[:, None] + np.arange(n)  # [width, n]
    windows = padded[positions] * np.hanning(n)  # [width, n]
    spectra = np.fft.rfft(windows, axis=1)  # [width, n // 2 + 1]
    power = np.abs(spectra) ** 2
    level = 10 * np.log10(np.maximum(power, 1e-12))  # in dB; silence has no logarithm
    # Rows run from the highest frequency down to 1/128 of it, in equal steps of pitch.
    bins = np.round(np.geomspace(n // 2, 2, height)).astype(int)
    bins = np.clip(bins, 0, n // 2)
    below_maximum = level[:, bins].T - level.max()  # [height, width]: in dB, at most 0
    shown = np.clip(below_maximum / 80 + 1, 0, 1)  # [height, width]: 0 to 1
    # Interpolate between two neighbouring colours.
    place = shown * (len(_SOUND_COLOURS) - 1)
    low = np.floor(place).astype(int)
    low = np.minimum(low, len(_SOUND_COLOURS) - 2)  # the maximum has no colour above it
    share = (place - low)[:, :, None]
    mixed = _SOUND_COLOURS[low] * (1 - share) + _SOUND_COLOURS[low + 1] * share
    pixels: np.ndarray[Any, np.dtype[np.uint8]] = np.round(mixed).astype(np.uint8)
    return pixels
