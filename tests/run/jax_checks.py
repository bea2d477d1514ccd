"""`framework="jax"`: the numpy batches as `jax.Array`s. Run by test_jax.py in a process of its own."""

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import loader
from loader.errors import InvalidRuntime
from loader.run.batch.collate import collate
from loader.run.batch.columns import Columns
from tests.refusals import refusal

jax.config.update("jax_num_cpu_devices", 2)  # before it starts


@pytest.fixture
def plan(versions):
    return loader.plan({"photos": versions["photos"], "web": versions["web"]}, seed=3, global_batch=7)


def one(values, name="x.npy"):
    columns = Columns(len(values))
    columns.put_names(range(len(values)), (name,))
    for slot, value in enumerate(values):
        columns.put(slot, name, value)
    return collate(columns, "jax")[0][name]


def test_batches_are_those_of_numpy(plan):
    for rank in range(2):
        with (
            loader.Loader(plan, rank, 2, framework="jax", workers=2, steps=5) as batches,
            loader.Loader(plan, rank, 2, framework="numpy", workers=0, steps=5) as wanted,
        ):
            for batch, same in zip(batches, wanted, strict=True):
                assert (batch.step, batch.ids, batch.digest) == (same.step, same.ids, same.digest)
                assert isinstance(batch.mask, jax.Array)
                assert np.array_equal(batch.mask, same.mask)
                assert list(batch) == list(same)
                for name in ("cls", "x.npy"):
                    assert isinstance(batch[name], jax.Array)
                    assert np.array_equal(batch[name], same[name])
                assert batch["cls"].dtype == np.int32  # JAX's int, while it holds to 32 bits
                assert batch["x.npy"].dtype == np.int32
                for name in ("txt", "json"):
                    assert batch[name] == same[name]
                assert isinstance(batch["ragged.npy"], list)
                for item, array in zip(batch["ragged.npy"], same["ragged.npy"], strict=True):
                    assert isinstance(item, jax.Array)
                    assert item.dtype == np.uint8
                    assert np.array_equal(item, array)
                assert batch.nbytes > 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(["u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4", "c8", "?"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    st.data(),
)
def test_every_dtype_of_32_bits_keeps_its_bytes(dtype, shape, data):
    arrays = data.draw(st.lists(hnp.arrays(dtype, shape), min_size=1, max_size=4))
    got = np.asarray(one(arrays))
    assert got.dtype == np.dtype(dtype)
    assert got.tobytes() == np.stack(arrays).tobytes()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(hnp.arrays(st.sampled_from(["i8", "u8", "f8"]), 3))
def test_wider_numbers_fit_or_are_refused(array):
    """JAX alone makes 0 of 2**40, and infinity of 1e300, without a word."""
    narrow = {"i": np.int32, "u": np.uint32, "f": np.float32}[array.dtype.kind]
    with np.errstate(over="ignore"):
        rounded = array.astype(narrow)
    kept = np.array_equal(rounded, array) or (
        array.dtype.kind == "f" and np.array_equal(np.isfinite(rounded), np.isfinite(array))
    )
    if kept:
        got = np.asarray(one([array]))
        assert got.dtype == narrow
        assert np.array_equal(got[0], rounded, equal_nan=array.dtype.kind == "f")
    else:
        with pytest.raises(InvalidRuntime, match=r"field 'x\.npy' holds .*jax_enable_x64"):
            one([array])


def test_with_64_bits_nothing_is_narrowed():
    jax.config.update("jax_enable_x64", True)
    try:
        got = one([2**40, 1], name="cls")
        assert (got.dtype, got.tolist()) == (np.int64, [2**40, 1])
    finally:
        jax.config.update("jax_enable_x64", False)


def test_what_jax_has_no_dtype_for_stays_numpy():
    got = one([np.array("2026-01-01", "M8[D]")] * 2)
    assert isinstance(got, np.ndarray)
    assert got.dtype == "M8[D]"


def test_jitted_step_takes_a_batch(plan):
    @jax.jit
    def total(cls, x, mask):
        return (cls * mask).sum() + x.sum()

    with loader.Loader(plan, 0, 1, framework="jax", steps=1) as batches:
        (batch,) = batches
    wanted = int(np.asarray(batch["cls"]).sum() + np.asarray(batch["x.npy"]).sum())
    assert int(total(batch["cls"], batch["x.npy"], batch.mask)) == wanted


def test_arrays_over_memory_that_is_used_again_stay(tmp_path):
    """Large arrays lie where JAX copies nothing: what JAX holds is not given out again."""
    root = loader.Root(str(tmp_path / "root"))
    with root.write("large") as writer:
        for i in range(8):
            writer.add(f"{i}", {"x.npy": np.full((512, 512), i, np.float32)})
    plan = loader.plan({"large": root.open("large@1")}, seed=3, global_batch=2)
    held = []
    with loader.Loader(plan, 0, 1, framework="jax", workers=0, steps=24) as batches:
        for batch in batches:
            if batch.step % 4 == 0:
                held.append(
                    (
                        batch.ids,
                        batch["x.npy"] if batch.step % 8 else jax.jit(lambda x: x[:1])(batch["x.npy"]),
                    )
                )
            elif batch.step % 4 == 1:
                held.append((batch.ids, np.asarray(batch["x.npy"])))
    for ids, kept in held:
        for (_, key), row in zip(ids, np.asarray(kept), strict=False):
            assert (row == int(key)).all()


def test_batches_come_on_the_requested_device(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    plan = loader.plan({"photos": samples.write(root, "photos", range(40))}, seed=3, global_batch=8)
    second = jax.devices()[1]
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=9) as wanted:
        same = list(wanted)
    for how in ({"executor": "processes", "workers": 1}, {"workers": 2}, {"workers": 0}):
        options = {"framework": "jax", "steps": 9, **how}
        for device in ("cpu:1", second):
            with loader.Loader(plan, 0, 1, device=device, **options) as batches:
                check(batches, same, {second})
                batches.seek(3)
                check([next(batches.on(None))], same[3:4], {jax.devices()[0]})
        with loader.Loader(plan, 0, 1, **options) as batches:
            check([next(batches)], same[:1], {jax.devices()[0]})
            check(batches.on("cpu:1"), same[1:], {second})
            check([batches.batch_at(5)], same[5:6], {second})


def test_batches_are_sharded_over_devices(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    view = samples.write(root, "photos", range(40)).select("x.npy", "cls")
    plan = loader.plan({"photos": view}, seed=3, global_batch=8)
    sharding = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x"))
    with (
        loader.Loader(plan, 0, 1, framework="jax", device=sharding, steps=5) as batches,
        loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=5) as wanted,
    ):
        check(batches, wanted, set(jax.devices()))
        batches._delivery._stage.dismiss()
        batches._delivery._stage.join()
        seen = batches.metrics()
    assert seen["device_bytes_total"] == 5 * (8 * (6 * 4 + 4) + 8)
    assert seen["device_copy_seconds_count"] == 5


def check(batches, wanted, devices):
    """They hold the same values, and lie on these devices."""
    for batch, same in zip(batches, wanted, strict=True):
        assert (batch.step, batch.ids, batch.digest) == (same.step, same.ids, same.digest)
        for value, array in [(batch.mask, same.mask), *((batch[name], same[name]) for name in same)]:
            items = zip(value, array, strict=True) if isinstance(array, list) else [(value, array)]
            for item, other in items:
                if isinstance(other, np.ndarray):
                    assert item.devices() == devices
                    assert np.array_equal(item, other)
                else:
                    assert not isinstance(item, jax.Array)
                    assert item == other


def test_device_that_jax_does_not_have_is_refused(plan):
    for device in ("cpu:7", "cuda", "cpu:one", 3):
        with refusal(InvalidRuntime, what="device", given=device):
            loader.Loader(plan, 0, 1, framework="jax", device=device)


def test_number_that_jax_would_change_is_an_error_of_its_step(plan):
    def huge(sample, rng):
        return {"x": np.int64(2**40) if sample["cls"] == 5 else np.int64(1)}

    bad = next(step for step in range(30) if ("photos", "photos/005") in loader_ids(plan, step))
    with loader.Loader(plan, 0, 1, framework="jax", device="cpu", transform=huge, workers=2) as batches:
        with refusal(InvalidRuntime, what="x", given=np.int64(2**40), accepted="int32"):
            list(zip(range(40), batches, strict=False))
        assert batches.step <= bad


def loader_ids(plan, step):
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        return batches.batch_at(step).ids


def test_trail_has_the_same_checksums_with_a_device(plan, tmp_path):
    found = {}
    for run, more in {"host": {}, "device": {"device": "cpu:1"}}.items():
        root = loader.Root(str(tmp_path / run))
        trail = loader.Trail(root, run="run", tensors_every=2)
        with loader.Loader(plan, 0, 1, framework="jax", steps=6, trail=trail, **more) as batches:
            for _ in batches:
                pass
        found[run] = loader.read_trail(root, "run").steps.drop("at_us", "wait_us")
    assert found["host"].equals(found["device"]), "with one start record: the framework is the same"


@pytest.mark.parametrize("wide", [False, True])
def test_times_of_windows_stay_numpy_unless_jax_has_64_bits(tmp_path, wide):
    clock = 10**18 + np.arange(6) * 10**9
    with loader.Root(str(tmp_path / "root")) as root:
        with root.write("arm") as writer:
            writer.add("ep0", {"action.npy": np.arange(6.0), "action.ns.npy": clock})
        view = root.open("arm@1").select("action.npy")
        windows = loader.windows(view, anchor="action.npy", at={"action.npy": ["-3s", 0]})
        plan = loader.plan({"arm": windows}, seed=3, global_batch=6)
        jax.config.update("jax_enable_x64", wide)
        try:
            with loader.Loader(plan, framework="jax", device=jax.local_devices()[0], steps=1) as batches:
                (batch,) = batches
        finally:
            jax.config.update("jax_enable_x64", False)
    for name in ("anchor_ns", "action.npy.age_ns"):
        assert isinstance(batch[name], jax.Array if wide else np.ndarray)
        assert batch[name].dtype == np.int64
    assert np.array_equal(np.asarray(batch["anchor_ns"]), clock[np.asarray(batch["row"])])
    assert isinstance(batch["row"], jax.Array)


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_a_dataset_become_arrays(workers):
    items = [(torch.full((2, 3), i, dtype=torch.int32), torch.ones(i + 1)) for i in range(12)]
    plan = loader.plan({"photos": items}, seed=7, global_batch=4)
    with loader.Loader(plan, 0, 1, framework="jax", workers=workers, steps=2) as batches:
        for batch in batches:
            assert isinstance(batch["0"], jax.Array)
            assert batch["0"][:, 0, 0].tolist() == batch.ordinals.tolist()
            assert [isinstance(ragged, jax.Array) for ragged in batch["1"]] == [True] * 4


def test_columns_of_packed_documents_become_arrays(memory_root):
    with memory_root.write("docs") as writer:
        for number in range(6):
            tokens = np.full(5, number, np.int32)
            writer.add(
                f"{number}", {"tokens.npy": tokens}, metadata={"reward": number / 2, "group_id": f"g{number}"}
            )
    pack = loader.pack("tokens.npy", 10, columns=("reward", "group_id"))
    plan = loader.plan({"docs": writer.version.select("tokens.npy")}, seed=3, global_batch=3, pack=pack)
    with loader.Loader(plan, 0, 1, framework="jax", workers=0, steps=1) as batches:
        batch = next(batches)
    for row in range(3):
        assert isinstance(batch["reward"][row], jax.Array)
        assert batch["reward"][row].tolist() == [batch["tokens.npy"][row][at] / 2 for at in (0, 5)]
    assert isinstance(batch["group_id"][0], np.ndarray)
    assert batch.totals == {"documents": 6, "tokens": 30}
