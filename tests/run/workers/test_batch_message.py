"""Batches that were made together come out of a segment as they went in, whatever their fields are."""

import dataclasses
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.run.batch.batch import Batch, SlowSample
from loader.run.batch.slot_ids import Keys, SlotIds
from loader.run.workers.batch_memory import BatchSlot, bytes_of, read
from loader.run.workers.batch_message import packed

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)
WORDS = st.sampled_from([b"", b"a", b"word" * 9, bytes(3000), b"\xff" * 70_000])
KINDS = ("cut", "cut backwards", "alone", "bytes", "words", "some bytes", "narrow", "objects")


def columns(draw, kind, sizes, allocate):
    """The field of each batch, as a batch of that kind has it."""
    ends = np.cumsum([0, *sizes]).tolist()
    spans = list(itertools.pairwise(ends))
    width = draw(st.sampled_from([0, 1, 5, 1500]))
    if kind.startswith("cut"):
        # Twice as long: whoever reads past its pieces reads wrong numbers, and nobody else's memory.
        array = allocate((2 * ends[-1], width), np.dtype(np.int32))[: ends[-1]]
        array[...] = np.arange(array.size).reshape(array.shape)
        return [array[low:high] for low, high in spans[:: 1 if kind == "cut" else -1]]
    if kind == "narrow":
        array = np.arange(ends[-1] * 6).reshape(-1, 6)
        return [array[low:high, 1:3] for low, high in spans]
    if kind == "alone":
        dtypes = [draw(st.sampled_from([np.int8, np.float32])) for _ in sizes]
        return [np.full((n, width), n, dtype) for n, dtype in zip(sizes, dtypes, strict=True)]
    one = {
        "bytes": WORDS,
        "words": st.text(max_size=5),
        "some bytes": st.one_of(st.none(), WORDS),
        "objects": st.one_of(st.integers(), st.lists(st.floats(0, 1), max_size=2)),
    }[kind]
    return [draw(st.lists(one, min_size=n, max_size=n)) for n in sizes]


def id_lists(step, n):
    return st.lists(st.one_of(st.none(), st.just((f"s{step}", "k"))), min_size=n, max_size=n)


def optional_lists(step, n):
    sources, valid = (st.lists(one, min_size=n, max_size=n) for one in (st.integers(0, 2), st.booleans()))
    return st.builds(
        lambda source, real: SlotIds(
            names=("a", "b", "c"),
            source=np.where(real, np.array(source, np.int32), np.int32(-1)),
            keys=Keys(lambda: [f"{step}.{i - 5}" for i in range(n + 9)]),
            rows=slice(5, 5 + n),
        ),
        sources,
        valid,
    )


@st.composite
def draw_batch(draw, allocate):
    """Batches of up to four fields; those of the last may have one less."""
    sizes = draw(SIZES)
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=4))
    fields = [columns(draw, kind, sizes, allocate) for kind in kinds]
    slow = SlowSample(
        step=1, stage="fetch", seconds=0.1, source="s", key="k", version="v@1", path="p", offset=0, nbytes=2
    )
    batches = [
        Batch(
            step=step,
            ids=draw(st.one_of(id_lists(step, n), optional_lists(step, n))),
            sources=np.full(n, step, np.int32),
            ordinals=np.arange(n) * step,
            mask=np.arange(n) % 2 == step % 2,
            weight=step / 3,
            digest=2**64 - 1 - step,
            fields={
                f"{kind}.{i}": values[step]
                for i, (kind, values) in enumerate(zip(kinds, fields, strict=True))
            },
            nbytes=n,
            bucket=draw(st.sampled_from([None, "wide"])),
            stats={"samples": n, "decode_seconds": step * 0.1},
            slowest=draw(st.sampled_from([None, slow])),
        )
        for step, n in enumerate(sizes)
    ]
    if kinds and draw(st.booleans()):
        del batches[-1].fields[next(iter(batches[-1].fields))]
    return batches


def plain(value):
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return [plain(one) for one in value] if isinstance(value, list) else value


def contents(batch):
    told = {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch)}
    arrays = {name: plain(told[name]) for name in ("sources", "ordinals", "mask")}
    return {**told, **arrays, "fields": [(k, plain(v)) for k, v in batch.fields.items()]}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_message_round_trip_is_exact(data):
    """Several times, the segment used again."""
    slot, segment = BatchSlot(), None
    for _ in range(data.draw(st.integers(1, 2))):
        slot.begin(segment)
        batches = data.draw(draw_batch(slot.allocate))
        segment, written = slot.write(packed(batches, slot.allocate))
        wanted = [contents(batch) for batch in batches]  # only now: ids that were looked at are listed
        memory = bytes_of(segment)
        assert [contents(batch) for batch in read(memory, written).batches()] == wanted


def test_bytes_lie_beside_the_pickle():
    """Those of all batches, one behind the other."""
    slot = BatchSlot()
    slot.begin(None)
    batches = [
        Batch(
            step=step,
            ids=[("s", "k")] * 4,
            sources=np.zeros(4, np.int32),
            ordinals=np.arange(4),
            mask=np.ones(4, bool),
            weight=1.0,
            digest=0,
            fields={"jpg": jpegs},
        )
        for step, jpegs in enumerate([[b"\xff" * 5000] * 4, [b"\xd8" * 9000] * 4])
    ]
    segment, written = slot.write(packed(batches, slot.allocate))
    assert written.nbytes < 2000
    memory = bytes_of(segment)
    assert memory[: 4 * 14_000].tobytes() == b"\xff" * 20_000 + b"\xd8" * 36_000
    received = read(memory, written).batches()
    assert [list(batch["jpg"]) for batch in received] == [[b"\xff" * 5000] * 4, [b"\xd8" * 9000] * 4]


def test_nothing_is_packed_of_no_batches():
    assert packed([], BatchSlot().allocate) is None
