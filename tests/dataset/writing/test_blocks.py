"""Samples that are written at once are the bytes of samples that are written one by one."""

import numpy as np

from loader.dataset.writing.part_writer import PartWriter, make_sample, sample_block
from loader.storage import open_store

KEYS = ("a", "b/c", "long" * 24 + "/d", "e", "f")
"""The third does not fit into a header of ustar."""


def test_block_is_its_samples_one_behind_the_other() -> None:
    rng = np.random.default_rng(1)
    samples = [
        make_sample(
            key,
            {"txt": rng.bytes(at * 700), "b.jpg": rng.bytes(512), "cls": b"%d" % at},
            {"number": at},
            {"raw_key": key},
        )
        for at, key in enumerate(KEYS)
    ]
    written = []
    for number in range(2):
        store = open_store(f"memory://blocks-{number}")
        group_of = {"txt": "text", "b.jpg": "media", "cls": "media"}.__getitem__
        writer = PartWriter(store, txn="t", attempt="0", name="00000", group_of=group_of)
        if number:
            writer.add(samples[0])
            writer.add_block(sample_block(samples[1:]))
        else:
            for sample in samples:
                writer.add(sample)
        part = writer.finish()
        written.append((part, {info.key: store.get(info.key).data for info in store.list()}))
    assert written[0] == written[1]
    assert len(written[0][1]) == 5  # two shards, their indexes, and the samples
