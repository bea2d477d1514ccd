"""Values of JSON and class labels."""

import numpy as np
import pytest
import torch

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds.json_value import JSON

FACTS = Facts(field="meta.json")
LABELS = Facts(field="cls", labels=["cat", "dog"])


def test_line_per_value() -> None:
    value = {"a": [1, None, True], "b": {"c": 0.5}, "d": [], "e": np.zeros((2, 3))}
    assert JSON.lines(value, FACTS) == (
        "{",
        '  "a": [',
        "    1",
        "    null",
        "    true",
        "  ]",
        '  "b": {',
        '    "c": 0.5',
        "  }",
        '  "d": []',
        '  "e": float64 [2, 3]',
        "}",
    )


def test_what_holds_itself_ends() -> None:
    value: list = []
    value.append(value)
    assert JSON.lines(value, FACTS)[-1] == "]"
    assert len(JSON.lines(value, FACTS)) == 25
    assert JSON.marks(value, FACTS) == ()


def test_long_list_ends() -> None:
    lines = JSON.lines(list(range(10**6)), FACTS)
    assert (len(lines), lines[-1]) == (201, "…")


@pytest.mark.parametrize("one", [1, np.int64(1), np.array(1), torch.tensor(1), torch.tensor([1])])
def test_label_has_its_name(one) -> None:
    assert find_kind(one, LABELS) is JSON
    assert JSON.lines(one, LABELS) == ("1: dog",)
    assert JSON.marks(one, LABELS) == ()
    named = Facts(field="species", labels={1: "wolf"})
    assert JSON.lines(one, named) == ("1: wolf",)
    top_folder = Facts(field="cls", labels=["a", ""])
    assert JSON.lines(one, top_folder) == ("1: ''",)


@pytest.mark.parametrize("one", [2, -1, np.int64(2)])
def test_label_out_of_range_is_marked(one) -> None:
    (found,) = JSON.marks(one, LABELS)
    assert (found.name, found.text) == ("out_of_range", f"label {one} is none of the 2 classes")


def test_without_names_no_label_is_out_of_range() -> None:
    assert JSON.marks(7, Facts(field="cls")) == ()
    assert JSON.lines(7, Facts(field="cls")) == ("7",)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([1.0, {"a": float("nan")}], ["nan"]),
        (float("-inf"), ["infinite"]),
        ({}, ["empty"]),
        ({"a": 1.5, "b": [0, None]}, []),
        (0, []),
    ],
)
def test_marks(value, names) -> None:
    assert [one.name for one in JSON.marks(value, FACTS)] == names
