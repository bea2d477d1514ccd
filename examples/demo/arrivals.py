"""The files that land in the demo, in three arrivals: good ones; more, with damaged ones; a batch that must fail."""

import io
import shutil
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo.damage import plant_truncated
from examples.media import ORIGINS

if TYPE_CHECKING:
    from PIL.Image import Image

FIRST_SHARE = 2 / 3
"""Share of `media_files` in the first arrival."""

BROKEN_VIDEO, TRUNCATED_PHOTO = "videos/broken.mp4", "photos/others/truncated.jpg"
DUPLICATE, NEAR_DUPLICATE = "photos/others/again.jpg", "photos/others/smaller.jpg"
WRONG_SUFFIX = "photos/others/really-a-photo.mp4"

AGAIN = "speech-2"


def media_files(media: Path) -> list[Path]:
    """Return the fetched files, by their share of their folder before them: any first part has some of each folder."""
    folders: dict[str, list[Path]] = {}
    files = sorted(path for path in media.rglob("*") if path.is_file() and path.name != ORIGINS)
    for path in files:
        folder = path.relative_to(media).parts[0]
        folders.setdefault(folder, []).append(path)
    placed = []
    for paths in folders.values():
        for number, path in enumerate(paths):
            placed.append((number / len(paths), path))
    return [path for _, path in sorted(placed)]


def first(media: Path, raw: Path) -> set[str]:
    """Copy two thirds of the media; return their keys."""
    files = media_files(media)
    _put(raw / ORIGINS, (media / ORIGINS).read_bytes())
    return _copy(media, raw, files[: round(len(files) * FIRST_SHARE)])


def second(media: Path, raw: Path) -> set[str]:
    """Copy the rest, and write damaged files; return the keys of both.

    The others are a broken video, a truncated JPEG, a duplicate, a smaller copy of a photo, and a photo with a wrong
    suffix.
    """
    files = media_files(media)
    rest = files[round(len(files) * FIRST_SHARE) :]
    keys = _copy(media, raw, rest)
    photos = [path for path in files if path.suffix in (".jpg", ".jpeg")]
    photo = photos[0].read_bytes()  # of the first arrival: its duplicate is found across batches
    _put(raw / TRUNCATED_PHOTO, photo[: len(photo) // 2])
    _put(raw / DUPLICATE, photo)
    _put(raw / NEAR_DUPLICATE, smaller(photo))
    _put(raw / WRONG_SUFFIX, turned(photos[-1].read_bytes()))
    if not (raw / BROKEN_VIDEO).exists():
        plant_truncated(next(path for path in files if path.suffix == ".mp4"), raw / BROKEN_VIDEO)
    return keys | {BROKEN_VIDEO, TRUNCATED_PHOTO, DUPLICATE, NEAR_DUPLICATE, WRONG_SUFFIX}


def third(media: Path, raw: Path) -> set[str]:
    """Copy the speech, every second file at half its sample rate; return the keys."""
    speech = [path for path in media_files(media) if path.suffix == ".wav"]
    for place, path in enumerate(speech):
        _put(raw / AGAIN / path.name, halved(path.read_bytes(), 2 if place % 2 else 1))
    return {f"{AGAIN}/{path.name}" for path in speech}


def smaller(photo: bytes) -> bytes:
    """Return a coarser JPEG of three quarters of the width and height: a near-duplicate."""
    from PIL import Image

    with Image.open(io.BytesIO(photo)) as picture:
        size = (picture.width * 3 // 4, picture.height * 3 // 4)
        return _jpeg(picture.convert("RGB").resize(size), quality=70)


def turned(photo: bytes) -> bytes:
    """Return a JPEG of a photo turned by 90 degrees: no near-duplicate of it."""
    from PIL import Image

    with Image.open(io.BytesIO(photo)) as picture:
        return _jpeg(picture.convert("RGB").transpose(Image.Transpose.ROTATE_90), quality=90)


def _jpeg(picture: "Image", quality: int) -> bytes:
    sink = io.BytesIO()
    picture.save(sink, "JPEG", quality=quality)
    return sink.getvalue()


def halved(data: bytes, step: int) -> bytes:
    """Return a WAV file with every `step`-th sample, at the rate divided by `step`, without the last sample.

    With it, a file of step 1 would be a duplicate of the first arrival's.
    """
    with wave.open(io.BytesIO(data)) as source:
        frames = source.readframes(source.getnframes())
        params = source.getparams()
    width = params.sampwidth * params.nchannels
    kept = b"".join(frames[at : at + width] for at in range(0, len(frames) - width, step * width))
    sink = io.BytesIO()
    with wave.open(sink, "wb") as target:
        target.setparams(params._replace(framerate=params.framerate // step, nframes=0))
        target.writeframes(kept)
    return sink.getvalue()


def _copy(media: Path, raw: Path, files: Sequence[Path]) -> set[str]:
    for path in files:
        _put(raw / path.relative_to(media), path.read_bytes())
    return {path.relative_to(media).as_posix() for path in files}


def _put(path: Path, data: bytes) -> None:
    """Write a file unless it exists: an existing one must keep its time, or discovery would take it for a new one."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(data)
    shutil.move(partial, path)
