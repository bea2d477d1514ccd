"""`python -m benchmarks`: measure, and write docs/benchmarks.md. `python -m benchmarks.peers` installs the peers."""

import argparse
import os
import platform
import signal
import sys
import tempfile
from pathlib import Path

from . import alone, page, sections, store, throughput
from .picture import picture
from .rows import ORDER, PEERS, ROWS, Store
from .throughput import Bench, Turns

SLOW_ROUNDS = 3
PAGE = sections.DOCS / sections.READING


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", default=",".join(ORDER), help="of: %(default)s")
    options.add_argument("--peers", default=",".join(PEERS), help="of: %(default)s")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--scale", type=float, default=1, help="data sets of this part of their size")
    options.add_argument("--long", action="store_true", help="also memory over 1e5 steps (minutes)")
    options.add_argument("--folder", type=Path, help="keep the data sets here (5 GB a kind)")
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument(
        "--out", type=Path, help="write the page here; that of a full run is docs/benchmarks.md"
    )
    return options


def main() -> int:
    given = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended and deleted
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text, panels = run(Bench(folder, given.peers.split(","), given.scale), given, keep=bool(given.folder))
    if given.out or command_options(given) in ("", "--long"):
        sections.write("benchmarks", text, given.out)
        if panels:
            (given.out or PAGE).with_suffix(".svg").write_text(picture(panels))
    print(text)
    return 0


def run(bench: Bench, given: argparse.Namespace, keep: bool) -> tuple[str, dict[str, Turns]]:
    """The page, and what its picture shows."""
    lines = [f"{peer} does not take part: {why}\n" for peer, why in bench.failed.items()]
    verdicts: list[str] = []
    costs: list[str] = []
    shuffles: dict[str, float] = {}
    panels: dict[str, Turns] = {}
    names = given.rows.split(",")
    kinds = {name: row.kind for name, row in ROWS.items()} | {"resumed": ROWS["raw"].kind}
    lone = {
        "first_step": lambda: alone.first_step(given.rounds),
        "resumed": lambda: alone.resumed(bench, given.rounds),
    }
    for at, name in enumerate(names):
        if name in lone:
            lines += lone[name]()
            continue
        row = ROWS[name]
        if isinstance(row, Store):
            turns, _, failed = store.measure(bench, row, min(given.rounds, SLOW_ROUNDS))
            if row.resume_at:
                lines += page.resumed(row, turns, failed)
            else:
                lines += page.store(row, turns, failed, bench.mean_bytes(row))
        else:
            turns, spread, failed = throughput.measure(bench, row, given.rounds)
            lines += [f"{row.short}: {name} failed: {why}\n" for name, why in failed.items()]
            if row.limit:
                costs.append(page.throughput(row, turns, bench.mean_bytes(row)))
                panels[row.title] = turns
                for name, groups in page.poor_shuffles(row, turns, spread).items():
                    shuffles[name] = min(groups, shuffles.get(name, groups))
        judged = [line for aim in row.aims if (line := page.verdict(turns, aim)) is not None]
        verdicts += [f"| {'' if n else f'{row.title} '}| {line}" for n, line in enumerate(judged)]
        if not keep and row.kind not in {kinds.get(later) for later in names[at + 1 :]}:
            bench.remove(row.kind)
    if given.long:
        lines += alone.long_run(bench)
    text = page.whole(
        command=f"python -m benchmarks {command_options(given)}".strip(),
        machine=f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores",
        note=given.note,
        versions=bench.versions,
        verdicts=verdicts,
        costs=costs,
        shuffles=shuffles,
        sections=lines,
        picture=(given.out or PAGE).with_suffix(".svg").name if panels else "",
    )
    return text, panels


def command_options(given: argparse.Namespace) -> str:
    """Of the command, what changes the figures."""
    names = ("rows", "peers", "rounds", "scale")
    defaults = vars(parser().parse_args([]))
    changed = [f"--{name} {getattr(given, name)}" for name in names if getattr(given, name) != defaults[name]]
    return " ".join([*changed, *(["--long"] if given.long else [])])


if __name__ == "__main__":
    raise SystemExit(main())
