"""The choice of the audit for a unit, by its kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..unit import Kind, Unit
from .audio import audit_sounds
from .clips import audit_clips
from .image import audit_photo


def audit_units(path: str, kind: Kind, units: Sequence[Unit], row: Mapping[str, Any]) -> None:
    """Audit all units of one raw object at `path`, whose row in the media table is `row`.

    Texts are stored as they are read and have nothing to compare.

    Raises: Unusable, stage `cut_audit`, its code one of the names in `findings`.
    """
    if kind == "image":
        for unit in units:
            audit_photo(path, unit)
    elif kind == "video":
        audit_clips(path, units, row.get("n_frames_decoded"))
        audit_sounds(path, [unit for unit in units if "sound.flac" in unit.fields], "sound.flac")
    elif kind == "audio":
        audit_sounds(path, units, "flac")
