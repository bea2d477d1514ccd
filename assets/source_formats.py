"""Formats of raw objects whose samples are ingested as they are, without cuts.

The samples of a walked format (`penstock.formats.REGISTERED`) are spans of an object. An importer of
`penstock.formats` makes the samples of a read format. A raw object holds all bytes of its samples: they are
deduplicated, split and taken down by its SHA-256. It may lie in several files (`JOINED`, `joined_objects`).

The registries are imported for a source with a format alone: definitions of media do without.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader.dataset.columnar.choices import Options

JOINED = frozenset({"lance", "lerobot", "rosbag"})
"""Formats whose raw objects lie in several files: their importers have `find_complete_objects`."""
KEYED_BY_PLACE = frozenset({"lance"})
"""Formats whose column of keys, where a source names one, is of the whole place: rows move between its objects."""


def walked_formats() -> list[str]:
    """Return the formats whose samples may stay in place."""
    from penstock.formats import REGISTERED

    return sorted(REGISTERED)


def read_formats() -> list[str]:
    """Return the formats whose samples are copied."""
    from penstock.formats import IMPORTED

    return sorted(IMPORTED)


def companions(format: str) -> re.Pattern[str] | None:
    """Return the names of objects that tell of others, and hold no samples; None where objects stand for themselves."""
    if not format:
        return None
    from penstock.formats import FORMATS

    found = FORMATS.get(format)
    return found.companions if found else None


def strangers(format: str) -> tuple[Callable[[str], str], Callable[[str], bool]]:
    """Return what is known of objects by their keys beside the files of tables.

    Two functions: the name of the table format whose log an object belongs to, "" for none; and whether an object is
    another tool's own.
    """
    if not format:
        return lambda key: "", lambda key: False
    from penstock.formats.registration.selection import is_no_table_file, table_log

    return partial(table_log, format), partial(is_no_table_file, format)


def check_format(whose: str, format: str, in_place: bool, options: "Options") -> None:
    """Raise ValueError for a format that cannot be of raw objects, and for options that it does not take.

    whose: the source's name. options: key, fields and names that are left out.
    """
    from penstock.formats import importer_named
    from penstock.formats.importing.importer import check_options

    walked, read = walked_formats(), read_formats()
    if format not in walked + read:
        accepted = ", ".join(sorted(walked + read))
        raise ValueError(f"{whose}: format={format!r}; accepted: {accepted}, or '' for media")
    if in_place and format not in walked:
        raise ValueError(
            f"{whose}: keep='in place' of {format}; accepted for {', '.join(walked)}: other samples are read, so use "
            "keep='copy'"
        )
    check_options(format, importer_named(format), options)
