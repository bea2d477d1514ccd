"""The files below a directory in key order, read one directory at a time."""

import logging
import os
from collections.abc import Iterator

from ...json_text import is_text
from ..store import TEMPORARY
from .errors import disk_error

_log = logging.getLogger(__name__)


def walk(
    base: str, prefix: str, start_after: str | None, *, unfinished: bool = False, top: str | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield keys below `base` (it ends in '/') that start with `prefix` and sort after `start_after`, with stats.

    Order is that of the keys as whole strings, so a directory sorts as its name with '/' behind it: 'a.b' < 'a/b'
    because '.' < '/'. Subtrees that cannot match are not read.

    unfinished: also files that a writer has not finished.
    top: a folder, "" or ending in '/', below which no link is followed. A link there is yielded in place of the files
    behind it, with the status of a link, also where it is on the way to `prefix`.

    Raises: Forbidden; Transient.
    """
    folder = prefix[: prefix.rfind("/") + 1] if top is None else top
    yield from _walk(base, folder, prefix, start_after, unfinished, follows=top is None)


def _walk(
    base: str, folder: str, prefix: str, start_after: str | None, unfinished: bool, *, follows: bool
) -> Iterator[tuple[str, os.stat_result]]:
    for key, entry in _entries(base, folder, prefix, start_after or "", unfinished, follows=follows):
        if key.endswith("/"):
            wanted = key.startswith(prefix) or prefix.startswith(key)
            if wanted and (start_after is None or key > start_after or start_after.startswith(key)):
                yield from _walk(base, key, prefix, start_after, unfinished, follows=follows)
        elif key.startswith(prefix) or (not follows and prefix.startswith(f"{key}/")):
            if start_after is not None and key <= start_after:
                continue
            try:
                yield key, entry.stat(follow_symlinks=follows)
            except FileNotFoundError:
                continue  # deleted since the directory was read
            except OSError as error:
                raise disk_error("list", base + key, error) from error


def _entries(
    base: str, folder: str, prefix: str, start_after: str, unfinished: bool, *, follows: bool
) -> list[tuple[str, os.DirEntry[str]]]:
    """Return the entries of a directory that may match, sorted.

    Other names, thousands of them in a log, cost no more than being read.
    """
    found: list[tuple[str, os.DirEntry[str]]] = []
    try:
        with os.scandir(base + folder) as entries:
            for entry in entries:
                path = folder + entry.name
                if not (path.startswith(prefix) or prefix.startswith(path)):
                    continue
                if path + "/" <= start_after and not start_after.startswith(path):
                    continue
                is_file = entry.is_file(follow_symlinks=follows) or (not follows and entry.is_symlink())
                if entry.name.startswith(TEMPORARY) and not (unfinished and is_file):
                    continue
                if not is_text(entry.name):
                    _log.warning("%s%s holds a name that is not UTF-8: %r", base, folder, entry.name)
                    continue
                if entry.is_dir(follow_symlinks=follows):
                    found.append((path + "/", entry))
                elif is_file:
                    found.append((path, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise disk_error("list", base + folder, error) from error
    found.sort(key=lambda item: item[0])
    return found
