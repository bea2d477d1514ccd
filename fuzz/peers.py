"""What ffprobe says of the same bytes: another version of FFmpeg, through its command line."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.compute.pool.environment import worker_environment

_TIMEOUT_S = 30


def contradictions(data: bytes, row: Mapping[str, Any], folder: Path) -> list[str] | None:
    """Where ffprobe reads a picture of another size, or more or fewer frames, than the row of the media table says.

    None where it says nothing: it refuses the file, or complains of it, and versions differ in what they put up with.
    """
    if row["kind"] not in ("video", "audio", "image"):
        return None
    raw = folder / "peer.bin"
    raw.write_bytes(data)
    told = _probed(raw, "a" if row["kind"] == "audio" else "v")
    if told is None:
        return None
    wrong = []
    if row["kind"] == "audio":
        n = sum(int(frame.get("nb_samples", 0)) for frame in told["frames"])
        if n != row["n_samples"]:
            wrong.append(f"ffprobe reads {n} samples, the audit {row['n_samples']}")
        return wrong
    stream = told["streams"][0]
    size = stream.get("width"), stream.get("height")
    if not all(size):  # a kind of picture that FFmpeg does not know
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
    told: dict[str, Any] = json.loads(done.stdout)
    return told if told.get("streams") or told.get("frames") else None
