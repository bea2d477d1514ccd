"""Every row of the golden table against tools that share no code with ours: ffprobe (Debian's FFmpeg 5.1, from its own
decoders), libsndfile, exiftool.

What such a tool says of an admitted file has to be what the audit says; of a refused one it has to complain, or be
dropped for a property that the tool sees as well. Where they differ the column `differs` of golden_corpus.csv says in
what and why: `name, name: reason`. A difference that is not in the table fails, and so does one that is gone.
"""

import csv
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

pytestmark = pytest.mark.server

Row = dict[str, str]
Facts = dict[str, Any]
Audited = Callable[[Path], Facts]
Present = list[tuple[Path, Row]]

CODECS = {"libdav1d": "av1", "mp3float": "mp3", "libopus": "opus"}
"""Names of decoders, where they are not those of the codecs."""

TRANSFERS = {"bt470m": "gamma22", "bt470bg": "gamma28"}
IN_DEEP = re.compile(r"1[0-6](le|be)$")
HDR = ("smpte2084", "arib-std-b67")
WIDE = "packet=stream_index,pts,flags:frame=stream_index,pts,pkt_dts,nb_samples"
IMAGE_COMPLAINTS = (
    "File format error",
    "JPEG format error",
    "Corrupted PNG image",
    "Bad CRC",
    "did not start with",
)


def golden() -> list[Row]:
    with open(Path(__file__).with_name("golden_corpus.csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def present(nightly_files: frozenset[str]) -> Present:
    """Files of the corpus with their rows: in CI without those left out today."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    rows = [(Path(folder, row["file"]), row) for row in golden()] if folder else []
    return [(path, row) for path, row in rows if path.exists() and row["file"] not in nightly_files]


def run_command(*command: str | Path) -> tuple[str, str, int]:
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), done.returncode


def ffprobe(path: Path) -> Facts:
    """Streams, packets and frames, every frame decoded."""
    told, _, _ = run_command(
        "ffprobe", "-v", "quiet", "-show_streams", "-show_entries", WIDE, "-of", "json", path
    )
    facts: Facts = json.loads(told)
    return facts


def ahead(wanted: list[tuple[Path, Row]]) -> Iterator[tuple[Path, Row, Facts]]:
    """With what ffprobe says, which reads the next file meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(ffprobe, path) for path, _ in wanted]
        for (path, row), told in zip(wanted, coming, strict=True):
            yield path, row, told.result()


def of_stream(told: Facts, what: str, index: int) -> list[Facts]:
    every = told.get("packets_and_frames") or told.get(f"{what}s", [])
    return [one for one in every if one.get("type", what) == what and one["stream_index"] == index]


def known_value(stream: Facts, name: str) -> str | None:
    value = stream.get(name)
    return None if value in (None, "unknown", "unspecified") else str(value)


def picture_facts(told: Facts) -> Facts:
    """What ffprobe says of the first moving picture, in our words."""
    stream = next(
        one
        for one in told["streams"]
        if one["codec_type"] == "video" and not one["disposition"]["attached_pic"]
    )
    frames, packets = (of_stream(told, what, stream["index"]) for what in ("frame", "packet"))
    given = [one.get("pts", one.get("pkt_dts")) for one in frames]
    times = sorted(at for at in given if at is not None)
    gaps = [after - before for before, after in pairwise(times) if after > before]
    transfer = known_value(stream, "color_transfer")
    aspect = stream.get("sample_aspect_ratio", "1:1")
    return {
        "codec": stream["codec_name"],
        "profile": stream.get("profile"),
        "level": None if stream.get("level", -99) == -99 else stream["level"],
        "size": (stream["width"], stream["height"]),
        "sar": "1:1" if aspect in ("0:1", "N/A") else aspect,
        "pix_fmt": stream["pix_fmt"],
        "colour_range": known_value(stream, "color_range"),
        "colour_space": known_value(stream, "color_space"),
        "colour_trc": TRANSFERS.get(transfer or "", transfer),
        "colour_primaries": known_value(stream, "color_primaries"),
        "field_order": known_value(stream, "field_order"),
        "extradata": stream.get("extradata_size", 0),
        "time_base": stream["time_base"],
        "start": times[0],
        "gaps": (min(gaps, default=None), max(gaps, default=None)),
        "frames": len(frames),
        "packets": len(packets),
        "keyframes": sum("K" in one["flags"] for one in packets),
        "discard": sum("D" in one["flags"] for one in packets),
    }


def our_picture(row: Facts) -> Facts:
    return {
        "codec": CODECS.get(row["codec"], row["codec"]),
        **{name: row[name] for name in ("profile", "level", "pix_fmt", "field_order")},
        **{f"colour_{name}": row[f"colour_{name}"] for name in ("range", "space", "trc", "primaries")},
        "size": (row["width_px"], row["height_px"]),
        "sar": f"{row['sar_num']}:{row['sar_den']}",
        "extradata": row["extradata_nbytes"],
        "time_base": f"{row['time_base_num']}/{row['time_base_den']}",
        "start": row["start_pts"],
        "gaps": (row["min_pts_gap"], row["max_pts_gap"]),
        "frames": row["n_frames_decoded"],
        "packets": row["n_packets"],
        "keyframes": row["n_keyframes"],
        "discard": row["n_discard_packets"],
    }


def sound_facts(told: Facts) -> Facts:
    stream = next((one for one in told["streams"] if one["codec_type"] == "audio"), None)
    if stream is None:
        return {"audio": None}
    return {
        "audio": (int(stream["sample_rate"]), stream["channels"], known_value(stream, "channel_layout")),
        "audio_codec": stream.get("codec_name"),
        "samples": sum(int(one.get("nb_samples", 0)) for one in of_stream(told, "frame", stream["index"])),
    }


def our_sound(row: Facts) -> Facts:
    if row["audio_codec"] is None:
        return {"audio": None}
    return {
        "audio": (row["sample_rate_hz"], row["channels"], row["channel_layout"]),
        "audio_codec": CODECS.get(row["audio_codec"], row["audio_codec"]),
        "samples": row["n_samples"],
    }


def differing(mine: Facts, theirs: Facts) -> dict[str, tuple[Any, Any]]:
    names = sorted({*mine, *theirs})
    return {name: (mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)}


def known_differences(row: Row) -> set[str]:
    names, _, reason = row["differs"].partition(": ")
    assert bool(names) == bool(reason), row["file"]
    return {name.strip() for name in names.split(",") if name}


def test_audit_says_what_the_golden_table_says(present: Present, audit_row: Audited) -> None:
    for path, row in present:
        told = audit_row(path)
        if row["code"] == "animation":  # a policy decides, in the cutter
            assert told["is_animated"] is True, row["file"]
            continue
        result = told.get("refused", ("admitted", ""))
        assert result == (row["outcome"], row["code"]), row["file"]
        if "refused" in told:
            continue
        assert told["kind"] == row["kind"], row["file"]
        frames, samples = told["n_frames_decoded"], told["n_samples"]
        assert (str(frames or ""), str(samples or "")) == (row["frames"], row["samples"]), row["file"]
        assert {True: "yes", False: "no", None: ""}[told["seek_ok"]] == row["seek_ok"], row["file"]
        upright = (
            f"{told['upright_width_px']}x{told['upright_height_px']}" if told["upright_width_px"] else ""
        )
        assert upright == row["upright"], row["file"]


def test_videos_and_sounds_are_what_ffprobe_says(present: Present, audit_row: Audited) -> None:
    wanted = [(path, row) for path, row in present if row["kind"] in ("video", "audio")]
    for path, row, told in ahead(wanted):
        mine, theirs = our_sound(audit_row(path)), sound_facts(told)
        if row["kind"] == "video":
            mine, theirs = mine | our_picture(audit_row(path)), theirs | picture_facts(told)
        found = differing(mine, theirs)
        if mine["audio"] is None and theirs["audio"] is not None:
            found = {name: both for name, both in found.items() if name not in ("audio_codec", "samples")}
        assert set(found) == known_differences(row) - {"soundfile"}, (row["file"], found)


def test_sounds_are_what_libsndfile_says(present: Present, audit_row: Audited) -> None:
    n_read = 0
    for path, row in present:
        if row["kind"] != "audio" or path.suffix in (".mp4", ".m4a"):
            continue
        with soundfile.SoundFile(path) as sound:
            n_samples = 0
            while len(block := sound.read(1 << 16, dtype="float32")):
                n_samples += len(block)
            told = (n_samples / sound.samplerate, sound.channels)
        mine = audit_row(path)
        same = told == (mine["n_samples"] / mine["sample_rate_hz"], mine["channels"])
        assert same == ("soundfile" not in known_differences(row)), (row["file"], told, mine["n_samples"])
        n_read += 1
    assert n_read > 35 or not present


def exif_facts(*paths: Path) -> list[Facts]:
    """What exiftool says of each; it takes longest to start."""
    told, _, _ = run_command(
        "exiftool", "-j", "-n", "-G0", "-a", "-validate", "-warning", "-error", "-all", *paths
    )
    facts: list[Facts] = json.loads(told)
    return facts


def test_pictures_are_what_exiftool_says(present: Present, audit_row: Audited) -> None:
    pictures = [(path, row) for path, row in present if row["kind"] == "image"]
    facts = exif_facts(*(path for path, _ in pictures)) if pictures else []
    for (path, row), told in zip(pictures, facts, strict=True):
        assert told["SourceFile"] == str(path)
        mine = audit_row(path)
        sizes = [
            (told[f"{group}:ImageWidth"], told[f"{group}:ImageHeight"])
            for group in ("File", "PNG", "RIFF", "GIF", "EXIF")
            if f"{group}:ImageWidth" in told
        ]
        turn = told.get("EXIF:Orientation", told.get("XMP:Orientation"))
        turn = turn if turn in range(1, 9) else None
        size = sizes[0][::-1] if turn in (5, 6, 7, 8) else sizes[0]
        upright = f"{size[0]}x{size[1]}"
        names = {name.rpartition(":")[2] for name in told}
        depth = told.get(
            "PNG:BitDepth", told.get("File:BitsPerSample", told.get("QuickTime:BitDepthLuma", 8))
        )
        theirs = {
            "upright": upright,
            "icc": any(name.startswith("ICC_Profile") for name in told),
            "gps": bool(
                {"GPSLatitude", "GPSLongitude", "GPSAltitude", "GPSDateStamp", "GPSMapDatum"} & names
            ),
            "depth": depth,
            "animated": told.get("GIF:FrameCount", 1) > 1,
        }
        found = differing(
            {
                "upright": f"{mine['upright_width_px']}x{mine['upright_height_px']}",
                "icc": mine["has_icc"],
                "gps": mine["has_gps"],
                "depth": mine["bit_depth"],
                "animated": mine["is_animated"],
            },
            theirs,
        )
        assert row["upright"] == upright, row["file"]
        assert set(found) == known_differences(row), (row["file"], found)


def test_peers_complain_about_each_rejected_file(present: Present) -> None:
    for path, row in present:
        if row["outcome"] != "rejected":
            continue
        _, complaint, failed = run_command("ffmpeg", "-v", "warning", "-i", path, "-f", "null", "-")
        complains = bool(complaint.strip() or failed)
        if row["file"].startswith("image/"):
            (told,) = exif_facts(path)
            words = " ".join(
                str(value) for name, value in told.items() if name in ("ExifTool:Warning", "ExifTool:Error")
            )
            assert complains or any(one in words for one in IMAGE_COMPLAINTS), row["file"]
        assert complains == ("accepted" not in known_differences(row)), (row["file"], complaint)


def test_what_is_dropped_others_see_as_well(present: Present) -> None:
    for path, row in present:
        if row["code"] in ("hdr", "bit_depth"):
            entries = "stream=pix_fmt,color_transfer:frame=pix_fmt,color_transfer"
            command = ("ffprobe", "-v", "error", "-select_streams", "v:0", "-read_intervals", "%+#20")
            told = json.loads(run_command(*command, "-show_entries", entries, "-of", "json", path)[0])
            frame, stream = told["frames"][0], told["streams"][0]
            curves = {one.get("color_transfer") for one in (frame, stream)}
            assert IN_DEEP.search(frame["pix_fmt"]), row["file"]
            assert bool(curves & set(HDR)) == (row["code"] == "hdr"), (row["file"], curves)
        elif row["code"] == "animation":
            assert exif_facts(path)[0]["GIF:FrameCount"] > 1
        elif row["code"] == "type_not_taken":
            assert path.read_bytes()[:4] == path.read_bytes()[-4:] == b"PAR1", row["file"]
        elif row["code"] == "no_text":
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            assert not any({"text", "content"} & set(json.loads(line)) for line in lines), row["file"]
        else:
            assert row["outcome"] != "dropped", row["file"]


def upright(picture: np.ndarray, row: Facts) -> np.ndarray:
    """Mirrored, and then turned clockwise, as the row says."""
    flipped = picture[:, ::-1] if row["is_flipped"] else picture
    return np.rot90(flipped, -(row["rotation_deg"] // 90))


def small(path: Path, turned: bool, width: int, height: int) -> np.ndarray:
    """The first frame as the ffmpeg command shows it, turned or as stored: uint8 [height, width]."""
    how = [] if turned else ["-noautorotate"]
    scale = f"scale={width}:{height}:flags=area,format=gray"
    command = [
        "ffmpeg",
        "-v",
        "error",
        *how,
        "-i",
        str(path),
        "-map",
        "0:v:0",
        "-frames:v",
        "1",
        "-vf",
        scale,
    ]
    done = subprocess.run([*command, "-f", "rawvideo", "-"], capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(height, width).astype(float)


def test_turned_videos_are_turned_as_ffmpeg_does(present: Present, audit_row: Audited) -> None:
    n_turned = 0
    for path, row in present:
        if row["kind"] != "video" or not (audit_row(path)["rotation_deg"] or audit_row(path)["is_flipped"]):
            continue
        mine = audit_row(path)
        shape = (48, 64) if mine["rotation_deg"] in (0, 180) else (64, 48)
        shown = small(path, True, shape[1], shape[0])
        stored = small(path, False, 64, 48)
        assert np.abs(upright(stored, mine) - shown).mean() < 4, row["file"]
        n_turned += 1
    assert n_turned >= 6 or not present


CUTS = {
    # to the eye: hard cuts by their first frame, fades and dissolves by [first, last] frame of the change
    "video/bikes_640x272.mp4": [30, 76, 137, 187, 242],
    "video/bbb_trailer_720p.mp4": [
        (228, 252), (326, 345), 593, (750, 785), 864, 900, 988, 1049, (1112, 1140), (1232, 1253),
    ],
    "video/cosmos_clip_10s.mp4": [(84, 105), (144, 170), 214],
}  # fmt: skip


def test_shots_of_real_films(audit_row: Audited) -> None:
    """All 18 boundaries, and no other; ffmpeg's own scene filter has the hard ones among its highest scores."""
    folder = os.environ.get("PENSTOCK_MEDIA")
    for name, boundaries in CUTS.items() if folder else ():
        path = Path(folder or "") / name
        told, _, _ = run_command(
            "ffprobe",
            "-v",
            "error",
            "-select_streams",
            "v:0",
            "-show_entries",
            "packet=pts",
            "-of",
            "csv=p=0",
            path,
        )
        times = sorted(int(line.strip(",")) for line in told.split())
        found = [times.index(pts) for pts in audit_row(path)["scene_cuts"]]
        assert len(found) == len(boundaries), (name, found)
        for place, boundary in zip(found, boundaries, strict=True):
            low, high = boundary if isinstance(boundary, tuple) else (boundary, boundary)
            assert low <= place <= high, (name, place)
        _, log, _ = run_command(
            "ffmpeg", "-v", "info", "-i", path, "-vf", "scdet=threshold=8", "-an", "-f", "null", "-"
        )
        seconds = [float(one) for one in re.findall(r"lavfi\.scd\.time: ([0-9.]+)", log)]
        base = audit_row(path)["time_base_num"] / audit_row(path)["time_base_den"]
        hard = [times[place] * base for place in boundaries if isinstance(place, int)]
        heard = [at for at in hard if any(abs(at - one) < 0.01 for one in seconds)]
        assert len(heard) >= len(hard) - 1, (name, hard, seconds)
