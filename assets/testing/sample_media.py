"""Small samples of every kind, identical in every process."""

import io
import tempfile
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from loader.modalities.video.packet_table import index_packets

Array = np.ndarray[Any, np.dtype[Any]]
Sample = Mapping[str, bytes]
"""Field -> its encoded bytes."""


def scene(seed: int, height: int = 120, width: int = 160, shift: float = 0.0) -> Array:
    """Return uint8 [H, W, 3]: a smooth random landscape, shifted right by `shift` pixels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    x = x - shift
    out = np.zeros((height, width, 3))
    for _ in range(14):
        fy, fx = rng.uniform(-4, 4, 2)
        wave = np.cos(2 * np.pi * (fy * y / height + fx * x / width) + rng.uniform(0, 6.28))
        out += wave[:, :, None] * rng.uniform(0.2, 1, 3)
    return np.clip(128 + 24 * out, 0, 255).astype(np.uint8)


def jpeg(pixels: Array, quality: int = 92) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "JPEG", quality=quality)
    return sink.getvalue()


def mp4(pictures: list[Array], *, crf: int = 18, colour_range: str = "tv") -> bytes:
    """Encode images as H.264 at 25 frames per second, BT.601. colour_range: limited ("tv") or full ("pc")."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clip.mp4")
        with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as out:
            stream = out.add_stream("libx264", rate=25, options={"crf": str(crf), "g": "12", "bf": "0"})
            height, width = pictures[0].shape[:2]
            stream.width, stream.height = width, height
            stream.pix_fmt = "yuv420p" if colour_range == "tv" else "yuvj420p"
            stream.codec_context.time_base = Fraction(1, 25)
            stream.codec_context.color_range, stream.codec_context.colorspace = (
                (1 if colour_range == "tv" else 2),
                6,
            )
            for number, picture in enumerate(pictures):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, 25)
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        return path.read_bytes()


def flac(samples: Array, rate_hz: int = 48_000, bits: int = 24) -> bytes:
    """Encode float [channels, samples], -1 to 1, as FLAC."""
    sink = io.BytesIO()
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
    form = "s16" if bits == 16 else "s32"
    full = 2 ** (15 if bits == 16 else 31)
    whole = np.clip(np.rint(samples.astype(np.float64) * full), -full, full - 1)
    packed = whole.T.reshape(1, -1).astype(np.int16 if bits == 16 else np.int32)
    with av.open(sink, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=rate_hz, layout=layout, format=form)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(packed), format=form, layout=layout)
        frame.sample_rate, frame.pts = rate_hz, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return sink.getvalue()


def sine(amplitude: float, seconds: float, rate_hz: int = 48_000, hz: float = 1000.0) -> Array:
    return amplitude * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)


def npy(values: Array) -> bytes:
    sink = io.BytesIO()
    np.save(sink, values)
    return sink.getvalue()


def samples_of_every_kind() -> Mapping[str, list[Sample]]:
    """Return kind -> samples with `jpg`, `mp4`, `flac`, `txt`, or actions of an episode with a camera."""
    moving = [scene(3, shift=4 * number) for number in range(20)]
    noise = np.random.default_rng(1).normal(0, 0.1, (2, 30_000))
    return {
        "image": [{"jpg": jpeg(scene(1))}, {"jpg": jpeg(scene(2, 90, 40))}],
        "video": [{"mp4": mp4(moving)}, {"mp4": mp4([scene(4)])}],
        "audio": [
            {"flac": flac(noise)},
            {"flac": flac(sine(0.3, 1.0, 16_000)[None], 16_000, bits=16)},
            {"flac": flac(np.zeros((1, 900)), 16_000)},
        ],
        "episode": [
            {
                "action.npy": npy(np.cumsum(noise[:, :20].T, 0)),
                "action.ns.npy": npy(np.arange(20) * 40_000_000),
                "cam.mp4.packets": index_packets(mp4(moving)),
            },
            {"action.npy": npy(np.zeros((30, 2), np.float32))},
        ],
        "text": [{"txt": b"A horse, a horse!\n"}, {"txt": "狗 und Füße 🙂 </s>".encode()}],
    }
