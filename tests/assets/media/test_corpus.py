"""The corpus of real files, where PENSTOCK_MEDIA names it: what is admitted, what is not, and why.

golden_corpus.csv has a row per file. What it says of a refused file was found by other means than ours (the
column `because`); what it says of an admitted one is compared here with MANIFEST.csv, which was measured when the
corpus was collected, and with the files' own headers, read by hand. Without the corpus there is nothing to compare.
"""

import csv
import os
import wave
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assets.media.cutters import ALL_KINDS, CUTTERS, Known, file_kind
from assets.media.policy import CutPolicy, ImagePolicy, VideoPolicy
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.unit import Kind, Unit, Unusable

NOT_MEDIA = (".parquet", ".json", ".jsonl", "LICENSE", "fileids")
DAMAGED = (
    "image/ax_ss-motion-photo-shortened.jpg",
    "image/pil_broken.png",
    "image/pil_broken_data_stream.png",
    "image/pil_decompression_bomb.gif",
    "image/pil_truncated_image.png",
    "image/pil_truncated_jpeg.jpg",
)

Row = dict[str, str]
Audited = Callable[[Path], dict[str, Any]]


def golden() -> list[Row]:
    with open(Path(__file__).with_name("golden_corpus.csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def corpus() -> Path | None:
    folder = os.environ.get("PENSTOCK_MEDIA")
    return Path(folder) if folder else None


def present(tier: str) -> Iterator[tuple[Path, Row, Row]]:
    """(file, golden row, manifest row)"""
    folder = corpus()
    if folder is None:
        return
    with open(folder / "MANIFEST.csv", encoding="utf-8", newline="") as file:
        manifest = {row["file"]: row for row in csv.DictReader(file)}
    for row in golden():
        if row["tier"] == tier and (folder / row["file"]).exists():
            yield folder / row["file"], row, manifest[row["file"]]


def sniff_mime(path: Path) -> str:
    with open(path, "rb") as file:
        return sniff(file.read(HEAD_BYTES))


def compare_with_manifest(row: dict[str, Any], known: Row, golden_row: Row) -> None:
    name = golden_row["file"]
    if known["resolution"]:
        assert f"{row['width_px']}x{row['height_px']}" == known["resolution"], name
    if row["kind"] == "video":
        assert str(row["n_packets"]) == known["packets"], name
        assert str(row["n_keyframes"]) == known["keyframes"], name
        shown = row["n_packets"] - row["n_discard_packets"]
        assert row["n_frames_decoded"] == (15 if "no-initial-keyframe" in name else shown), name
        assert str(row["n_frames_decoded"]) == golden_row["frames"], name
        assert {True: "yes", False: "no", None: ""}[row["seek_ok"]] == golden_row["seek_ok"], name
    if row["kind"] in ("video", "audio"):
        assert str(row["n_samples"] or "") == golden_row["samples"], name
        assert row["header_duration_s"] in (None, pytest.approx(float(known["duration_s"] or 0), abs=0.001))
    if row["upright_width_px"]:
        assert f"{row['upright_width_px']}x{row['upright_height_px']}" == golden_row["upright"], name


def compare_with_header(row: dict[str, Any], path: Path) -> None:
    """Lengths and rates as the files' own headers have them, read without FFmpeg."""
    head = path.read_bytes()[:26]
    if head[:4] == b"RIFF" and head[12:16] == b"fmt " and head[20:22] == b"\1\0":  # what Python's wave reads
        with wave.open(str(path)) as sound:
            told = (sound.getnframes(), sound.getframerate(), sound.getnchannels())
        assert (row["n_samples"], row["sample_rate_hz"], row["channels"]) == told, path.name
    if row["container"] == "flac":
        bits = int.from_bytes(head[18:26], "big")  # STREAMINFO: 20 rate, 3 channels, 5 depth, 36 length
        told = (bits & (2**36 - 1), bits >> 44, (bits >> 41 & 7) + 1)
        assert (row["n_samples"], row["sample_rate_hz"], row["channels"]) == told, path.name


# Sound files of which a policy decides: the audit tells what they are, the cutter leaves them out.
LEFT_TO_THE_CUT = {"animation": "is_animated"}


def check_audits(tier: str, audited: Audited) -> None:
    for path, expected, known in present(tier):
        row: dict[str, Any] | None = audited(path)
        assert row is not None
        result, code = row.get("refused", ("admitted", ""))
        row = None if "refused" in row else row
        if expected["code"] in LEFT_TO_THE_CUT:
            assert row is not None and row[LEFT_TO_THE_CUT[expected["code"]]] is True, expected["file"]  # noqa: PT018
            continue
        assert (result, code) == (expected["outcome"], expected["code"]), expected["file"]
        assert (row["kind"] if row else "") == expected["kind"], expected["file"]
        if row is not None and row["kind"] != "text":
            compare_with_manifest(row, known, expected)
            compare_with_header(row, path)


def cut(
    path: Path, scratch: Path, policy: CutPolicy, audit: dict[str, Any]
) -> tuple[Kind | None, list[Unit], tuple[str, str]]:
    try:
        kind = file_kind(str(path), sniff_mime(path), ALL_KINDS)
        return kind, CUTTERS[kind].cut(str(path), scratch, policy, Known(audit=audit)), ("admitted", "")
    except Unusable as unusable:
        return None, [], (unusable.outcome, unusable.code)


def check_cuts(
    tier: str, folder: Path, audited: Audited | None = None, without: Collection[str] = ()
) -> None:
    """audited: gives what is known of a file before it is cut, if it is admitted; without it nothing is."""
    policy = CutPolicy(video=VideoPolicy(max_clips=2))
    for number, (path, expected, _) in enumerate(present(tier)):
        if expected["file"] in without:
            continue
        scratch = folder / str(number)
        scratch.mkdir()
        audit = audited(path) if audited else {}
        kind, units, result = cut(path, scratch, policy, {} if "refused" in audit else audit)
        assert result == (expected["outcome"], expected["code"]), path.name
        if kind is None:
            continue
        assert units, path.name
        for unit in units:
            check_unit(kind, unit, expected)


def check_unit(kind: str, unit: Unit, expected: Row) -> None:
    if kind == "image":
        width_px, height_px = map(int, expected["upright"].split("x"))
        assert unit.metadata["width_px"] / unit.metadata["height_px"] == pytest.approx(  # type: ignore[operator]
            width_px / height_px, rel=0.01
        ), expected["file"]
    if kind == "video":
        assert unit.metadata["worst_psnr_db"] >= 35, expected["file"]  # type: ignore[operator]
        width_px, height_px = map(int, expected["upright"].split("x"))
        assert abs(unit.metadata["width_px"] * height_px - unit.metadata["height_px"] * width_px) <= 2 * max(  # type: ignore[operator]
            width_px, height_px
        ), expected["file"]


def test_golden_table_keeps_the_promise() -> None:
    """At least 90 % of the files that play come through."""
    rows = golden()
    assert len(rows) == 180
    media = [row for row in rows if not row["file"].endswith(NOT_MEDIA)]
    playable = [row for row in media if not row["file"].startswith("broken/") and row["file"] not in DAMAGED]
    admitted = [row for row in playable if row["outcome"] == "admitted"]
    assert len(playable) == 153
    assert len(admitted) / len(playable) >= 0.9
    assert all(row["because"] for row in rows if row["outcome"] != "admitted")


def test_core_of_the_corpus_is_audited_as_the_golden_table_says(audit_row: Audited) -> None:
    check_audits("core", audit_row)


def test_core_of_the_corpus_is_cut(tmp_path: Path) -> None:
    check_cuts("core", tmp_path)


@pytest.mark.server
def test_whole_corpus_is_cut(tmp_path: Path, audit_row: Audited, nightly_files: frozenset[str]) -> None:
    """After its audit, as the pipeline does. What the audits say is compared with other tools, in
    `test_corpus_peers.py`."""
    check_cuts("extended", tmp_path, audit_row, nightly_files)


def test_photos_of_one_scene_are_all_upright(tmp_path: Path) -> None:
    """The same scene, stored in each of the EXIF orientations."""
    folder = corpus()
    seen = []
    for path in sorted((folder / "image").glob("exif_Portrait_*.jpg")) if folder else []:
        (unit,) = CUTTERS["image"].cut(str(path), tmp_path, CutPolicy(image=ImagePolicy(short_side_px=64)))
        with Image.open(unit.fields["jpg"]) as picture:
            small = np.asarray(picture.convert("L").resize((16, 24)), float)
        seen.append(small)
    for one in seen:
        assert one.shape == seen[0].shape
        assert np.abs(one - seen[0]).mean() < 12  # turned or mirrored it would be some 50
