"""Formats of raw objects whose samples are ingested unchanged.

In a walked format (`penstock.formats.REGISTERED`), samples are byte ranges of an object. In a read format, an importer
from `penstock.formats` produces the samples. Samples are deduplicated, split and taken down by their raw object's
SHA-256. Only a source with a format imports the registries.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader.dataset.columnar.choices import ColumnarOptions

JOINED = frozenset({"lance", "lerobot", "rosbag"})
"""Formats whose raw objects consist of several files (`joined_objects`)."""
KEYED_BY_PLACE = frozenset({"lance"})
"""Formats whose keys are unique in a whole source, since rows move between its objects."""


def walked_formats() -> list[str]:
    """Return the formats whose samples may stay in place."""
    from penstock.formats import REGISTERED

    return sorted(REGISTERED)


def read_formats() -> list[str]:
    """Return the formats whose samples are copied."""
    from penstock.formats import IMPORTED

    return sorted(IMPORTED)


def companions(format: str) -> re.Pattern[str] | None:
    """Return a pattern for objects that describe others and hold no samples; None if the format has none."""
    if not format:
        return None
    from penstock.formats import FORMATS

    entry = FORMATS.get(format)
    return entry.companions if entry else None


def strangers(format: str) -> tuple[Callable[[str], str], Callable[[str], bool]]:
    """Return functions of a key: which table format's log has it ("" for none); whether it is another tool's file."""
    if not format:
        return lambda key: "", lambda key: False
    from penstock.formats.registration.selection import is_no_table_file, table_log

    return partial(table_log, format), partial(is_no_table_file, format)


def check_format(whose: str, format: str, in_place: bool, options: "ColumnarOptions") -> None:
    """Raise ValueError for an unsupported format of raw objects, or unsupported options. whose: name of the source."""
    from penstock.formats import importer_named
    from penstock.formats.importer import check_options

    walked, read = walked_formats(), read_formats()
    if format not in walked + read:
        accepted = ", ".join(sorted(walked + read))
        raise ValueError(f"{whose}: format={format!r}; accepted: {accepted}, or '' for media")
    if in_place and format not in walked:
        raise ValueError(
            f"{whose}: keep='in place' of {format}; accepted for {', '.join(walked)}. Use keep='copy'"
        )
    check_options(format, importer_named(format), options)
