"""Name the files of a source that an import of its format does not read."""

import re
from collections.abc import Container, Iterable

from loader.storage import ObjectInfo

from ...units import shorten_list
from ..registry import FORMATS

_WITHOUT_DATA = re.compile(
    r"(?:^|/)(?:\.(?!nv-meta/)|__MACOSX/|(?:README|LICENSE|CITATION|NOTICE)(?:\.\w+)?$|_SUCCESS$)",
    re.IGNORECASE,
)
"""Names of files about a dataset, of version control, caches and operating systems."""


def unread_files(
    format: str,
    infos: Iterable[ObjectInfo],
    used: Iterable[ObjectInfo],
    known: Container[str] | None = None,
) -> list[str]:
    """Return a line that names the unread files, or no line.

    infos: the source's selected objects. used: objects with samples. known: keys of other objects that are read, beside
    `Format.known`.
    """
    used_keys = {info.key for info in used}
    pattern = FORMATS[format].known

    def is_known(key: str) -> bool:
        if known is not None and key in known:
            return True
        return pattern is not None and pattern.search(key) is not None

    unread = sorted(
        info.key
        for info in infos
        if info.key not in used_keys and not is_known(info.key) and not _WITHOUT_DATA.search(info.key)
    )
    if not unread:
        return []
    return [f"files that are not read, because {format} does not know them: {shorten_list(unread)}"]
