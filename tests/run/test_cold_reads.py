"""Bytes that the first batch reads from a disk whose files are not in the page cache."""

import os

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


def forget(folder):
    """Have no file of a folder in the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def read_bytes():
    """Bytes that this process had disks read so far."""
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def test_the_first_batches_read_their_samples_and_little_else(folder):
    """Neither what the kernel would read ahead nor around them: all is 47 MiB, a batch half of one."""
    with loader.Root(folder) as root:
        plan = loader.plan({"d": root.open("d@latest")}, seed=3, global_batch=BATCH)
        with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as warm:
            wanted = [warm.batch_at(step)["x.npy"] for step in range(8)]
        with loader.Loader(
            plan, 0, 1, framework="numpy", workers=0, steps=8
        ) as batches:  # none ahead of these
            forget(folder)
            before = read_bytes()
            first = next(batches)["x.npy"]
            one = read_bytes() - before
            others = [next(batches)["x.npy"] for _ in range(7)]
            eight = read_bytes() - before
    assert all(np.array_equal(*pair) for pair in zip([first, *others], wanted, strict=True))
    assert one < 4 * BATCH * SAMPLE_BYTES
    assert eight < 8 * 2 * BATCH * SAMPLE_BYTES
