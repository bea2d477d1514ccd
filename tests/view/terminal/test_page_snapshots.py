"""Pages of the terminal as they look at 80 x 24: letters, colours and their places, held against stored SVG.

`UPDATE_SNAPSHOTS=1 pytest tests/view/terminal/test_page_snapshots.py` writes them anew; look at them before they
are committed.
"""

import os
import re
from pathlib import Path

import pytest

from penstock.view.terminal.addresses import SamplePage, SlotPage, StepPage, VersionPage

FOLDER = Path(__file__).parent / "snapshots"
STEP = StepPage(run="one", step=3)
VERSION = VersionPage(dataset="photos", number=1)
PAGES = {
    "step": (STEP, (), "halves"),
    "step_without_colours": (STEP, (), "shades"),
    "slot": (SlotPage(step=STEP, slot=1), (), "halves"),
    "sample": (SamplePage(version=VERSION, ordinal=2), (), "none"),
    "keys": (STEP, ("question_mark",), "none"),
    "goto": (STEP, ("g",), "none"),
    "exclude": (STEP, ("b", "x"), "none"),
}
VARIES = [
    (re.compile(r"\bp-[0-9a-f]{12,64}"), "p-plan"),
    (re.compile(r"\bv-[0-9a-f]{12,64}"), "v-version"),
    (re.compile(r"\b[0-9a-f]{16,64}\b"), "digest"),
    (re.compile(r"p-[0-9a-f]{11}…"), "p-plan…"),
    (re.compile(r"\d{4}-\d\d-\d\d.\d\d:\d\d(:\d\d)?( UTC)?"), "time"),
    (re.compile(r"/[^<]*/view\d+/root"), "folder"),
    (re.compile(r"[0-9a-f]+/digest/"), "part/"),
    (re.compile(r"wait_ms[^<]*"), "wait_ms"),
    (re.compile(r"terminal-\d+-"), "terminal-"),
]
"""Hashes, times and folders differ from one run to the next."""


def normalize_svg(svg: str) -> str:
    """A screenshot without whatever differs from run to run, a line per text."""
    svg = svg.replace("&#160;", " ")
    for pattern, word in VARIES:
        svg = pattern.sub(word, svg)
    return re.sub(r' textLength="[^"]*"', "", svg).replace("><", ">\n<")


@pytest.mark.parametrize("name", PAGES)
def test_page_looks_as_it_did(look, name: str) -> None:
    place, keys, pictures = PAGES[name]
    found: list[str] = []

    async def test(terminal) -> None:
        await terminal.press(*keys)
        found.append(normalize_svg(terminal.app.export_screenshot(title="penstock")))

    look(test, place, recipe="tests.view.recipes:recipe", pictures=pictures)
    file = FOLDER / f"{name}.svg"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(found[0])
    assert found[0] == file.read_text()


def test_every_snapshot_is_of_a_page() -> None:
    assert {one.stem for one in FOLDER.glob("*.svg")} == set(PAGES)
