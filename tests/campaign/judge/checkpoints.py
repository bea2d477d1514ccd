"""Checkpoints: docs/format.md, "Checkpoints"."""

import hashlib
import json
import re
from typing import Any

from .log import Objects, canonical, parse_object, require

MARKER = re.compile(r"checkpoints/([^/]+)/steps/([0-9]{12})\.json")
PART = re.compile(r"checkpoints/([^/]+)/parts/([0-9]{12})/[^/]+")


def markers(objects: Objects) -> dict[tuple[str, int], dict[str, Any]]:
    """(run, step) -> what its marker says. Raises: Broken."""
    found = {}
    for key, data in objects.items():
        if match := MARKER.fullmatch(key):
            body = parse_object(data, key)
            said = body.pop("sha256")
            require(hashlib.sha256(canonical(body)).hexdigest() == said, f"{key} was changed")
            require((body["run"], body["step"]) == (match[1], int(match[2])), f"{key} is another's marker")
            found[match[1], int(match[2])] = body
    return found


def tensors(objects: Objects, marker: dict[str, Any]) -> dict[str, bytes]:
    """Name -> the bytes of each tensor that is whole in one piece. Raises: Broken."""
    prefix = f"checkpoints/{marker['run']}/parts/{marker['step']:012d}/"
    found = {}
    for one in (marker["index"], *marker["parts"]):
        key = prefix + one["name"]
        require(key in objects, f"{key} is not there, and its marker is")
        data = objects[key]
        require(len(data) == one["nbytes"], f"{key} has {len(data)} bytes")
        require(hashlib.sha256(data).hexdigest() == one["sha256"], f"{key} is not what was written")
        if one is not marker["index"]:
            found |= safetensors(data)
    return found


def safetensors(data: bytes) -> dict[str, bytes]:
    """Name -> bytes."""
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    return {
        name: data[begin + one["data_offsets"][0] : begin + one["data_offsets"][1]]
        for name, one in header.items()
        if name != "__metadata__"
    }


def orphan_parts(objects: Objects) -> set[str]:
    """Parts at or below the newest marker of their run that no marker names. Beside older steps that stay, other tries
    may have left some: those are deleted by the commit of that step or by the next, or not at all."""
    found = markers(objects)
    newest = {run: max(step for other, step in found if other == run) for run, _ in found}
    named = {
        f"checkpoints/{run}/parts/{step:012d}/{one['name']}"
        for (run, step), marker in found.items()
        for one in (marker["index"], *marker["parts"])
    }
    parts = {key: match for key in objects if (match := PART.fullmatch(key))}
    older = {(run, step) for run, step in found if step < newest[run]}
    return {
        key
        for key, match in parts.items()
        if key not in named
        and match[1] in newest
        and int(match[2]) <= newest[match[1]]
        and (match[1], int(match[2])) not in older
    }
