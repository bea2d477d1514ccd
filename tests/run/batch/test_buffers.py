"""Memory of batches is given out again, and never while anybody holds anything over it."""

import gc
import os
import threading
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.run.batch import array_pool as recycled
from loader.run.batch.array_pool import KEPT, ArrayPool

UINT16 = np.dtype(np.uint16)
SIDE = 300


@pytest.fixture(autouse=True)
def small_arrays_too(monkeypatch):
    monkeypatch.setattr(recycled, "LEAST_BYTES", 2**10)


class Array(np.ndarray):
    """A subclass, as a user's may be."""


HOLDERS = {
    "the array": lambda array: array,
    "a row": lambda array: array[len(array) // 2],
    "a view of views": lambda array: array[1:].T[::2][1:],
    "other bytes": lambda array: array.view(np.uint8)[-1:],
    "a subclass": lambda array: array.view(Array)[1:],
    "a tensor": torch.from_numpy,
    "a row of a tensor": lambda array: torch.from_numpy(array)[1:2],
    "a tensor by DLPack": torch.from_dlpack,
    "an array by DLPack": np.from_dlpack,
    "a memoryview": lambda array: memoryview(array)[1:],
    "a buffer of Arrow": pa.py_buffer,
}


def first(held):
    """A value that is held: all of an array are alike."""
    if isinstance(held, torch.Tensor):
        held = held.numpy()
    array = (
        np.frombuffer(held, np.uint8)[:2].view(UINT16) if isinstance(held, pa.Buffer) else np.asarray(held)
    )
    values = np.unique(array)
    assert len(values) == 1, "some of it was overwritten"
    return int(values[0])


DOINGS = st.lists(
    st.one_of(
        st.tuples(st.integers(2, 40), st.sampled_from(list(HOLDERS))),
        st.integers(0, 30),  # let go of one of those that are held
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(DOINGS)
def test_what_is_held_never_changes(doings):
    """By whatever it is held; and no more memory is kept than is held, and KEPT pieces."""
    allocate, held, numbers = ArrayPool(), list[tuple[int, object]](), count(1)
    for doing in doings:
        if isinstance(doing, int):
            if held:
                held.pop(doing % len(held))
        else:
            rows, how = doing
            array, number = allocate((rows, SIDE), UINT16), next(numbers) * 257  # both bytes alike
            assert array.flags.c_contiguous
            assert array.flags.writeable
            array[...] = number
            held.append((number, HOLDERS[how](array)))
            del array
        assert all(first(one) in (number, number & 255) for number, one in held)
        assert len(allocate._free) <= KEPT


def address(array):
    return array.ctypes.data


def test_memory_is_given_out_again():
    """To an array that it fits; the memory of much larger ones is left for others."""
    allocate = ArrayPool()
    large, array = (allocate((rows, SIDE), UINT16) for rows in (4000, 1000))
    places = address(large), address(array)
    row = array[3, :5]
    del array, large
    assert address(allocate((1001, SIDE), UINT16)) not in places, "it is held, or more than twice as large"
    del row
    assert address(allocate((900, SIDE), UINT16)) == places[1]
    assert address(allocate((3000, SIDE), UINT16)) == places[0]


def test_memory_that_nobody_uses_is_bounded():
    allocate = ArrayPool()
    held = [allocate((1000, SIDE), UINT16) for _ in range(KEPT + 5)]
    assert len({address(array) for array in held}) == len(held)
    del held
    assert len(allocate._free) == KEPT
    none = ArrayPool(kept=0)
    array = none((1000, SIDE), UINT16)
    del array
    assert len(none._free) == 0


def test_look_back_keeps_no_memory_of_a_batch_that_is_gone(memory_root, samples):
    """It is as large as the batch, and the next look may be never."""
    version = samples.write(memory_root, "d", range(8))
    plan = loader.plan({"d": version.select("x.npy")}, seed=5, global_batch=8)
    with loader.Replay(plan, framework="numpy") as replay:
        assert len(replay.batch(0)) == 8
        assert replay._assembler._allocate._free.maxlen == 0


def test_many_threads():
    """Each finds what it wrote, whoever had the memory before."""
    allocate, wrong = ArrayPool(), []

    def work(number):
        kept = None
        for turn in range(150):
            array = allocate((5 + turn % 7, SIDE), UINT16)
            array[...] = number
            if kept is not None and not (kept == number).all():
                wrong.append(number)
            kept = array[1:2]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forked_child_keeps_its_own():
    """The child's array stays, though the parent lets go of its and fills the memory again."""
    allocate = ArrayPool()
    array = allocate((100, SIDE), UINT16)
    array[...] = 7
    ready, begin = os.pipe()
    child = os.fork()
    if not child:
        os.close(begin)
        os.read(ready, 1)
        os._exit(int((array != 7).any()))
    del array
    again = allocate((100, SIDE), UINT16)
    again[...] = 8
    os.write(begin, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(ready)
    os.close(begin)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_batches_that_are_held_never_change(tmp_path, framework, workers):
    """Of a loader: arrays that are read into rows of the batch, some held whole, some by a row."""
    root = loader.Root(str(tmp_path / "root"))
    with root.write("arrays") as writer:
        for i in range(40):
            writer.add(f"{i:03d}", {"x.npy": np.full((64, 64), i, np.int32)})
    plan = loader.plan({"arrays": root.open("arrays@1")}, seed=2, global_batch=4)
    places, held = set(), []
    with loader.Loader(plan, 0, 1, framework=framework, workers=workers, prefetch=0) as batches:
        for batch in batches:
            array = batch["x.npy"]
            places.add(array.data_ptr() if framework == "torch" else address(array))
            if batch.step % 5 == 0:
                held.append((batch.ids, array))
            elif batch.step % 5 == 1:
                held.append((batch.ids[2:3], array[2:3, :, 5:6]))
            if batch.step == 60:
                break
        del batch, array
        for ids, kept in held:
            for (_, key), rows in zip(ids, kept, strict=True):
                assert set(np.asarray(rows).reshape(-1).tolist()) == {int(key)}
        assert len(places) < 61, "no memory was used again"
        del held, ids, kept, rows
        gc.collect()


TURN = 20_000_000
"""Cycles that a GPU is kept busy before each copy: some 10 ms."""


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_batch_on_its_way_to_a_gpu_never_changes(tmp_path, pinned, workers):
    """The GPU is behind, and the batch is let go of at once: its memory may hold a later one before the copy begins."""
    root = loader.Root(str(tmp_path / "root"))
    with root.write("arrays") as writer:
        for i in range(40):
            ragged = np.full(1 + i % 3, i, np.uint8)
            writer.add(f"{i:03d}", {"x.npy": np.full((64, 64), i, np.int32), "ragged.npy": ragged})
    plan = loader.plan({"arrays": root.open("arrays@1")}, seed=2, global_batch=4)
    places, moved, stream, not_waited = set(), [], torch.cuda.current_stream(), 0
    with loader.Loader(plan, 0, 1, workers=workers, prefetch=0, steps=60) as batches:
        for batch in batches:
            places.add(batch["x.npy"].data_ptr())
            if pinned:
                batch.pin_memory()
                tensors = [batch.mask, batch["x.npy"], *batch["ragged.npy"]]
                assert all(tensor.is_pinned() for tensor in tensors)
                del tensors
            torch.cuda._sleep(TURN)
            moved.append(batch.to("cuda", non_blocking=True))
            not_waited += not stream.query()
    del batch
    assert len(places) < 60, "no memory was used again"
    assert not pinned or not_waited > 30
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=60) as wanted:
        for batch, same in zip(moved, wanted, strict=True):
            assert (batch.ids, batch.digest) == (same.ids, same.digest)
            columns = [(batch.mask, same.mask), (batch["x.npy"], same["x.npy"])]
            for tensor, array in (*columns, *zip(batch["ragged.npy"], same["ragged.npy"], strict=True)):
                assert str(tensor.device) == "cuda:0"
                assert tensor.cpu().numpy().tobytes() == array.tobytes()
