"""Small media of every supported kind to damage, and the small files of a media corpus."""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

MAX_CORPUS_BYTES = 120_000
"""Largest corpus file: larger files cost time, and small ones cover the same formats."""

_SLOW = ("ax_sample_fragmented_seekable_multiple_sidx.mp4", "mb_edts.mp4")  # many large frames in few bytes
_ALIKE = (
    "asterisk",
    "data",
    "observation.images.cam_high",
)  # use one file from each folder of similar files
_SAME = {"fflags": "+bitexact"}  # no random identifiers, no dates

_N_FRAMES, _SIZE = 16, (80, 48)
_RATE_HZ, _N_SAMPLES = 16_000, 9_600

_VIDEOS: Mapping[str, tuple[str, str, str, Mapping[str, str]]] = {
    # name -> container, video codec, audio codec ("" for none), options for the video encoder
    "h264.mp4": ("mp4", "libx264", "", {"crf": "28", "g": "8"}),
    "h264-b-aac.mp4": ("mp4", "libx264", "aac", {"crf": "28", "g": "12", "bf": "2", "b-adapt": "0"}),
    "sound-first.mp4": ("mp4", "libx264", "aac", {"crf": "28", "g": "12", "bf": "2", "b-adapt": "0"}),
    "h264-opus.mkv": ("matroska", "libx264", "libopus", {"crf": "28", "g": "8"}),
    "h264-mp2.ts": ("mpegts", "libx264", "mp2", {"crf": "28", "g": "8"}),
    "h264-mp3.flv": ("flv", "libx264", "libmp3lame", {"crf": "28", "g": "8"}),
    "h264-pcm.mov": ("mov", "libx264", "pcm_s16le", {"crf": "28", "g": "8"}),
    "h264-fragments.mp4": ("mp4", "libx264", "", {"crf": "28", "g": "4"}),
    "hevc-flac.mp4": ("mp4", "libx265", "flac", {"crf": "30", "x265-params": "log-level=none:pools=none"}),
    "av1.mp4": ("mp4", "libsvtav1", "", {"crf": "40", "preset": "12", "svtav1-params": "lp=1"}),
    "vp8-vorbis.webm": ("webm", "libvpx", "vorbis", {"b": "200k", "g": "8", "deadline": "realtime"}),
    "vp9.webm": ("webm", "libvpx-vp9", "", {"b": "200k", "g": "8", "deadline": "realtime"}),
    "mpeg4-mp3.avi": ("avi", "mpeg4", "libmp3lame", {"b": "300k", "g": "8"}),
    "h264-b.avi": ("avi", "libx264", "", {"crf": "28", "bf": "2", "b-adapt": "0"}),
    "mpeg2-mp2.mpg": ("mpeg", "mpeg2video", "mp2", {"b": "400k", "g": "8"}),
    "mjpeg.avi": ("avi", "mjpeg", "", {"q": "8"}),
    "h263.3gp": ("3gp", "h263", "", {"b": "200k"}),
}
_SOUNDS: Mapping[str, tuple[str, str]] = {
    # name -> container, codec
    "s16.wav": ("wav", "pcm_s16le"),
    "u8.wav": ("wav", "pcm_u8"),
    "s24.wav": ("wav", "pcm_s24le"),
    "f32.wav": ("wav", "pcm_f32le"),
    "adpcm.wav": ("wav", "adpcm_ima_wav"),
    "sound.flac": ("flac", "flac"),
    "sound.mp3": ("mp3", "libmp3lame"),
    "vorbis.ogg": ("ogg", "vorbis"),
    "sound.opus": ("ogg", "libopus"),
    "aac.m4a": ("ipod", "aac"),
    "alac.m4a": ("ipod", "alac"),
    "aac.aac": ("adts", "aac"),
}


def write_seeds(folder: Path) -> list[Path]:
    """Write one file of every format to `folder`, always with the same bytes; return the files."""
    os.environ.setdefault("SVT_LOG", "0")  # the encoder prints its settings to stderr
    files: dict[str, bytes] = {}
    files |= {name: small_video(name) for name in _VIDEOS}
    for name, (container, codec) in _SOUNDS.items():
        files[name] = _sound(container, codec)
    files |= {name: save() for name, save in _pictures().items()}
    files |= _texts()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in sorted(files)]


def small_video(name: str) -> bytes:
    """Return the bytes of a generated video, by name."""
    container, codec, sound, options = _VIDEOS[name]
    return _video(container, codec, sound, options, name=name)


def corpus_seeds() -> list[Path]:
    """Return the files of PENSTOCK_MEDIA that are small enough."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    if not folder:
        return []
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.name != "MANIFEST.csv")
    selected: list[Path] = []
    for path in files:
        known = {
            name for name in _ALIKE if name in path.parts and any(name in other.parts for other in selected)
        }
        if not known and path.name not in _SLOW and 0 < path.stat().st_size <= MAX_CORPUS_BYTES:
            selected.append(path)
    return selected


def _frames() -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    width, height = _SIZE
    rng = np.random.default_rng(5)
    scenes = [np.kron(rng.integers(0, 256, (6, 10, 3)), np.ones((8, 8, 1))) for _ in range(2)]
    for number in range(_N_FRAMES):
        frame = scenes[number >= _N_FRAMES // 2].astype(np.uint8)
        frame[:, 4 * number : 4 * number + 6] = 250
        yield frame[:height, :width]


def _video(container: str, codec: str, sound: str, options: Mapping[str, str], name: str) -> bytes:
    sink = io.BytesIO()
    muxer = {"movflags": "frag_keyframe+empty_moov"} if "fragments" in name else {}
    with ordinary_priority(), av.open(sink, "w", format=container, options=_SAME | muxer) as out:
        voice = _voice(out, sound) if name.startswith("sound-first") else None
        size = (128, 96) if codec == "h263" else _SIZE  # H.263 allows only five sizes
        more = (
            {"x264-params": "mbtree=0:threads=1"} if codec == "libx264" else {}
        )  # the same bytes every time
        stream: Any = out.add_stream(codec, rate=25, options={**options, **more})
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.thread_count = 1
        if sound and voice is None:
            voice = _voice(out, sound)
        for number, pixels in enumerate(_frames()):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(*size)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        if voice is not None:
            _encode_tone(out, voice)
    return sink.getvalue()


def _voice(out: Any, codec: str) -> Any:
    rate_hz = {"libopus": 48_000, "libmp3lame": 44_100, "mp2": 44_100, "vorbis": 44_100}.get(codec, _RATE_HZ)
    options = {"strict": "experimental"} if codec == "vorbis" else {}
    return out.add_stream(
        codec, rate=rate_hz, layout="stereo" if codec == "vorbis" else "mono", options=options
    )


def _sound(container: str, codec: str) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format=container, options=_SAME) as out:
        _encode_tone(out, _voice(out, codec))
    return sink.getvalue()


def _encode_tone(out: Any, voice: Any) -> None:
    rate_hz = voice.rate
    times = np.arange(_N_SAMPLES * rate_hz // _RATE_HZ) / rate_hz
    tone = (9000 * np.sin(2 * np.pi * 330 * times) * np.exp(-times)).astype(np.int16)
    tone = np.tile(tone, (len(voice.layout.channels), 1))
    frame = av.AudioFrame.from_ndarray(tone, format="s16p", layout=voice.layout)
    frame.sample_rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
    resampler = av.AudioResampler(
        format=voice.codec_context.format,
        layout=voice.layout,
        rate=rate_hz,
        frame_size=voice.codec_context.frame_size or 1024,
    )
    for piece in [*resampler.resample(frame), *resampler.resample(None)]:
        out.mux(voice.encode(piece))
    out.mux(voice.encode(None))


def _pictures() -> dict[str, Callable[[], bytes]]:
    pixels = next(_frames())
    colour = Image.fromarray(pixels)
    alpha = colour.copy()
    alpha.putalpha(Image.fromarray(pixels[:, :, 0]))
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8825)[1] = "N"
    moving = [Image.fromarray(frame) for frame in _frames()][:4]

    def saved(picture: Image.Image, kind: str, **options: Any) -> Callable[[], bytes]:
        def save() -> bytes:
            sink = io.BytesIO()
            picture.save(sink, kind, **options)
            return sink.getvalue()

        return save

    return {
        "plain.jpg": saved(colour, "JPEG", quality=85),
        "progressive-exif.jpg": saved(colour, "JPEG", quality=85, progressive=True, exif=exif),
        "cmyk.jpg": saved(colour.convert("CMYK"), "JPEG"),
        "grey.jpg": saved(colour.convert("L"), "JPEG"),
        "plain.png": saved(colour, "PNG"),
        "alpha.png": saved(alpha, "PNG"),
        "palette.png": saved(colour.quantize(32), "PNG"),
        "deep.png": saved(deep, "PNG"),
        "lossy.webp": saved(colour, "WEBP", exif=exif),
        "lossless-alpha.webp": saved(alpha, "WEBP", lossless=True),
        "moving.webp": saved(moving[0], "WEBP", save_all=True, append_images=moving[1:]),
        "still.gif": saved(colour.quantize(32), "GIF"),
        "moving.gif": saved(moving[0], "GIF", save_all=True, append_images=moving[1:]),
        "lzw.tiff": saved(colour, "TIFF", compression="tiff_lzw"),
        "jpeg.tiff": saved(colour, "TIFF", compression="jpeg"),
        "pages.tiff": saved(colour, "TIFF", save_all=True, append_images=moving[1:]),
        "plain.bmp": saved(colour, "BMP"),
        "plain.avif": saved(colour, "AVIF", speed=10, max_threads=1),
    }


def _texts() -> dict[str, bytes]:
    lines = [{"text": f"Sentence {number}, ünïcödé 狗.", "id": number} for number in range(20)]
    array = io.BytesIO()
    np.save(array, np.arange(60, dtype=np.float32).reshape(3, 4, 5))
    return {
        "plain.txt": "A text of two lines.\nWith ünïcödé, 狗 and a tab\there.\n".encode(),
        "lines.jsonl": "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode(),
        "object.json": json.dumps(lines[0] | {"list": [1, 2.5, None, True]}).encode(),
        "array.npy": array.getvalue(),
        "class.cls": b"17",
    }


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """Restore this thread's scheduling policy afterwards.

    As root, SVT-AV1 gives the thread that opens it the highest real-time priority for good. Threads started later would
    block all other processes.
    """
    if not hasattr(os, "sched_setscheduler"):  # only Linux has it
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
