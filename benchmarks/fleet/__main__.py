"""`python -m benchmarks.fleet`: what data jobs cost beside their units. Writes docs/benchmarks-pipeline.md.

`--cluster FILE` has a cluster compute the units too: a packages line of its file names benchmarks.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import sections
from ..throughput import say
from ..view.rows import Row, table_lines
from . import kills, rows

MEASURED: dict[str, Callable[[Path, rows.Sizes], Iterator[Row]]] = {
    "cost": rows.own_cost,
    "attach": rows.reattachment,
    "wait": rows.waiting,
    "kills": kills.under_kills,
    "cancel": kills.cancelled,
    "slurm": kills.slurm_cost,
    "ray": kills.ray_cost,
}
"""Name -> function that measures its rows."""
HEAD = """# Data jobs

Made by `{command}` on {machine}. {note}

Units of [data jobs](clusters.md) sleep for a millisecond; the store is a folder.

"""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    options.add_argument("--rows", default=",".join(MEASURED), help="of: %(default)s")
    options.add_argument("--units", type=int, default=rows.Sizes.units)
    options.add_argument("--blocks", type=int, default=rows.Sizes.blocks)
    options.add_argument("--waited", type=int, default=rows.Sizes.waited)
    options.add_argument("--rounds", type=int, default=rows.Sizes.rounds)
    options.add_argument("--cluster", default="", metavar="FILE")
    options.add_argument("--slurm", action="store_true", help="also on a Slurm of four nodes, started here")
    options.add_argument("--ray", action="store_true", help="also on a Ray of three nodes, started here")
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    given = options.parse_args()
    names = ("units", "blocks", "waited", "rounds", "cluster", "slurm", "ray")
    sizes = rows.Sizes(**{name: getattr(given, name) for name in names})
    changed = [
        f"--{name}" + ("" if getattr(given, name) is True else f" {getattr(given, name)}")
        for name in ("rows", *names)
        if getattr(given, name) != options.get_default(name)
    ]
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.rows.split(","):
            for row in MEASURED[name](Path(folder), sizes):
                say(str(row))
                found.append(row)
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    command = " ".join(["python -m benchmarks.fleet", *changed])
    lines = table_lines(HEAD, found, command=command, machine=machine, note=given.note)
    text = "\n".join(lines) + "\n"
    sections.write("benchmarks.fleet", text, given.out)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
