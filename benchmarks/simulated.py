"""The command line of a simulated fleet, and the text of its section in docs."""

import argparse
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import sections
from .throughput import say


def options_of(command: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the options that simulations share."""
    options = argparse.ArgumentParser(prog=f"python -m {command}", description=doc)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--page", action="store_true", help="write the command's section in docs")
    options.add_argument("--note", default="", help="a sentence for the section's head, about the machine")
    options.add_argument("--out", type=Path, help="write here")
    return options


def made_by(options: argparse.ArgumentParser, given: argparse.Namespace, names: Sequence[str]) -> str:
    """Return the first sentence of a section: the command with the options that differ, and the machine."""
    changed = [
        f"--{name.replace('_', '-')} {getattr(given, name):g}"
        for name in names
        if getattr(given, name) != options.get_default(name)
    ]
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return f"Made by `{' '.join([options.prog, *changed])}` on {machine}. {given.note}".rstrip()


def row(*cells: object) -> str:
    """Return a row of a table, and print it: rows take seconds to minutes."""
    text = f"| {' | '.join(map(str, cells))} |"
    say(text)
    return text


def finish(command: str, given: argparse.Namespace, lines: Iterable[str]) -> int:
    """Print a section, and write it where the options say; return the exit status."""
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    if given.page or given.out:
        sections.write(command, text, given.out)
    print(text)
    return 0
