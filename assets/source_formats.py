"""Formats of raw objects that are no media: their samples are taken as they are, not cut.

`WALKED` are those of `loader.foreign`, whose samples are spans of an object. `READ` are those of `penstock.sources`,
whose samples an importer makes. A raw object holds all bytes of its samples: by its SHA-256 they are deduplicated,
split and taken down. Formats whose samples lie in several objects are in `UNFIT`.
"""

import re
from collections.abc import Mapping

from loader.dataset.columnar.choices import Options
from loader.foreign import FORMATS
from penstock.sources import IMPORTERS, importer_named
from penstock.sources.importing.importer import check_options

UNFIT = {
    "lance": "columns of a sample lie in several files, and deleted rows in others",
    "lerobot": "rows and videos of an episode lie in several files",
}
"""Format -> the reason why an object of it is no raw object."""
WALKED = tuple(sorted(FORMATS))
"""Formats whose samples may stay in place."""
READ = tuple(sorted(IMPORTERS.keys() - UNFIT.keys()))
"""Formats whose samples are copied."""
COMPANIONS: Mapping[str, re.Pattern[str]] = {
    "energon": re.compile(r"\.tar\.idx$"),
    "hf": re.compile(r"\.(json|md)$"),
    "litdata": re.compile(r"^index\.json$"),
    "litdata-compressed": re.compile(r"^index\.json$"),
    "mds": re.compile(r"^index\.json$"),
    "mds-compressed": re.compile(r"^index\.json$"),
    "megatron": re.compile(r"\.idx$"),
    "rlds": re.compile(r"\.json$"),
    "rosbag": re.compile(r"(^|/)metadata\.yaml$|\.db3$"),
}
"""Format whose objects are read with others of the place -> names of these others, which hold no samples."""


def companion_of(format: str, key: str) -> bool:
    """Return whether an object tells of others, and holds no samples."""
    named = COMPANIONS.get(format)
    return named is not None and named.search(key) is not None


def check_format(whose: str, format: str, in_place: bool, options: Options) -> None:
    """Raise ValueError for a format that cannot be of raw objects, and for options that it does not take.

    whose: the source's name. options: key, fields and names that are left out.
    """
    if format in UNFIT:
        raise ValueError(
            f"{whose}: format={format!r}: {UNFIT[format]}, and a raw object holds all of a sample; use penstock import "
            f"{format}"
        )
    if format not in ("", *WALKED, *READ):
        accepted = ", ".join(sorted((*WALKED, *READ)))
        raise ValueError(f"{whose}: format={format!r}; accepted: {accepted}, or '' for media")
    if in_place and format not in WALKED:
        raise ValueError(
            f"{whose}: keep='in place' of {format or 'media'}; accepted for {', '.join(WALKED)}: other samples are cut "
            "or read, so use keep='copy'"
        )
    if not format and options != Options():
        raise ValueError(f"{whose}: key, fields and without are for a format; media are cut by the policy")
    if format:
        check_options(format, importer_named(format), options)
