"""The files below a directory in key order, read one directory at a time."""

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...json_text import is_text
from ..refusals import Refuse
from ..store import TEMPORARY, key_fault
from .errors import disk_error

FILE, FOLDER = "file", "folder"
_SNAPSHOT = re.compile(r"(.*/)snapshots/[^/]+/", re.DOTALL)
"""A snapshot of Hugging Face's cache: links to files in "blobs" beside "snapshots"."""


def walk(
    base: str,
    prefix: str,
    start_after: str | None,
    refuse: Refuse,
    *,
    unfinished: bool = False,
    top: str | None = None,
    inside: bool = False,
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield keys below `base` (ends in '/') that start with `prefix` and sort after `start_after`, with stats.

    Keys are ordered as whole strings: 'a.b' < 'a/b'. Subtrees that cannot match are not read.

        refuse: receives each name that is no key, and each link that is not followed.
        unfinished: also yield unfinished files.
        top: a folder, "" or ending in '/', below which links are yielded themselves.
        inside: refuse links that lead out of `base`, or to a folder above them.

    Raises: Forbidden; Transient.
    """
    folder = prefix[: prefix.rfind("/") + 1] if top is None else top
    extent = _extent_of(base) if inside else ()
    tree = _Tree(base, prefix, start_after, refuse, unfinished, top is None, extent)
    if not extent:
        yield from tree.files(folder, ())
    elif tree.holds(real := os.path.realpath(base + folder)):
        yield from tree.files(folder, (real,))
    else:
        refuse(folder.rstrip("/"), _OUTSIDE)


NOT_UTF8 = "its name is not UTF-8, as every key is: rename it"
_OUTSIDE = (
    "a link out of the place: replace it by a copy of its target (cp -rL), or name the target as a place"
)


def _extent_of(base: str) -> tuple[str, ...]:
    """Return the real folders, each ending in '/', that links of a place may lead to."""
    real = os.path.join(os.path.realpath(base), "")
    if snapshot := _SNAPSHOT.fullmatch(real):
        blobs = f"{snapshot[1]}blobs"
        if os.path.realpath(blobs) == blobs:
            return real, f"{blobs}/"
    return (real,)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The arguments of `walk`."""

    base: str
    prefix: str
    start_after: str | None
    refuse: Refuse
    unfinished: bool
    follows: bool
    extent: tuple[str, ...]

    def holds(self, real: str) -> bool:
        return os.path.join(real, "").startswith(self.extent)

    def files(self, folder: str, chain: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the files below a folder. chain: the real paths of it and of those above it, where links are judged."""
        prefix, after = self.prefix, self.start_after
        for key, entry in self._entries(folder):
            if key.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                may_match = may_match and (after is None or key > after or after.startswith(key))
                if may_match and (inner := self._chain_of(key, entry, chain)) is not None:
                    yield from self.files(key, inner)
            elif key.startswith(prefix) or (not self.follows and prefix.startswith(f"{key}/")):
                if after is not None and key <= after:
                    continue
                if self.extent and entry.is_symlink() and not self.holds(os.path.realpath(self.base + key)):
                    self.refuse(key, _OUTSIDE)
                    continue
                try:
                    yield key, entry.stat(follow_symlinks=self.follows)
                except FileNotFoundError:
                    continue  # deleted since the directory was read
                except OSError as error:
                    raise disk_error("list", self.base + key, error) from error

    def _chain_of(self, key: str, entry: os.DirEntry[str], chain: tuple[str, ...]) -> tuple[str, ...] | None:
        if not self.extent:
            return chain
        if not entry.is_symlink():
            return (*chain, os.path.join(chain[-1], entry.name))
        real = os.path.realpath(self.base + key)
        if not self.holds(real):
            self.refuse(key.rstrip("/"), _OUTSIDE)
        elif real in chain:
            self.refuse(key.rstrip("/"), "a link to a folder that it lies in: remove it")
        else:
            return (*chain, real)
        return None

    def _entries(self, folder: str) -> list[tuple[str, os.DirEntry[str]]]:
        prefix, start_after, follows = self.prefix, self.start_after or "", self.follows
        matching: list[tuple[str, os.DirEntry[str]]] = []
        try:
            with os.scandir(self.base + folder) as entries:
                for entry in entries:
                    path = folder + entry.name
                    if not (path.startswith(prefix) or prefix.startswith(path)):
                        continue
                    if path + "/" <= start_after and not start_after.startswith(path):
                        continue
                    kind = kind_of(entry, follows=follows, judged=bool(self.extent))
                    is_file = kind == FILE or (not follows and entry.is_symlink())
                    is_unfinished = entry.name.startswith(TEMPORARY)
                    if is_unfinished and not (self.unfinished and is_file):
                        continue
                    if not is_text(entry.name):
                        named = os.fsencode(path).decode(errors="backslashreplace")
                        self.refuse(named, NOT_UTF8)
                    elif not is_unfinished and (fault := key_fault(path)):
                        self.refuse(path, fault)
                    elif kind == FOLDER:
                        matching.append((path + "/", entry))
                    elif is_file:
                        matching.append((path, entry))
                    elif self.extent:
                        self.refuse(path, unlisted_kind(entry))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            if error.errno == errno.ELOOP:
                return []  # forty links on the way: a link to a folder that it lies in
            raise disk_error("list", self.base + folder, error) from error
        matching.sort(key=lambda item: item[0])
        return matching


def kind_of(entry: os.DirEntry[str], *, follows: bool = True, judged: bool = False) -> str:
    """Return FILE, FOLDER, or "" for anything else, such as a looping link. Raises: OSError.

    judged: "" also for a link with an unreadable target.
    """
    try:
        if entry.is_dir(follow_symlinks=follows):
            return FOLDER
        return FILE if entry.is_file(follow_symlinks=follows) else ""
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG) or (judged and entry.is_symlink()):
            return ""
        raise


def unlisted_kind(entry: os.DirEntry[str]) -> str:
    """Return why an entry that is neither a file nor a folder is not listed."""
    try:
        entry.stat()
    except FileNotFoundError:
        return "a link to what is not there: mount or restore that, or remove the link"
    except OSError as error:
        return f"a link that cannot be followed ({error.strerror}): remove it, or copy in what it leads to"
    return "neither a file nor a folder: move it elsewhere"
