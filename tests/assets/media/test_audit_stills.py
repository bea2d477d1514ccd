"""The audit of sound files and of photos."""

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from assets.media.audit import audit
from assets.media.unit import Unusable

WAV = "audio/wav"


def sound(path: Path, samples: np.ndarray, codec: str, format_: str, container: str) -> str:
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=16000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None, :], format=format_, layout="mono")
        frame.sample_rate, frame.pts = 16000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return str(path)


@pytest.mark.parametrize(
    ("codec", "format_", "dtype", "scale", "rest"),
    [
        ("pcm_u8", "u8", np.uint8, 127, 128),
        ("pcm_s16le", "s16", np.int16, 32767, 0),
        ("pcm_s32le", "s32", np.int32, 2**31 - 1, 0),
        ("pcm_f32le", "flt", np.float32, 1, 0),
        ("pcm_f64le", "dbl", np.float64, 1, 0),
    ],
)
def test_half_silent_sound_in_any_format(
    tmp_path: Path, codec: str, format_: str, dtype: type, scale: int, rest: int
) -> None:
    wave = np.zeros(32000)
    wave[:16000] = 0.5 * np.sin(np.arange(16000) / 3)
    wave[100:260] = 1.0
    samples = (wave * scale + rest).astype(dtype)
    row = audit(sound(tmp_path / "a", samples, codec, format_, "wav"), WAV)
    assert (row["kind"], row["codec"], row["audio_codec"], row["n_samples"]) == ("audio", codec, codec, 32000)
    assert (row["duration_s"], row["header_duration_s"]) == (2.0, 2.0)
    assert row["silence_ratio"] == pytest.approx(0.5, abs=0.01)
    assert row["clipped_ratio"] == pytest.approx(0 if codec == "pcm_u8" else 0.005, abs=1e-6)


def test_sound_without_samples(tmp_path: Path, make_wav: Callable[[float], bytes]) -> None:
    path = tmp_path / "a"
    path.write_bytes(make_wav(0.0))
    with pytest.raises(Unusable) as caught:
        audit(str(path), WAV)
    assert caught.value.outcome == "rejected"


def test_photo(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8825)[1] = "N"
    path = tmp_path / "a"
    Image.new("RGB", (60, 40), (255, 255, 255)).save(path, "JPEG", exif=exif)
    row = audit(str(path), "image/jpeg")
    facts = {
        "kind": "image", "container": "JPEG", "width_px": 60, "height_px": 40, "upright_width_px": 40,
        "upright_height_px": 60, "exif_orientation": 6, "has_gps": True, "has_icc": False, "has_alpha": False,
        "is_animated": False, "image_mode": "RGB", "bit_depth": 8, "luma_mean": 255.0, "codec": "jpeg",
    }  # fmt: skip
    assert {name: row[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("mode", "step", "flat"),
    [
        ("RGB", 0, 1.0),
        ("RGB", 20, 0.0),
        ("L", 1, 0.0),
        ("I;16", 1, 0.0),
        ("I;16", 0, 1.0),
        ("RGBA", 0, 1.0),
        ("1", 1, 0.0),
    ],
)
def test_photo_of_one_level_is_flat(tmp_path: Path, mode: str, step: int, flat: float) -> None:
    """A mask or a depth map may differ by one value; a photo of 8 bits and three bands needs more."""
    path = tmp_path / "a"
    image = Image.new(mode, (30, 20))
    level = (step,) * len(image.getbands())
    image.paste(level if len(level) > 1 else step, (0, 0, 15, 20))
    image.save(path, "PNG")
    assert audit(str(path), "image/png")["flat_ratio"] == flat


def test_shape_in_transparency_is_not_flat(tmp_path: Path) -> None:
    image = Image.new("RGBA", (30, 20))
    image.paste((0, 0, 0, 255), (0, 0, 15, 20))
    image.save(path := tmp_path / "a", "PNG")
    assert audit(str(path), "image/png")["flat_ratio"] == 0.0


@pytest.mark.parametrize(
    ("mode", "alpha", "depth"),
    [("RGBA", True, 8), ("LA", True, 8), ("L", False, 8), ("I;16", False, 16), ("1", False, 1)],
)
def test_modes_of_photos(tmp_path: Path, mode: str, alpha: bool, depth: int) -> None:
    path = tmp_path / "a"
    Image.new(mode, (30, 20)).save(path, "PNG")
    row = audit(str(path), "image/png")
    assert (row["has_alpha"], row["bit_depth"], row["luma_mean"]) == (alpha, depth, 0.0)
    assert row["exif_orientation"] is None
