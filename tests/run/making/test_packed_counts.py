"""Work of the interpreter per packed document and sequence: counted in calls, so the same on any machine."""

import numpy as np
import pytest

import loader
import loader.native
from tests.run.making.test_sample_counts import count_calls

N_TOKENS = 16
"""Tokens of a document."""
FEW, MANY = 4, 32
"""Documents of a sequence, or sequences of a batch."""
MOST_PER_SEQUENCE = np.array([10, 20])
"""Calls and lines: a sixth above what they are."""
IN_PYTHON = np.array([60, 108])
"""Calls and lines per document with a mask where no compiler was: of reading, checking, copying and numbering."""


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """Enough documents for three batches of each size."""
    with loader.Root(str(tmp_path_factory.mktemp("packed"))) as root:
        with root.write("d") as writer:
            for number in range(3 * MANY * MANY):
                values = np.full(N_TOKENS, number, np.int32)
                writer.add(f"{number:05d}", {"tokens.npy": values, "mask.npy": values % 2 == 0})
        yield root.open("d@latest")


def per_batch(version, documents, sequences):
    """Return (calls, lines) of a batch that this thread makes."""
    pack = loader.pack("tokens.npy", documents * N_TOKENS, beside={"mask.npy": 0})
    view = version.select("tokens.npy", "mask.npy")
    plan = loader.plan({"d": view}, seed=1, global_batch=sequences, pack=pack)
    with loader.Loader(plan, 0, 1, steps=3, workers=0, prefetch=0, framework="numpy") as batches:
        next(batches)
        return count_calls(lambda: next(batches))


def test_document_takes_no_call_of_its_own(version):
    few = per_batch(version, FEW, MANY)
    many = per_batch(version, MANY, MANY)
    per_document = (many - few) / (MANY * (MANY - FEW))
    most = np.array([0.1, 0.1])
    if loader.native.KIND == "Python":
        most += IN_PYTHON
    assert (per_document <= most).all(), f"(calls, lines) = {per_document.tolist()}; at most {most.tolist()}"


def test_sequence_takes_few_calls_and_lines_of_python(version):
    few = per_batch(version, FEW, FEW)
    many = per_batch(version, FEW, MANY)
    per_sequence = (many - few) / (MANY - FEW)
    most = MOST_PER_SEQUENCE.copy()
    if loader.native.KIND == "Python":
        most += FEW * IN_PYTHON
    assert (per_sequence <= most).all(), f"(calls, lines) = {per_sequence.tolist()}; at most {most.tolist()}"
