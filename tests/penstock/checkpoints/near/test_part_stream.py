"""Parts of near saves: the bytes of a part in memory, by one pass in blocks, in threads that let a step run first.

Planted: a block that is written again before it is full; threads of a save with the training's priority.
"""

import os
import threading

import numpy as np
import pytest

from loader.cache.peers.near_files import NearFiles
from loader.cores import BACKGROUND_NICE
from loader.native import crc32c
from penstock.checkpoints.near import part_stream
from penstock.checkpoints.near.part_stream import write_part
from penstock.checkpoints.parts import BLOCK_BYTES, seal_part
from tests.penstock.checkpoints.test_files import piece
from tests.penstock.checkpoints.test_near_saves import EVERY, cluster, save_until, saver

__all__ = ["cluster"]  # a fixture


@pytest.mark.parametrize("sizes", [[1], [7, BLOCK_BYTES + 5, 3], [BLOCK_BYTES] * 3, [2 * BLOCK_BYTES - 256]])
@pytest.mark.parametrize("block_bytes", [4096, 3 * BLOCK_BYTES])
def test_part_in_blocks_is_the_part_in_memory(monkeypatch, sizes, block_bytes):
    monkeypatch.setattr(part_stream, "WRITE_BYTES", block_bytes)
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    pieces = [piece(f"v{number}", "U8", array) for number, array in enumerate(arrays)]
    contents = [array.data for array in arrays]
    data, placed = seal_part("x-0.safetensors", pieces, contents)
    blocks = []
    written = write_part("x-0.safetensors", pieces, contents, lambda block: blocks.append(bytes(block)))
    assert b"".join(blocks) == b"".join(written.views) == data
    assert {len(block) for block in blocks[:-1]} <= {block_bytes}
    assert list(written.placed) == placed
    assert written.stored == placed[0].part
    assert written.checksum == crc32c(data)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_step_runs_before_the_parts_of_a_save(tmp_path, cluster, monkeypatch):
    nice = []
    open_new = NearFiles.open_new

    def watch(files, key):
        thread = threading.current_thread()
        priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        nice.append((key.split("/")[2], thread.name.rpartition("_")[0], priority))
        return open_new(files, key)

    monkeypatch.setattr(NearFiles, "open_new", watch)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with saver(tmp_path, cluster) as saved:
        save_until(saved, EVERY)
    assert own < BACKGROUND_NICE
    assert set(nice) == {
        ("parts", "penstock-checkpoint", BACKGROUND_NICE),
        ("parts", "penstock-near-receipt", BACKGROUND_NICE),
        ("steps", "penstock-near-receipt", BACKGROUND_NICE),
        ("steps", "penstock-near", own),
    }
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
