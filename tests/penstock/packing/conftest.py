"""Roots with token documents, and what batches hold of their sequences."""

import itertools

import numpy as np
import pytest

import loader

TOKENS = "tokens.npy"
MASK = "mask.npy"
STARTS = "starts.npy"
_names = itertools.count()


class Documents:
    """Functions for these tests."""

    def __init__(self, folder):
        self.folder = folder

    def root(self):
        root = loader.Root(self.folder / str(next(_names)))
        root.create()
        return root

    def document(self, number, n_tokens):
        """Tokens and mask of a document, which no other document has."""
        tokens = (1 + (number * 131 + np.arange(n_tokens)) % 60_000).astype(np.uint16)
        return {TOKENS: tokens, MASK: tokens % 3 == 0}

    def write(self, root, lengths, first=0, name="docs", sources=None):
        """Write documents `doc-<number>` with these lengths; return the version."""
        with root.write(name, part_samples=16) as writer:
            for number, n_tokens in enumerate(lengths, first):
                source = (sources or {}).get(number)
                columns = {"pair_id": f"pair-{number // 2}"}
                writer.add(f"doc-{number:05d}", self.document(number, n_tokens), columns, source)
        return writer.version

    def sequences(self, plan, world=1, **options):
        """Return number of a sequence -> field -> array, from all ranks."""
        rows = {}
        for rank in range(world):
            with loader.Loader(
                plan, rank, world, epochs=1, workers=0, framework="numpy", **options
            ) as batches:
                for batch in batches:
                    for slot in np.flatnonzero(batch.mask).tolist():
                        number = int(batch.ids[slot][1].split("-")[1])
                        assert number not in rows
                        rows[number] = {field: batch[field][slot].copy() for field in batch}
        return rows

    def plan(self, view, pack=None):
        return loader.plan(
            {"text": view}, seed=5, global_batch=4, boundary="mask", allow_repeats=True, pack=pack
        )

    def stored(self, version, *fields, world=1):
        """Return a stored version's sequences with their layout."""
        view = version.select(TOKENS, *fields, STARTS)
        return self.sequences(self.plan(view), world, transform=loader.laid_out(TOKENS))


@pytest.fixture
def documents(tmp_path):
    return Documents(tmp_path)


def assert_same(sequences, others):
    assert sequences.keys() == others.keys()
    for number, fields in sequences.items():
        assert fields.keys() == others[number].keys()
        for field, values in fields.items():
            other = others[number][field]
            assert values.dtype == other.dtype, field
            assert np.array_equal(values, other), (number, field)
