"""The fields of the parts of a version, and so the modality of their samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loader import Version

from . import classes

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """The layouts of a version's parts: parts with the same groups have the same one."""

    of_part: Int64s
    """The number of each part's layout [parts]."""
    start: Int64s
    """The number of each part's first row among all rows of the version, and the number of all [parts + 1]."""
    modalities: tuple[str, ...]
    """The modality of samples, by layout."""
    sounds: tuple[bool, ...]
    """By layout: whether its samples are clips with an audio field."""

    def of_rows(self, rows: Int64s) -> Int64s:
        """Return the layout of each of these rows."""
        layouts: Int64s = self.of_part[np.searchsorted(self.start, rows, side="right") - 1]
        return layouts

    def place(self, row: int) -> tuple[int, int]:
        """Return (position of the part, row in it)."""
        part = int(np.searchsorted(self.start, row, side="right")) - 1
        return part, row - int(self.start[part])


def layouts(version: Version) -> Layouts:
    """Return the layouts of a version's parts, in O(parts)."""
    parts = version.parts
    have = np.stack([parts.has_group(group) for group in sorted(parts.groups)], axis=1)
    numbers: dict[bytes, int] = {}
    of_part = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in have], np.int64)
    _, first = np.unique(of_part, return_index=True)
    fields = [part_fields(version, int(position)) for position in first]
    modalities = tuple(classes.modality_of(names) for names in fields)
    return Layouts(
        of_part=of_part,
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)]),
        modalities=modalities,
        sounds=tuple(
            modality == "video" and classes.media_field(names, "audio") is not None
            for modality, names in zip(modalities, fields, strict=True)
        ),
    )


def part_fields(version: Version, position: int) -> frozenset[str]:
    """Return the fields that samples of one part have."""
    groups = [group for group in version.parts.groups if version.parts.has_group(group)[position]]
    return frozenset(name for group in groups for name in version.manifest["groups"][group]["field_nbytes"])
