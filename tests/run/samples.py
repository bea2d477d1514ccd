"""Samples as functions of their number: what a loader must give is known without asking it."""

import numpy as np


def sample(name, i):
    """Field -> decoded value of sample i of dataset `name`."""
    return {
        "cls": i,
        "x.npy": (np.arange(6, dtype=np.int32) * (i + 1) + len(name)).reshape(2, 3),
        "ragged.npy": np.full(i % 3, i, np.uint8),
        "txt": "" if i % 7 == 0 else f"{name} number {i}",
        "json": {"i": i, "name": name},
    }


def key(name, i):
    return f"{name}/{i:03d}"


def number(key):
    return int(key.rpartition("/")[2])


def write(root, name, numbers, *, part_samples=None, fields=("cls", "x.npy", "ragged.npy", "txt", "json")):
    """One version of dataset `name`: what is there, and these samples."""
    with root.write(name, part_samples=part_samples) as writer:
        for i in numbers:
            whole = sample(name, i)
            writer.add(
                key(name, i),
                {field: whole[field] for field in fields},
                metadata={"i": i, "even": i % 2 == 0},
                source={"raw_uri": f"s3://raw/{name}/{i}.bin", "unit_id": f"u-{i}"},
            )
    return writer.version
