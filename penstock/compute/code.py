"""Hash the source tree and list library releases. Both must match the submitter's."""

import hashlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

OURS = ("loader", "penstock", "resources", "assets")
"""Our packages, in the order of their imports."""


def python_release() -> str:
    """Return Python's minor release: '3.11'."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def source_hash(work_place: str) -> str:
    """Return the SHA-256 (hex) of the Python files that a work can import.

    Other packages do not count: whether they can be imported depends on the current folder.

    work_place: 'module:name'.
    """
    sha256 = hashlib.sha256()
    own = work_place.partition(":")[0].partition(".")[0]
    ours = OURS[: OURS.index(own) + 1] if own in OURS else OURS
    for package in sorted({*ours, own}):
        for name, path in _files(package):
            of_file = hashlib.sha256(path.read_bytes()).hexdigest()
            sha256.update(f"{package}/{name}\0{of_file}\0".encode())
    return sha256.hexdigest()


def libraries_here(names: Sequence[str]) -> dict[str, str]:
    """Return distribution -> installed release, "" if none is installed."""
    releases = {}
    for name in names:
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            releases[name] = ""
    return releases


def _files(package: str) -> list[tuple[str, Path]]:
    spec = find_spec(package)
    if spec is None:
        return []
    if not spec.submodule_search_locations:
        return [(package, Path(spec.origin))] if spec.origin else []
    files: dict[str, Path] = {}
    for folder in map(
        Path, spec.submodule_search_locations
    ):  # the first folder wins, as it does for an import
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")} | files
    return sorted(files.items())
