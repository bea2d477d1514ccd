"""Classify samples by modality, size, duration, language and licence, and parts by layout."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from loader import Version

Floats = np.ndarray[Any, np.dtype[np.float64]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]

SHORT_SIDE_PX = (128, 256, 384, 512, 720, 1080, 2160)
SHORT_SIDES = (
    "under 128",
    "128-255",
    "256-383",
    "384-511",
    "512-719",
    "720-1079",
    "1080-2159",
    "2160 or more",
)
"""Shorter-side classes, in pixels."""

DURATION_S = (1, 2, 5, 10, 30, 60, 300, 1800)
DURATIONS = (
    "under 1 s",
    "1-2 s",
    "2-5 s",
    "5-10 s",
    "10-30 s",
    "30-60 s",
    "1-5 min",
    "5-30 min",
    "30 min or more",
)
"""Duration classes; each includes its lower bound."""

ASPECTS = ("9:21", "9:16", "2:3", "3:4", "1:1", "4:3", "3:2", "16:9", "21:9")
"""Aspect ratios; an image belongs to the nearest on a logarithmic scale."""
_RATIOS = np.array([int(name.split(":")[0]) / int(name.split(":")[1]) for name in ASPECTS])
_HALFWAYS = np.sqrt(_RATIOS[1:] * _RATIOS[:-1])

# The last words of field names. The first modality that matches wins.
MODALITIES = {
    "video": ("mp4", "mkv", "webm", "mov", "avi", "ts", "run"),
    "image": ("jpg", "jpeg", "png", "webp", "avif", "heic", "tif", "tiff", "gif", "bmp"),
    "audio": ("flac", "wav", "mp3", "ogg", "opus", "m4a", "aac"),
    "text": ("txt",),
}
OTHER = "other"

# Licence identifiers of the Hugging Face Hub: huggingface/hub-docs, repositories-licenses.md.
HUB_LICENCES = frozenset(
    """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-
openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0
cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-
by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 agpl-3.0 gfdl gpl
gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql
ofl-1.1 ncsa unlicense zlib pddl lgpl-lr
    """.split()  # noqa: SIM905 - sixty quoted words are not easier to read
)
_UNKNOWN_LICENCES = frozenset(
    ("", "unknown", "none", "null", "n/a", "na", "?", "-", "unspecified", "undefined")
)
_LANGUAGE = re.compile(r"[a-z]{2,3}")


def short_side_class(width_px: Floats, height_px: Floats) -> Int64s:
    """Return indices into SHORT_SIDES."""
    return np.searchsorted(np.array(SHORT_SIDE_PX), np.minimum(width_px, height_px), side="right")


def aspect_class(width_px: Floats, height_px: Floats) -> Int64s:
    """Return indices into ASPECTS. Sides must be positive."""
    return np.searchsorted(_HALFWAYS, width_px / height_px, side="right")


def duration_class(seconds: Floats) -> Int64s:
    """Return indices into DURATIONS."""
    return np.searchsorted(np.array(DURATION_S), seconds, side="right")


def fields_modality(fields: "frozenset[str] | set[str]") -> str:
    """Return image, video, audio, text or other."""
    words = {field.rpartition(".")[2].lower() for field in fields}
    return next((name for name, known in MODALITIES.items() if words & set(known)), OTHER)


def media_field(fields: "frozenset[str] | set[str]", modality: str) -> str | None:
    """Return the field that decides the modality: the first of the shortest names."""
    known = MODALITIES.get(modality, ())
    candidates = [field for field in fields if field.rpartition(".")[2].lower() in known]
    # A clip is stored as `mp4` and its mask as `mask.mp4`; a document as `txt` and its caption as `caption.txt`.
    return min(candidates, key=lambda field: (field.count("."), len(field), field), default=None)


def is_unknown_licence(name: str) -> bool:
    return name.strip().lower() in _UNKNOWN_LICENCES


def hub_licence(name: str) -> str:
    """Return the Hub's identifier, 'unknown' or 'other'."""
    if is_unknown_licence(name):
        return "unknown"
    word = re.sub(r"[\s_]+", "-", name.strip().lower())
    return word if word in HUB_LICENCES else "other"


def hub_language(name: str) -> str | None:
    """Return the ISO 639 code of a tag such as 'pt-BR', or None."""
    word = re.split(r"[-_]", name.strip().lower())[0]
    if _LANGUAGE.fullmatch(word):
        return word
    return None


def size_category(n: int) -> str:
    """Return the Hub's class: 'n<1K', '1K<n<10K' ... 'n>1T'."""
    marks = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
    if n < 1000:
        return "n<1K"
    place = len(str(n)) - 4  # 1,000 has four digits: its class begins at the first mark
    if place < len(marks) - 1:
        return f"{marks[place]}<n<{marks[place + 1]}"
    return "n>1T"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Parts' layouts; equal groups share one."""

    of_part: Int64s
    """Each part's layout index [parts]."""
    start: Int64s
    """Parts' first rows in the version, then the number of rows [parts + 1]."""
    modalities: tuple[str, ...]
    """Each layout's modality."""
    sounds: tuple[bool, ...]
    """True for layouts of clips with audio."""

    def of_rows(self, rows: Int64s) -> Int64s:
        layouts: Int64s = self.of_part[np.searchsorted(self.start, rows, side="right") - 1]
        return layouts

    def place(self, row: int) -> tuple[int, int]:
        """Return (position of the row's part, row in it)."""
        part = int(np.searchsorted(self.start, row, side="right")) - 1
        return part, row - int(self.start[part])


def layouts(version: Version) -> Layouts:
    """Return layouts, in O(parts)."""
    parts = version.parts
    have = np.stack([parts.has_group(group) for group in sorted(parts.groups)], axis=1)
    numbers: dict[bytes, int] = {}
    of_part = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in have], np.int64)
    _, first = np.unique(of_part, return_index=True)
    fields = [part_fields(version, int(position)) for position in first]
    modalities = tuple(fields_modality(names) for names in fields)
    return Layouts(
        of_part=of_part,
        start=np.concatenate([np.zeros(1, np.int64), np.cumsum(parts.n_rows)]),
        modalities=modalities,
        sounds=tuple(
            modality == "video" and media_field(names, "audio") is not None
            for modality, names in zip(modalities, fields, strict=True)
        ),
    )


def part_fields(version: Version, position: int) -> frozenset[str]:
    groups = [group for group in version.parts.groups if version.parts.has_group(group)[position]]
    return frozenset(name for group in groups for name in version.manifest["groups"][group]["field_nbytes"])
