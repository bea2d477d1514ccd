"""`python -m benchmarks.text [--before CHECKOUT]`: packed sequences with a mask, beside a greedy loop in memory.

Processor time of a sequence, of all threads. Each turn is a process of its own, and contestants take turns; figures are
medians of the rounds. The loop has its documents in memory as arrays: it reads, verifies and shuffles nothing. With
--before, the penstock of another checkout is one more contestant. It also counts the places that groups fill.
All of it goes to docs/benchmarks-pipeline.md.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loader
from penstock.packing.pack import pack_documents

from . import sections, together_fill
from .contest import ONE_THREAD, ROOT
from .page import judged, shown
from .text_turn import GREEDY, LAID_OUT, MASK, PENSTOCK, STORED, TOKENS, stored_dataset, write

BEFORE = "penstock before"
LENGTHS = (2_048, 8_192)
"""Tokens of a sequence."""
KINDS = {"even": "200 to 400 tokens", "long-tailed": "1 to 2,048 tokens, most below 200"}
"""Documents of 300 tokens on average -> their lengths."""
AIM_US = {2_048: 65}
"""Sequence length -> most microseconds of processor time for a sequence."""
EARLIER_US = 330
"""Microseconds of a packed sequence of 2,048 tokens in the release that had no stored ones."""
AIM_STORED = {STORED: 50, LAID_OUT: 20}
"""Contestant -> least ratio of `EARLIER_US` to its time for 2,048 tokens."""
AIM_FASTER = 2.0
"""Least ratio of the earlier checkout's time to this one's."""

Rows = dict[tuple[int, str], dict[str, list[float]]]
"""(length, kind) -> contestant -> microseconds of each round."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="python -m benchmarks.text", description=__doc__)
    options.add_argument("--documents", type=int, default=20_000, help="of each kind (%(default)s)")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--groups", type=int, default=together_fill.N_GROUPS, help="(%(default)s)")
    options.add_argument("--before", type=Path, help="a checkout of an earlier penstock")
    options.add_argument("--note", default="", help="a sentence about the machine, such as: Busy.")
    options.add_argument("--out", type=Path, help="write here, not to docs/benchmarks-pipeline.md")
    return options


def main() -> int:
    arguments = parser().parse_args()
    checkouts = {GREEDY: ROOT, PENSTOCK: ROOT, STORED: ROOT, LAID_OUT: ROOT}
    if arguments.before is not None:
        checkouts[BEFORE] = arguments.before.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind in KINDS:
            write(folder / kind, kind, arguments.documents)
            store_sequences(folder / kind)
        rows = measure(checkouts, folder, arguments.documents, arguments.rounds)
    text = section(rows, arguments)
    sections.write("benchmarks.text", text, arguments.out)
    print(text)
    return 0


def store_sequences(folder: Path) -> None:
    """Store the sequences of each length of `text@1`."""
    root = loader.Root(folder)
    for length in LENGTHS:
        request = loader.pack(TOKENS, length, beside={MASK: 0})
        pack_documents(root, "text@1", stored_dataset(length), request)


def measure(
    checkouts: dict[str, Path],
    folder: Path,
    n_documents: int,
    n_rounds: int,
) -> Rows:
    """Return what each contestant took. checkouts: contestant -> the checkout whose `loader` it imports."""
    rows: Rows = {}
    for length in LENGTHS:
        for kind in KINDS:
            row: dict[str, list[float]] = {contestant: [] for contestant in checkouts}
            rows[length, kind] = row
            for contestant, us in turns(checkouts, folder, kind, length, n_documents, n_rounds):
                row[contestant].append(us)
    return rows


def turns(
    checkouts: dict[str, Path],
    folder: Path,
    kind: str,
    length: int,
    n_documents: int,
    n_rounds: int,
) -> Iterator[tuple[str, float]]:
    """Yield (contestant, microseconds of a sequence), round by round."""
    n_tokens: set[int] = set()  # sampled tokens, of which all contestants must deliver the same number
    for _ in range(n_rounds):
        for contestant, checkout in checkouts.items():
            task = {
                "contestant": contestant,
                "folder": str(folder),
                "kind": kind,
                "length": length,
                "n_documents": n_documents,
            }
            result = turn(checkout, task)
            if contestant != STORED:  # it delivers no mask
                n_tokens.add(result["tokens"])
            if len(n_tokens) > 1:
                raise SystemExit(
                    f"{contestant} delivered {result['tokens']} tokens of the mask, not {n_tokens}"
                )
            yield contestant, 1e6 * result["cpu_s"] / result["sequences"]


def turn(checkout: Path, task: dict[str, Any]) -> dict[str, Any]:
    """Return what a contestant reports. Raises: SystemExit if it imported another checkout, or failed."""
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "benchmarks" / "text_turn.py"), json.dumps(task)],
        cwd=checkout,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{task['contestant']} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    if result["checkout"] != str(checkout):
        raise SystemExit(f"{task['contestant']} imported {result['checkout']}, not {checkout}")
    return result


def section(rows: Rows, arguments: argparse.Namespace) -> str:
    """Return the section of the page as Markdown."""
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    lines = [
        "# Packed sequences",
        "",
        f"Made by `{command(arguments)}` on {machine}. {arguments.note}".strip(),
        "Microseconds of processor time for a sequence of documents with a mask, from local files. The greedy loop has",
        "its documents in memory. The aims: "
        f"{AIM_US[2_048]} us at 2,048 tokens, and {AIM_FASTER:g} times as fast as the earlier checkout.",
        "",
        "| tokens of a sequence, documents | penstock | greedy loop | times as fast as the earlier checkout |",
        "| --- | --- | --- | --- |",
    ]
    for (length, kind), row in rows.items():
        us = statistics.median(row[PENSTOCK])
        ours = f"{us:,.0f}"
        if length in AIM_US:
            ours = judged(ours, us <= AIM_US[length])
        faster = ""
        if BEFORE in row:
            ratios = [before / now for before, now in zip(row[BEFORE], row[PENSTOCK], strict=True)]
            faster = judged(shown(ratios), statistics.median(ratios) >= AIM_FASTER)
        greedy = f"{statistics.median(row[GREEDY]):,.0f}"
        lines.append(f"| {length:,}; {KINDS[kind]} | {ours} | {greedy} | {faster} |")
    return "\n".join([*lines, "", stored_line(rows), "", *fill_rows(arguments.groups), ""])


def stored_line(rows: Rows) -> str:
    """Return the line on stored sequences of 2,048 tokens, in the first epoch of a process."""
    cells = []
    for contestant, title in ((STORED, "tokens only"), (LAID_OUT, "with mask and layout")):
        times = [statistics.median(rows[2_048, kind][contestant]) for kind in KINDS]
        us = statistics.mean(times)
        ratio = EARLIER_US / us
        least = AIM_STORED[contestant]
        times_as_fast = judged(f"{ratio:.0f} times", ratio >= least)
        cells.append(f"{title} {us:.1f} us, {times_as_fast} as fast (≥ {least})")
    return f"Stored, 2,048 tokens, against packing's earlier {EARLIER_US} us: {'; '.join(cells)}."


def fill_rows(n_groups: int) -> Iterator[str]:
    """Yield lines on the places that groups of documents fill."""
    yield f"Places that `pack(together=)` fills, and their share of plain packing's (≥ {together_fill.AIM}):"
    yield ""
    for draw in together_fill.DRAWS:
        fill = together_fill.fill(draw, n_groups)
        ratio = judged(f"{fill.ratio:.3f}", fill.ratio >= together_fill.AIM)
        yield f"- {draw.title}: {fill.together:.3f}, {ratio}"


def command(arguments: argparse.Namespace) -> str:
    words = ["python -m benchmarks.text"]
    defaults = parser().parse_args([])
    for option in ("documents", "rounds", "groups"):
        value = getattr(arguments, option)
        if value != getattr(defaults, option):
            words.append(f"--{option} {value}")
    if arguments.before is not None:
        words.append("--before CHECKOUT")
    return " ".join(words)


if __name__ == "__main__":
    raise SystemExit(main())
