"""Bytes that the first batch reads from a disk whose files are not in the page cache."""

import numpy as np
import pytest

import loader

N, SAMPLE_BYTES, BATCH = 3000, 16 * 1024, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cold") / "root"
    rng = np.random.default_rng(1)
    with loader.Root(path) as root, root.write("d") as writer:
        for i in range(N):
            writer.add(f"{i:05d}", {"x.npy": rng.integers(0, 256, SAMPLE_BYTES, np.uint8)})
    return path


def test_first_batches_read_their_samples_and_little_else(folder, shared):
    """Neither what the kernel would read ahead nor around them: all is 47 MiB, a batch half of one."""
    counts = shared("run/small_samples")
    with loader.Root(folder) as root:
        plan = loader.plan({"d": root.open("d@latest")}, seed=3, global_batch=BATCH)
        with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as warm:
            wanted = [warm.batch_at(step)["x.npy"] for step in range(8)]
        with loader.Loader(
            plan, 0, 1, framework="numpy", workers=0, steps=8
        ) as batches:  # none ahead of these
            counts.forget(folder)
            before = counts.io("read_bytes")
            first = next(batches)["x.npy"]
            one = counts.io("read_bytes") - before
            others = [next(batches)["x.npy"] for _ in range(7)]
            eight = counts.io("read_bytes") - before
    assert all(np.array_equal(*pair) for pair in zip([first, *others], wanted, strict=True))
    assert one < 4 * BATCH * SAMPLE_BYTES
    assert eight < 8 * 2 * BATCH * SAMPLE_BYTES
