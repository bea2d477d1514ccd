"""Marks of a batch in words: one slot, and several."""

import re
from pathlib import Path

import pytest

from penstock.view.kinds.kind import Mark
from penstock.view.marks import WEIGHTS, SlotFacts, rank_marks
from penstock.view.sections.characters.value_lines import mark_line

PAGE = Path(__file__).parents[2] / "docs" / "viewer.md"


def make_slot(slot, split="train", marks=()):
    marked = {"jpg": [Mark(name=name, text=f"it is {name}", weight=50) for name in marks]}
    return SlotFacts(slot=slot, key=f"k{slot}", hashes={}, marks=marked, provenance={"split": split})


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (["train", "test"], "  ! 1 sample of the split test, not of train  (slot 1)"),
        (["test", "test"], "  ! 2 samples of the split test, not of train  (slots 0, 1)"),
    ],
)
def test_samples_of_another_split_are_counted(splits, said):
    (mark,) = rank_marks([make_slot(i, split) for i, split in enumerate(splits)])
    assert mark_line(mark) == said


@pytest.mark.parametrize(("n", "said"), [(1, ""), (2, " (and 1 more slot)"), (3, " (and 2 more slots)")])
def test_marks_of_one_name_stand_together(n, said):
    (mark,) = rank_marks([make_slot(i, marks=["black"]) for i in range(n)])
    assert mark.text == f"it is black{said}"
    assert mark.slots == tuple(range(n))


def test_page_of_marks_tells_every_mark_and_no_other():
    (section,) = re.findall(r"^## Marks.*?(?=^## )", PAGE.read_text(), re.M | re.S)
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", section, re.M)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(WEIGHTS)
