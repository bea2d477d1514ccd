"""Embeddings that point the same way: exact, in blocks, and read of the published side in stretches."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from assets.dedup import near_duplicates as stretches
from assets.dedup import near_pairs as blocks
from assets.dedup.near_duplicates import near_published, published_samples
from assets.dedup.near_pairs import near_embeddings, stack_embeddings
from assets.dedup.policy import EmbeddingMatch, NearDuplicates
from assets.dedup.settle import compared_frame, table_candidates
from loader.errors import FieldMismatch
from tests.refusals import refusal

FIELD = "embedding.npy"


def unit_vectors(n: int, d: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(n, d))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("n_queries", "n_rows", "rows_at_once"), [(7, 50, 16), (33, 16, 16), (40, 200, 64)])
def test_blocks_are_one_product(
    monkeypatch: pytest.MonkeyPatch, n_queries: int, n_rows: int, rows_at_once: int
) -> None:
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", rows_at_once)
    rows = unit_vectors(n_rows, 12, seed=1)
    queries = unit_vectors(n_queries, 12, seed=2)
    queries[: n_queries // 2] = rows[-(n_queries // 2) :] * 3  # their length does not matter
    found = near_embeddings(stack_embeddings(queries), stack_embeddings(rows), 0.6)
    cosines = queries.astype(np.float64) @ rows.T.astype(np.float64)
    cosines /= np.linalg.norm(queries, axis=1, keepdims=True)
    assert np.abs(cosines - 0.6).min() > 1e-5  # none that rounding decides
    expected = np.argwhere(cosines >= 0.6)
    assert len(expected) > n_queries // 2
    assert np.array_equal(np.stack([found.query, found.row], axis=1), expected)
    assert found.distance == pytest.approx(1 - cosines[tuple(expected.T)], abs=1e-6)


def test_memory_is_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    rows, queries = stack_embeddings(unit_vectors(20_000, 8, 1)), stack_embeddings(unit_vectors(2_000, 8, 2))
    near_embeddings(queries.take(np.arange(2)), rows, 0.999)
    tracemalloc.start()
    try:
        near_embeddings(queries, rows, 0.9999)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20  # all cosines at once would be 153 MiB


def test_samples_without_one_are_near_to_nothing() -> None:
    some = stack_embeddings([None, np.zeros(3, np.float32), np.float32([1, 0, 0]), np.zeros(0, np.float32)])
    found = near_embeddings(some, some, 0.1)
    assert (found.query.tolist(), found.row.tolist()) == ([2], [2])
    nobody = stack_embeddings([None, None])
    assert len(near_embeddings(nobody, some, 0.1)) == len(near_embeddings(some, nobody, 0.1)) == 0


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda: stack_embeddings([np.ones(3), np.ones(4)]), {"what": "embeddings", "given": [3, 4]}),
        (
            lambda: stack_embeddings([np.float32([1, np.nan])]),
            {"what": "embedding", "given": "NaN or infinity"},
        ),
        (
            lambda: near_embeddings(stack_embeddings([np.ones(3)]), stack_embeddings([np.ones(4)]), 0.5),
            {"what": "embeddings", "given": 3, "accepted": 4},
        ),
    ],
)
def test_what_cannot_be_compared(made: Any, fault: dict[str, object]) -> None:
    with refusal(FieldMismatch, **fault):
        made()


@dataclass(frozen=True)
class Made:
    """A dataset of two parts, of which the first has no embeddings, and these of the second."""

    root: loader.Root
    vectors: np.ndarray


@pytest.fixture
def vector_set(tmp_path: Path) -> Made:
    root, vectors = loader.Root(tmp_path / "root"), unit_vectors(30, 6, seed=3)
    told = {"kind": "image", "phash_flat": False, "phash_flat_mask": 0}

    def sample(name: str, number: int, fields: dict[str, Any]) -> Any:
        facts = {**told, "phash": f"{number * 0x0101_0101_0101:016x}"}
        return (f"image/{name}{number}", {"jpg": b"x", **fields}, facts, {"split": "train"})

    txn = root.begin("d")
    groups = {FIELD: "embedding"}
    parts = [
        loader.write_part(root, txn, [sample("old", n, {}) for n in range(5)], name="a"),
        loader.write_part(
            root, txn, [sample("new", n, {FIELD: vectors[n]}) for n in range(30)], groups=groups, name="b"
        ),
    ]
    root.publish("d", parts)
    return Made(root, vectors)


def test_published_embeddings_are_read_in_stretches(
    vector_set: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the stretch: parts without the field, and samples that were excluded, move nothing."""
    policy = NearDuplicates(max_distance=0, embedding=EmbeddingMatch(field=FIELD, min_cosine=0.999))
    vector_set.root.exclude("d", ["image/new3", "image/old1"], reason="x")
    rows = [
        {
            "key": f"q{n}",
            "kind": "image",
            "split": "train",
            "phash": f"{2**63 + 2**n:016x}",
            "raw_sha256": f"{n}",
        }
        for n in (3, 7, 29)
    ]
    new = table_candidates(
        compared_frame(rows),
        [row["raw_sha256"] for row in rows],
        stack_embeddings(vector_set.vectors[[3, 7, 29]]),
    )
    for at_once in (4096, 4, 1):
        monkeypatch.setattr(stretches, "EMBEDDINGS_AT_ONCE", at_once)
        published = published_samples(vector_set.root, "d", policy)
        assert len(published.candidates) == 33
        found = near_published(new, published, policy)
        assert found.query.tolist() == [1, 2]
        assert [published.candidates.keys[row] for row in found.row] == ["image/new7", "image/new29"]
    without = replace(policy, embedding=None)
    assert len(near_published(new, published_samples(vector_set.root, "d", without), without)) == 0
