"""Plausibility of an admitted file: its facts can be true, its units match them, and ffprobe agrees."""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

import loader
from assets.media.unit import Unit
from loader.errors import DecodeFailed
from loader.modalities import decoder_extensions, find_decoder
from loader.modalities.video.packet_table import read_packets
from penstock.compute.pool.environment import worker_environment

Row = Mapping[str, Any]
_RATIOS = tuple(
    f"{name}_ratio"
    for name in ("black", "frozen", "interlaced", "letterbox", "pillarbox", "clipped", "silence")
)
_MAX_DURATION_S = 7 * 24 * 3600  # for files of at most a few hundred KiB


def implausible(row: Row, units: Sequence[Unit], scratch: Path) -> list[str]:
    """Return contradictions; [] if the file was read correctly."""
    wrong = [
        f"{name} is {value}"
        for name, value in row.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
    wrong += [
        f"{name} is {row[name]}" for name in _RATIOS if row[name] is not None and not 0 <= row[name] <= 1
    ]
    wrong += [f"{name} is {row[name]}" for name in row if name.startswith("n_") and (row[name] or 0) < 0]
    if row["duration_s"] is not None and not 0 <= row["duration_s"] <= _MAX_DURATION_S:
        wrong.append(f"it lasts {row['duration_s']} s")
    wrong += _OF_KIND[row["kind"]](row, units) if row["kind"] in _OF_KIND else []
    files = {value for unit in units for value in unit.fields.values() if isinstance(value, Path)}
    existing = {path for path in scratch.rglob("*") if path.is_file()}
    if files != existing:
        wrong.append(f"files without a unit, or units without a file: {sorted(map(str, files ^ existing))}")
    for unit in units:
        wrong += _fields(unit)
    return wrong


def _fields(unit: Unit) -> list[str]:
    wrong = []
    for name, value in unit.fields.items():
        word = name.rpartition(".")[2]
        if not isinstance(value, Path):
            json.dumps(value, allow_nan=False)
            continue
        if word not in (*decoder_extensions(), "packets"):
            continue
        special: Mapping[str, Any] = {"mp4": loader.video(frames=1), "packets": _packets}
        read = special.get(word) or find_decoder(f"x.{word}")
        try:
            decoded = read(value.read_bytes(), None)
        except DecodeFailed as error:
            wrong.append(f"the loader cannot read {name}: {error}")
            continue
        if isinstance(decoded, np.ndarray) and (not decoded.size or not np.isfinite(decoded).all()):
            wrong.append(f"{name} is empty or not finite")
    return wrong


def _packets(data: bytes, rng: None) -> object:
    return read_packets(data).pts


def _video(row: Row, units: Sequence[Unit]) -> list[str]:
    wrong = []
    base = Fraction(row["time_base_num"], row["time_base_den"])
    if not row["start_pts"] < row["end_pts"]:
        wrong.append(f"it ends at {row['end_pts']} and starts at {row['start_pts']}")
    if abs(float((row["end_pts"] - row["start_pts"]) * base) - row["duration_s"]) > 1e-6:
        wrong.append("its duration contradicts its timestamps")
    cuts = row["scene_cuts"]
    if cuts != sorted(set(cuts)) or (cuts and not row["start_pts"] < cuts[0] <= cuts[-1] < row["end_pts"]):
        wrong.append(f"scene cuts at {cuts}")
    if min(row["width_px"], row["height_px"], row["n_frames_decoded"]) < 1 or row["n_corrupt"]:
        wrong.append("without a frame, or with a damaged one")
    for unit in units:
        wrong += _clip(row, unit)
    return wrong


def _clip(row: Row, unit: Unit) -> list[str]:
    times = unit.fields["json"]["pts"]
    if times != sorted(set(times)) or not times:
        return [f"times of a clip: {times[:20]}"]
    if times[0] < row["start_pts"] or times[-1] >= row["end_pts"]:
        return [f"a clip from {times[0]} to {times[-1]} of {row['start_pts']} to {row['end_pts']}"]
    with av.open(str(unit.fields["mp4"])) as container:
        base = container.streams.video[0].time_base or Fraction(1)
        actual = [(frame.pts or 0) * base for frame in container.decode(video=0)]
    expected = [(pts - times[0]) * Fraction(*unit.fields["json"]["time_base"]) for pts in times]
    if len(actual) != len(expected):
        return [f"a clip of {len(actual)} frames for {len(expected)} times"]
    start = actual[0]
    late = max(abs(float(one - start - other)) for one, other in zip(actual, expected, strict=True))
    return [f"a clip's frames are {late} s off"] if late > 1e-3 else []


def _image(row: Row, units: Sequence[Unit]) -> list[str]:
    wrong = []
    for unit in units:
        pictures = [value for name, value in unit.fields.items() if name in ("jpg", "png", "webp")]
        for path in pictures:
            with Image.open(path) as picture:
                picture.load()
                ratio = picture.width / picture.height * row["upright_height_px"] / row["upright_width_px"]
                slack = 1.5 / min(picture.size)
            if not 1 / (1 + slack) <= ratio <= 1 + slack:
                wrong.append(f"{picture.size} px of {row['upright_width_px']} x {row['upright_height_px']}")
    return wrong


def _audio(row: Row, units: Sequence[Unit]) -> list[str]:
    wrong = []
    if not row["n_samples"] or not row["sample_rate_hz"]:
        return ["audio without a sample"]
    total_s = 0.0
    for unit in units:
        total_s += float(unit.metadata.get("duration_s") or 0)
    if total_s > row["duration_s"] * 1.01 + 0.1:
        wrong.append(f"segments of {total_s} s in all, of {row['duration_s']} s")
    return wrong


_OF_KIND = {"video": _video, "image": _image, "audio": _audio}


_TIMEOUT_S = 30


def contradictions(data: bytes, row: Mapping[str, Any], folder: Path) -> list[str] | None:
    """Return differences between ffprobe and the media row in size, frames and samples.

    None if ffprobe refuses the file or complains, because its versions differ in tolerance.
    """
    if row["kind"] not in ("video", "audio", "image"):
        return None
    raw = folder / "peer.bin"
    raw.write_bytes(data)
    probe = _probed(raw, "a" if row["kind"] == "audio" else "v")
    if probe is None:
        return None
    wrong = []
    if row["kind"] == "audio":
        n = sum(int(frame.get("nb_samples", 0)) for frame in probe["frames"])
        if n != row["n_samples"]:
            wrong.append(f"ffprobe reads {n} samples, the audit {row['n_samples']}")
        return wrong
    stream = probe["streams"][0]
    size = stream.get("width"), stream.get("height")
    if not all(size):  # an image format that FFmpeg does not support
        return None
    if size != (row["width_px"], row["height_px"]):
        wrong.append(f"ffprobe reads {size} px, the audit {row['width_px'], row['height_px']}")
    if row["kind"] == "video" and int(stream.get("nb_read_frames", 0)) != row["n_frames_decoded"]:
        wrong.append(f"ffprobe reads {stream['nb_read_frames']} frames, the audit {row['n_frames_decoded']}")
    return wrong


def _probed(raw: Path, kind: str) -> dict[str, Any] | None:
    entries = "frame=nb_samples" if kind == "a" else "stream=width,height,nb_read_frames"
    command = [
        "ffprobe",
        "-v",
        "error",
        "-threads",
        "1",
        "-select_streams",
        f"{kind}:0",
        "-show_entries",
        entries,
    ]
    command += ["-of", "json", *([] if kind == "a" else ["-count_frames"]), str(raw)]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_S, check=False, env=worker_environment()
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode or done.stderr:
        return None
    probe: dict[str, Any] = json.loads(done.stdout)
    return probe if probe.get("streams") or probe.get("frames") else None
