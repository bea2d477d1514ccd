"""Put what a benchmark command measured into its section of a page of docs, between two marks."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
READING, STORES, PIPELINE = "benchmarks.md", "benchmarks-stores.md", "benchmarks-pipeline.md"
PAGES = {
    "benchmarks": READING,
    "benchmarks.executors": READING,
    "benchmarks.items": READING,
    "benchmarks.verified": READING,
    "benchmarks.video_reads": READING,
    "benchmarks.run_steps": READING,
    "benchmarks.stores": STORES,
    "benchmarks.checkpoints": STORES,
    "benchmarks.checkpoint_restore": STORES,
    "benchmarks.scale": STORES,
    "benchmarks.fleet_start": STORES,
    "benchmarks.cluster": STORES,
    "benchmarks.discovery": PIPELINE,
    "benchmarks.arrival": PIPELINE,
    "benchmarks.pipeline": PIPELINE,
    "benchmarks.ingest": PIPELINE,
    "benchmarks.exchange": PIPELINE,
    "benchmarks.text": PIPELINE,
    "benchmarks.text_copies": PIPELINE,
    "benchmarks.text_overlap": PIPELINE,
    "benchmarks.rollouts": PIPELINE,
    "benchmarks.view": PIPELINE,
    "benchmarks.search": PIPELINE,
    "benchmarks.maps": PIPELINE,
    "benchmarks.fleet": PIPELINE,
    "benchmarks.fleet_week": PIPELINE,
}
"""Command -> page that holds its section."""


END = "<!-- end -->"
"""Comment after a section."""


def mark(command: str) -> str:
    """Return the comment before the section of a command."""
    return f"<!-- {command} -->"


def replaced(page: str, command: str, text: str) -> str:
    """Return a page with the section of a command replaced. Raises: ValueError if the page lacks its marks."""
    begin = mark(command)
    before, _, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not end or begin in rest or "<!-- " in rest.partition(END)[0]:
        raise ValueError(f"the page needs {begin} once, and {END} behind its section")
    if text.startswith("# "):
        text = re.sub(r"^(?=#+ )", "#", text, flags=re.MULTILINE)
    return f"{before}{begin}\n{text.strip()}\n{END}{after}"


def write(command: str, text: str, out: Path | None = None) -> None:
    """Write a text to `out`, or into the section of its command, headings one level lower."""
    if out:
        out.write_text(text)
        return
    page = DOCS / PAGES[command]
    page.write_text(replaced(page.read_text(), command, text))
