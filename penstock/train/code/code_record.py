"""The record of the code of each start: commit, changes since, and the SHA-256 of each file.

trainings/<run>/code/<n>.json             of start n: commit, folder, SHA-256 of its list of files
trainings/<run>/code/<sha256>.files.json  the list, path -> SHA-256; equal code has one
trainings/<run>/code/<sha256>.diff        what `git diff HEAD` printed
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loader.dataset.log.entries import canonical
from loader.errors import AlreadyExists, Corrupt, ObjectNotFound
from loader.redaction import redact
from loader.storage import ObjectInfo, Store

from ..record_objects.json_object import read_object
from .code_files import code_files, code_root, commit, file_sha256, git, script_folder

MOST_DIFF_BYTES = 2**20
"""Most bytes of a diff that are stored."""
MOST_LIST_BYTES = 4 * 2**20
"""Larger lists of files are not read: a file has about 120 bytes."""
MOST_STARTS = 100
"""Starts whose code is read for one answer: the newest ones."""
SHOWN = 5
"""Files that a line names."""
_START = re.compile(r"([0-9]{6})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCode:
    """The code of a start."""

    commit: str
    """Commit of its repository, with -dirty if files differ; "" without one."""
    folder: str
    """Folder on the first rank's node."""
    sha256: str
    """SHA-256 of the list of files."""

    @property
    def text(self) -> str:
        """The code as words of a line."""
        digest = self.sha256[:12]
        if not self.commit:
            return f"files {digest}"
        return f"commit {self.commit}, files {digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCode:
    """The code of this process's script."""

    start: StartCode
    """Commit, folder and SHA-256."""
    files: bytes
    """The list of files, as JSON."""
    diff: bytes
    """Output of `git diff HEAD` without secrets in URLs; b"" for none."""


def code_of_script() -> ScriptCode | None:
    """Return the code of this process's script; None if its folder has too many files."""
    root = code_root(script_folder())
    digests = code_files(root)
    if not digests:
        return None
    files = canonical({"format": 1, "files": digests})
    head = commit(root)
    diff = b""
    if head.endswith("-dirty"):
        text = git(root, "diff", "HEAD")
        # A remote's URL may have a password, and the record is for others to read.
        data = redact(text).encode(errors="replace")
        diff = data[:MOST_DIFF_BYTES]
    sha256 = hashlib.sha256(files).hexdigest()
    start = StartCode(commit=head, folder=str(root), sha256=sha256)
    return ScriptCode(start=start, files=files, diff=diff)


class CodeRecord:
    """The code of a run's starts."""

    def __init__(self, store: Store, prefix: str) -> None:
        """prefix: of the run's record."""
        self._store = store
        self._folder = f"{prefix}code/"

    def put(self, attempt: int, code: ScriptCode) -> None:
        """Store the code of a start."""
        sha256 = code.start.sha256
        self._put_once(f"{sha256}.files.json", code.files)
        if code.diff:
            self._put_once(f"{sha256}.diff", code.diff)
        body = {"format": 1, **asdict(code.start)}
        data = canonical(body)
        # Last: a start names a list only once it is stored.
        self._put_once(f"{attempt:06d}.json", data)

    def _put_once(self, name: str, data: bytes) -> None:
        key = f"{self._folder}{name}"
        try:
            self._store.put_if_absent(key, data)
        except AlreadyExists:  # by an earlier start, or a request that was repeated
            return

    def starts(self) -> dict[int, StartCode]:
        """Return number -> code of the newest starts that recorded it. Raises: Corrupt."""
        listed: dict[int, ObjectInfo] = {}
        objects = self._store.list(self._folder)
        for info in objects:
            name = info.key.removeprefix(self._folder)
            match = _START.fullmatch(name)
            if match:
                number = int(match[1])
                listed[number] = info
        numbers = sorted(listed)
        starts: dict[int, StartCode] = {}
        newest = numbers[-MOST_STARTS:]
        for number in newest:
            info = listed[number]
            starts[number] = read_object(
                self._store,
                info.key,
                "code of a start",
                _parse_start,
                nbytes=info.nbytes,
            )
        return starts

    def files(self, code: StartCode) -> dict[str, str]:
        """Return path -> SHA-256 of the files of a start; {} if the list is not there. Raises: Corrupt."""
        key = f"{self._folder}{code.sha256}.files.json"
        try:
            return read_object(
                self._store,
                key,
                "list of files",
                _parse_files,
                most=MOST_LIST_BYTES,
            )
        except ObjectNotFound:
            return {}

    def lines(self) -> dict[int, str]:
        """Return start -> words about its code, and what differs from the start before, or from this folder now.

        The newest start is compared with the current folder if it ran from there. Raises: StoreError.
        """
        lines: dict[int, str] = {}
        earlier: StartCode | None = None
        try:
            starts = self.starts()
            for number, code in starts.items():
                words = code.text
                if earlier is not None and earlier.sha256 != code.sha256:
                    before = self.files(earlier)
                    after = self.files(code)
                    changed = _changed_names(before, after)
                    words += f"; changed: {changed}"
                lines[number] = words
                earlier = code
            if earlier is not None:
                files = self.files(earlier)
                newest = max(lines)
                lines[newest] += _current_changes(files, earlier)
        except Corrupt as error:  # the code of a start is no reason to hide its run
            lines[0] = str(error)
        return lines


def _parse_start(body: dict[str, Any]) -> StartCode:
    sha256 = str(body["sha256"])
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"sha256 = {sha256[:80]!r}")
    head = str(body["commit"])
    folder = str(body["folder"])
    return StartCode(commit=head[:100], folder=folder, sha256=sha256)


def _parse_files(body: dict[str, Any]) -> dict[str, str]:
    files: dict[str, str] = {}
    listed = body["files"]
    for path, sha256 in listed.items():
        files[str(path)] = str(sha256)
    return files


def _current_changes(files: Mapping[str, str], code: StartCode) -> str:
    """Return what this folder has changed since a start; "" if nothing, or if the start ran elsewhere."""
    here = Path.cwd().resolve()
    root = Path(code.folder)
    around = [here, *here.parents]
    # A record may name any folder: only one around the person's own is read.
    if root not in around:
        return ""
    now: dict[str, str] = {}
    for path in files:
        file = root / path
        if ".." not in file.parts and root in file.parents:
            now[path] = file_sha256(file)
    if now == files:
        return ""
    words = _changed_names(files, now)
    return f"; edited since: {words}"


def _changed_names(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the names of files that differ, as words."""
    paths = before.keys() | after.keys()
    changed = list[str]()
    for path in sorted(paths):
        if before.get(path) != after.get(path):
            changed.append(path)
    shown = changed[:SHOWN]
    words = ", ".join(shown)
    more = len(changed) - SHOWN
    if more > 0:
        words += f" and {more} more"
    return words or "a file whose list is not there"
