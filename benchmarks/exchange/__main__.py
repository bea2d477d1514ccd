"""`python -m benchmarks.exchange`: other people's formats, registered, trained on, imported and exported.

Minutes, and some 16 GB in a folder for a moment. Writes docs/benchmarks-pipeline.md. `--samples 1000000` and
`--documents 100000000` register as many as the design's rows have. webdataset, streaming and datasets themselves take
part where `python -m benchmarks.peers webdataset streaming hf_datasets` has installed them.
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from .. import sections
from ..throughput import say
from ..view.rows import Row, table_lines
from . import formats, rows, tables

MEASURED: dict[str, Callable[[Path, rows.Sizes], Iterator[Row]]] = {
    "megatron": rows.megatron,
    "register": rows.registration,
    "small": rows.small_members,
    "large": rows.large_members,
    "load": rows.loading,
    "parquet": tables.measured,
    "import": rows.imports,
    "import-disk": rows.imports_of_disk,
    "export": rows.exports,
    "formats": formats.formats,
}
"""Name -> function that measures its rows: another row is a line here."""

HEAD = """# Exchange

Made by `{command}` on {machine}. {note}

Files are in the page cache, but for rows "from the disk". Buckets answer after 20 ms, and share the cores. HF streaming
fills its buffer before its turn, hence its range.

"""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=__doc__)
    options.add_argument("--rows", default=",".join(MEASURED), help="of: %(default)s")
    options.add_argument("--samples", type=int, default=rows.Sizes.samples, help="to register")
    options.add_argument("--documents", type=int, default=rows.Sizes.documents, help="to register")
    options.add_argument("--photos", type=int, default=rows.Sizes.photos, help="to load, import and export")
    options.add_argument("--rounds", type=int, default=rows.Sizes.rounds)
    options.add_argument("--folder", type=Path, help="keep the data here")
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument(
        "--out", type=Path, help="write the page here (default: docs/benchmarks-pipeline.md)"
    )
    given = options.parse_args()
    sizes = rows.Sizes(
        samples=given.samples, documents=given.documents, photos=given.photos, rounds=given.rounds
    )
    changed = [
        f"--{name} {getattr(given, name)}"
        for name in ("rows", "samples", "documents", "photos", "rounds")
        if getattr(given, name) != options.get_default(name)
    ]
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for name in given.rows.split(","):
            for row in MEASURED[name](folder, sizes):
                say(str(row))
                found.append(row)
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    text = page_of(found, " ".join(["python -m benchmarks.exchange", *changed]), machine, given.note)
    sections.write("benchmarks.exchange", text, given.out)
    print(text)
    return 0


def page_of(found: list[Row], command: str, machine: str, note: str) -> str:
    """The page."""
    rows = [row for row in found if row.unit != formats.MINUTES]
    lines = table_lines(HEAD, rows, command=command, machine=machine, note=note)
    imports = sorted((median(row.values), row.what) for row in found if row.unit == formats.MINUTES)
    if imports:
        each = ", ".join(f"{what} {minutes:.0f}" for minutes, what in imports)
        lines += ["", f"An import takes, in minutes a TB: {each}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
