"""What lies below a directory and is in no listing of it: for whoever must leave nothing out without a word."""

import os
import re
from collections.abc import Iterator

from .disk_errors import disk_error
from .keys import TEMPORARY, UNFINISHED, is_text


def unlisted(folder: str) -> Iterator[tuple[str, str]]:
    """(path below `folder`, why it is no object) of all that a listing passes over, but for unfinished writes. A
    directory is named in place of what is in it; bytes that are no UTF-8 are written as `\\xe9`.

    Raises: Forbidden; Transient.
    """
    yield from _below(folder, "")


def _below(folder: str, inside: str) -> Iterator[tuple[str, str]]:
    folders: list[str] = []
    try:
        with os.scandir(os.path.join(folder, inside)) as entries:
            for entry in entries:
                path = inside + entry.name
                if why := _why(entry):
                    yield os.fsencode(path).decode(errors="backslashreplace"), why
                elif entry.is_dir():
                    folders.append(f"{path}/")
    except FileNotFoundError:
        return  # deleted meanwhile
    except OSError as error:
        raise disk_error("list", os.path.join(folder, inside), error) from error
    for path in folders:
        yield from _below(folder, path)


def _why(entry: os.DirEntry[str]) -> str:
    """Why nothing of an entry is listed; "" where it is, or is an unfinished write."""
    if not is_text(entry.name):
        return "its name is not UTF-8, as every key is: rename it"
    if entry.name.startswith(TEMPORARY):
        if re.fullmatch(UNFINISHED, entry.name) and entry.is_file(follow_symlinks=False):
            return ""
        return f"names that begin with {TEMPORARY!r} are those of unfinished files: rename it"
    if entry.is_dir() or entry.is_file():
        return ""
    if entry.is_symlink():
        return "a link to what is not there: mount or restore that, or remove the link"
    return "neither a file nor a folder: move it elsewhere"
