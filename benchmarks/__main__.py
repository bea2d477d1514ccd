"""`python -m benchmarks [--rounds N] [--images N]`: run everything, write docs/benchmarks.md."""

import argparse
import platform
import statistics
import sys
import tempfile
from pathlib import Path

from . import images

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
PEER = "torch DataLoader over files"
LIMIT = "L2 (bare decode, 2 threads)"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--images", type=int, default=4096, help="images per round and contestant")
    options.add_argument("--out", type=Path, default=PAGE)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runners = images.contestants(Path(folder))
        rates: dict[str, list[float]] = {name: [] for name in runners}
        for number in range(given.rounds + 1):
            for name, run in runners.items():
                rate = run(given.images)
                if number:  # the first round warms caches
                    rates[name].append(rate)
                print(f"round {number} {name}: {rate:.0f}/s", file=sys.stderr)
    given.out.write_text(page(rates, given.rounds, given.images))
    print(given.out.read_text())
    return 0


def page(rates: dict[str, list[float]], rounds: int, n_images: int) -> str:
    """The page docs/benchmarks.md."""

    def ratio(name: str, to: str) -> str:
        pairs = [a / b for a, b in zip(rates[name], rates[to], strict=True)]
        return f"{statistics.median(pairs):.2f} ({min(pairs):.2f}-{max(pairs):.2f})"

    lines = [
        "# Benchmarks",
        "",
        f"Made by `python -m benchmarks --rounds {rounds} --images {n_images}` (`make bench`) on {platform.machine()},",
        f"Python {platform.python_version()}, 2 cores. Contestants take turns inside every round, so a machine whose",
        "speed drifts slows all of them; a ratio is the median over rounds of the ratio",
        "within a round, with its range.",
        "",
        "## Images: 256 px JPEG, decoded, shuffled, batches of 64, 2 workers, warm page cache",
        "",
        "| contestant | images/s (median) | of L2 | of torch DataLoader over files |",
        "| --- | --- | --- | --- |",
    ]
    for name, values in rates.items():
        lines.append(
            f"| {name} | {statistics.median(values):.0f} | {ratio(name, LIMIT)} | {ratio(name, PEER)} |"
        )
    lines += [
        "",
        "L2 decodes the same JPEGs with the same decoder (simplejpeg) on both cores and does nothing else.",
        "The peer reads one file per image with the same decoder in two worker processes.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
