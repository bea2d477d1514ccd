"""Work of the interpreter per item, in calls of functions and of C: the same on any machine."""

import sys
from collections import Counter

import numpy as np
import pytest
import torch

import loader
import loader.native

FEW, MANY = 8, 56
"""Items of a batch. Two batches differ in the work on the items in between."""
IN_PYTHON = 5
"""Calls per column where no compiler was: each item is a checksum of its own there."""


class Rows:
    """Small items of one form."""

    def __init__(self, form):
        rows = np.arange(8 * 3 * MANY, dtype=np.float32).reshape(-1, 8)
        self.items = [form(row, number) for number, row in enumerate(rows)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def batch_calls(dataset, size):
    """Return the calls of making one batch, by name."""
    calls = Counter()

    def count(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[argument.__name__] += 1

    plan = loader.plan({"rows": dataset}, seed=1, global_batch=size)
    with loader.Loader(plan, 0, 1, steps=3, workers=0, prefetch=0, framework="numpy") as batches:
        next(batches)
        sys.setprofile(count)
        try:
            next(batches)
        finally:
            sys.setprofile(None)
    return calls


# The dataset's own call, its wrapper, the list's access, and a few per value in `collate`.
@pytest.mark.parametrize(
    ("form", "columns", "most"),
    [
        (lambda row, number: row, 1, 10),
        (lambda row, number: (row, number), 2, 18),
        (lambda row, number: {"row": row, "name": str(number)}, 2, 14),
        (lambda row, number: torch.from_numpy(row), 1, 12),
    ],
    ids=["array", "tuple", "dict", "tensor"],
)
def test_item_takes_few_calls(form, columns, most):
    if loader.native.KIND == "Python":
        most += columns * IN_PYTHON
    dataset = Rows(form)
    few, many = (batch_calls(dataset, size) for size in (FEW, MANY))
    per_item = (many.total() - few.total()) / (MANY - FEW)
    assert per_item <= most, (many - few).most_common(12)


def test_column_takes_one_checksum_call():
    calls = batch_calls(Rows(lambda row, number: (row, number)), MANY)
    assert calls["crc32c_each"] == 2
