"""Audit units by their kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..unit import Kind, Unit
from .audio import audit_sounds
from .clips import audit_clips
from .image import audit_photo


def audit_units(path: str, kind: Kind, units: Sequence[Unit], row: Mapping[str, Any]) -> None:
    """Audit all units of the raw object at `path`. row: the object's media table row.

    Raises: Unusable, stage `cut_audit`, with a code of `findings`.
    """
    if kind == "image":
        for unit in units:
            audit_photo(path, unit)
    elif kind == "video":
        audit_clips(path, units, row.get("n_frames_decoded"))
        audit_sounds(path, [unit for unit in units if "sound.flac" in unit.fields], "sound.flac")
    elif kind == "audio":
        audit_sounds(path, units, "flac")
