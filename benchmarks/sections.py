"""Put what a benchmark command measured into its section of a page of docs, between two marks."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
READING, STORES, PIPELINE = "benchmarks.md", "benchmarks-stores.md", "benchmarks-pipeline.md"
PAGES = {
    "benchmarks": READING,
    "benchmarks.executors": READING,
    "benchmarks.verified": READING,
    "benchmarks.video_reads": READING,
    "benchmarks.run_steps": READING,
    "benchmarks.stores": STORES,
    "benchmarks.checkpoints": STORES,
    "benchmarks.checkpoint_restore": STORES,
    "benchmarks.scale": STORES,
    "benchmarks.fleet_start": STORES,
    "benchmarks.ingest": PIPELINE,
    "benchmarks.exchange": PIPELINE,
    "benchmarks.view": PIPELINE,
    "benchmarks.fleet": PIPELINE,
    "benchmarks.fleet_week": PIPELINE,
}
"""Command -> page that holds its section."""


def marks(command: str) -> tuple[str, str]:
    """Return the comments before and after the section of a command."""
    return f"<!-- python -m {command} -->", f"<!-- end of python -m {command} -->"


def replaced(page: str, command: str, text: str) -> str:
    """Return a page with the section of a command replaced. Raises: ValueError if the page lacks its marks."""
    begin, end = marks(command)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs {begin} and {end} once each")
    if text.startswith("# "):
        text = re.sub(r"^(?=#+ )", "#", text, flags=re.MULTILINE)
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}"


def write(command: str, text: str, out: Path | None = None) -> None:
    """Write a text to `out`, or into the section of its command, headings one level lower."""
    if out:
        out.write_text(text)
        return
    page = DOCS / PAGES[command]
    page.write_text(replaced(page.read_text(), command, text))
