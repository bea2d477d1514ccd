"""Find files below a directory that no listing shows, for callers that must account for every file.

These are unfinished writes and files that are not objects.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator

from ...json_text import is_text
from ..store import TEMPORARY, UNFINISHED, ObjectInfo, Store, key_fault
from .folder_files import FOLDER, NOT_UTF8, disk_error, entry_kind, skip_reason
from .store import LocalStore


def is_unfinished(path: str) -> bool:
    return path.rpartition("/")[2].startswith(TEMPORARY)


def list_with_unfinished(store: Store, prefix: str) -> Iterator[ObjectInfo]:
    return store.list_with_unfinished(prefix) if isinstance(store, LocalStore) else store.list(prefix)


def list_in_place(store: Store, prefix: str, top: str = "") -> Iterator[tuple[ObjectInfo, bool]]:
    """Yield (file, is_link) for the files of `list_with_unfinished`, with links below `top` instead of their files."""
    if isinstance(store, LocalStore):
        return store.list_in_place(prefix, top)
    return ((info, False) for info in store.list(prefix))


def delete_in_place(store: Store, paths: Iterable[str], top: str = "") -> None:
    """Delete paths from `list_in_place`, but nothing that is or lies below a link.

    Raises: InvalidStore for such paths; as `Store.delete_many`.
    """
    if isinstance(store, LocalStore):
        store.delete_in_place(paths, top)
    else:
        store.delete_many(paths)


def skipped_files(folder: str) -> Iterator[tuple[str, str]]:
    r"""Yield (path below `folder`, reason) of files that a listing skips, except unfinished writes.

    A directory represents its content; bytes that are not UTF-8 are written as `\xe9`. Raises: Forbidden; Transient.
    """
    yield from _skipped_inside(folder, "")


def _skipped_inside(folder: str, inside: str) -> Iterator[tuple[str, str]]:
    folders: list[str] = []
    try:
        with os.scandir(os.path.join(folder, inside)) as entries:
            for entry in entries:
                path = inside + entry.name
                if why := _why(entry, path):
                    yield os.fsencode(path).decode(errors="backslashreplace"), why
                elif entry_kind(entry) == FOLDER:
                    folders.append(f"{path}/")
    except FileNotFoundError:
        return  # deleted meanwhile
    except OSError as error:
        if error.errno == errno.ELOOP:
            return  # forty links on the path, where a listing also ends
        raise disk_error("list", os.path.join(folder, inside), error) from error
    for path in folders:
        yield from _skipped_inside(folder, path)


def _why(entry: os.DirEntry[str], path: str) -> str:
    """Return why a listing skips an entry; "" for a file, a folder or an unfinished write."""
    if not is_text(entry.name):
        return NOT_UTF8
    if entry.name.startswith(TEMPORARY):
        if re.fullmatch(UNFINISHED, entry.name) and entry.is_file(follow_symlinks=False):
            return ""
        return f"names that begin with {TEMPORARY!r} are names of unfinished files: rename it"
    if fault := key_fault(path):
        return fault
    return "" if entry_kind(entry) else skip_reason(entry)
