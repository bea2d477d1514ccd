"""The files of a training's code: all that git does not ignore, or without git all of the script's folder."""

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from loader.dataset.log.marker import FOLDERS, MARKER

GIT_S = 10.0
"""Seconds that git has."""
MOST_FILES = 5_000
"""More files are not a folder of code."""
LARGE_BYTES = 2**20
"""Larger files are not code: they are left out."""
STORED_FOLDERS = {prefix.rstrip("/") for prefix in FOLDERS}
"""Folders of a root's objects."""


def script_folder() -> Path:
    """Return the folder of the running script, or else the current one."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if not file:
        return Path.cwd()
    script = Path(file).resolve()
    return script.parent


def commit(folder: Path | None = None) -> str:
    """Return the commit of a folder's repository, with -dirty if files differ; "" without one. None: the script's."""
    if folder is None:
        folder = script_folder()
    # --exclude=* ignores all tags, so the answer is always a commit.
    text = git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return text.strip()


def git(folder: Path, *words: str) -> str:
    """Return what git prints about a folder; "" if it fails."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="surrogateescape")


def code_root(folder: Path) -> Path:
    """Return the top of a folder's repository; the folder itself without one."""
    top = git(folder, "rev-parse", "--show-toplevel")
    if not top:
        return folder
    return Path(top.rstrip("\n"))


def code_files(root: Path) -> dict[str, str]:
    """Return path -> SHA-256 of the small files of a folder of code; {} if it has more than `MOST_FILES`."""
    digests: dict[str, str] = {}
    for number, path in enumerate(list_paths(root)):
        if number == MOST_FILES:
            return {}
        sha256 = file_sha256(root / path)
        if sha256:
            digests[path] = sha256
    return digests


def list_paths(root: Path) -> Iterable[str]:
    """Return the paths below a folder that git does not ignore; without git, all outside of hidden folders.

    Objects that penstock stores in a root below the folder are not code: each start and each checkpoint changes some.
    """
    # -z: git otherwise quotes names with special characters.
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if not listed:
        return _walk(root)
    paths = listed.rstrip("\0").split("\0")
    stored = []
    markers = [path for path in paths if os.path.basename(path) == MARKER]
    for path in markers:
        place = path.removesuffix(MARKER)
        stored.append(path)
        stored.extend(place + folder for folder in FOLDERS)
    prefixes = tuple(stored)
    return [path for path in paths if not path.startswith(prefixes)]


def _walk(root: Path) -> Iterator[str]:
    """Yield the paths below a folder, but none below a hidden folder, one of compiled code, or of a root's objects."""
    for folder, names, files in os.walk(root):
        no_code = set()
        for name in names:
            if name.startswith((".", "__pycache__")):
                no_code.add(name)
        if MARKER in files:
            files.remove(MARKER)
            no_code.update(STORED_FOLDERS)
        # os.walk goes into the folders that stay in this list.
        names[:] = sorted(set(names) - no_code)
        for name in files:
            path = os.path.join(folder, name)
            # git's paths are relative, too.
            relative = os.path.relpath(path, root)
            yield relative


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a small regular file; "" for any other."""
    try:
        # Not stat: a link may lead out of the folder.
        facts = path.lstat()
        is_regular = stat.S_ISREG(facts.st_mode)
        if not is_regular or facts.st_size > LARGE_BYTES:
            return ""
        data = path.read_bytes()
    except OSError:  # it was deleted meanwhile, or is forbidden
        return ""
    return hashlib.sha256(data).hexdigest()
