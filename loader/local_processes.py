"""This user's processes on this machine, as /proc shows them."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 2**20
"""Bytes of a process's environment or command line that are read; longer ones are cut."""


class Process(NamedTuple):
    pid: int
    """Number of the process."""
    parent: int
    """Number of its parent."""
    command: str
    """Command line without digits: `--rank 1` and `--rank 2` are alike, and so are the pipes of `mp.spawn`."""
    environ: Mapping[str, str]
    """Variables with which it started."""


def own_processes(root: Path) -> Iterator[Process]:
    """Yield this user's processes that can be read."""
    user = os.getuid()
    try:
        folders = [entry for entry in os.scandir(root / "proc") if entry.name.isdecimal()]
    except OSError:  # not Linux
        return
    for folder in folders:
        try:
            if folder.stat().st_uid != user:
                continue
            stat = _head(folder.path, "stat").rpartition(")")[2].split()
            command = _head(folder.path, "cmdline")
            lines = _head(folder.path, "environ").split("\0")
        except OSError:  # it has ended
            continue
        if len(stat) < 2 or not command:  # a zombie has no command line
            continue
        yield Process(
            pid=int(folder.name),
            parent=int(stat[1]),
            command=re.sub(r"\d+", "", command),
            environ=dict(line.split("=", 1) for line in lines if "=" in line),
        )


def _head(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read(MOST_BYTES).decode(errors="replace")
