"""Datasets of embeddings for the tests of search, and the same search by brute force."""

import numpy as np


def cluster_vectors(n, d, rng):
    """Vectors around a few centres, as of a network that separates classes."""
    centres = rng.normal(size=(12, d))
    return centres[rng.integers(0, 12, n)] + 0.3 * rng.normal(size=(n, d))


def in_one_cone(n, d, rng):
    """Vectors that all point nearly the same way, as of many image encoders."""
    return 3 * rng.normal(size=d) + 0.3 * rng.normal(size=(n, d))


def random_vectors(n, d, rng):
    return rng.normal(size=(n, d))


SHAPES = {"clustered": cluster_vectors, "one cone": in_one_cone, "unstructured": random_vectors}


def write_vectors(root, vectors, first=0, part_samples=100, dtype=np.float16, dataset="d", **extra):
    """Append samples k000000, ... with embeddings, a caption and columns `w` and `third`."""
    with root.write(dataset, part_samples=part_samples, **extra) as writer:
        for i, vector in enumerate(vectors, first):
            fields = {"embedding.npy": np.asarray(vector, dtype), "caption.txt": f"red cup {i}"}
            writer.add(f"k{i:06d}", fields, {"w": i, "third": i % 3})


def read_vectors(version):
    """Return float64 [len(version), d]: the embeddings, of length 1, in version order."""
    rows = [sample["embedding.npy"] for sample in version.select("embedding.npy")]
    rows = np.array(rows).astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def nearest(vectors, query, k, members=None):
    """Return (ordinals, cosines) of the k most similar rows, ties by ordinal."""
    query = np.asarray(query, np.float64)
    scores = np.round(vectors @ (query / np.linalg.norm(query)), 7)
    ordinals = np.arange(len(vectors))
    if members is not None:
        scores = scores[members]
        ordinals = ordinals[members]
    order = np.lexsort((ordinals, -scores))[:k]
    return ordinals[order].tolist(), scores[order]


def recall(result, expected):
    """Share of the expected ordinals that a search returned."""
    return len(set(result) & set(expected)) / len(expected)
