"""Import path of worker processes: the caller's, with the folders of the code location that it loaded.

Dagster extends `sys.path` only while it loads a code location. Steps run afterwards, and so do their workers.
"""

import os
import sys

_folders: list[str] = []
"""Folders of loaded code locations."""


def keep_import_path() -> None:
    """Let workers that start from now on import from every folder of the present `sys.path`."""
    for folder in _absolute():
        if folder not in _folders:
            _folders.append(folder)


def restore_import_path() -> None:
    """Append the kept folders to this process's own `sys.path`, for imports within functions."""
    sys.path[:] = import_path()


def import_path() -> list[str]:
    """Return `sys.path` with absolute folders, followed by the kept folders, which hide nothing."""
    path = _absolute()
    return path + [folder for folder in _folders if folder not in path]


def code_folders() -> list[str]:
    """Return the kept folders outside the Python environment, for nodes that share this machine's folders."""
    own = os.path.join(sys.prefix, "")
    base = os.path.join(sys.base_prefix, "")
    folders = filter(os.path.isdir, _folders)
    return [folder for folder in folders if not folder.startswith((own, base))]


def _absolute() -> list[str]:
    path = []
    for entry in sys.path:
        folder = entry or os.getcwd()
        if os.path.isdir(folder):  # otherwise the key of an import hook, such as an editable install's
            folder = os.path.abspath(folder)
        path.append(folder)
    return path
