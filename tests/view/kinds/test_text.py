"""Text and other values: shown to their limits, faults marked."""

import numpy as np
import pytest

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds.text import OTHER, TEXT

FACTS = Facts(field="caption.txt")


def test_lines_and_blanks_stay() -> None:
    assert TEXT.lines("def f():\n\treturn  1\n", FACTS) == ("20 characters", "def f():", "\treturn  1", "")


def test_long_text_says_that_it_continues() -> None:
    shown = TEXT.lines("word " * 100_000, FACTS)
    assert len(shown) == 3
    assert shown[1].endswith("…")
    assert shown[2] == "… 500,000 characters in all"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["empty"]),
        (" \n\t", ["empty"]),
        ("caf\ufffd", ["replaced_letters"]),
        ("invoice\u202egpj.exe", ["hidden_letters"]),
        ("a\u200bb", ["hidden_letters"]),
        ("A cat.\n\tशब्द e\u0301 👨\u200d👩\u200d👧", []),
    ],
)
def test_marks(text, names) -> None:
    assert [one.name for one in TEXT.marks(text, FACTS)] == names


def test_bytes_are_shown_in_hex() -> None:
    assert OTHER.lines(b"\x00abc\xff", Facts(field="bin")) == (
        "5 bytes (5 B)",
        "0000  00 61 62 63 ff                                   .abc.",
    )


def test_array_of_no_numbers_is_shown_by_its_shape_and_bytes() -> None:
    lines = OTHER.lines(np.array(["ab"]), Facts(field="x"))
    assert lines[0] == "<U2 [1]"
    assert lines[1].startswith("0000  61 00 00 00 62")


def test_object_is_named_and_not_asked() -> None:
    class Hostile:
        def __repr__(self):
            raise RuntimeError

        __str__ = __len__ = __repr__

    (line,) = OTHER.lines(Hostile(), Facts(field="x"))
    assert line.endswith("Hostile")
    assert find_kind(Hostile(), Facts(field="x")) is OTHER
