"""Steps made together are the steps made one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import Corrupt, TransformFailed
from loader.run.making.prefetch import MAX_STEPS, STRIDE_BYTES, STRIDE_S, Stride
from tests.refusals import refusal


@pytest.fixture(scope="module")
def local(tmp_path_factory, samples):
    """name -> version, of a root on a disk: its shards are mapped."""
    with loader.Root(tmp_path_factory.mktemp("together") / "root") as root:
        samples.write(root, "photos", range(45), part_samples=8)
        root.exclude("photos@latest", ["photos/003", "photos/017"], reason="blurred")
        samples.write(root, "web", range(19), part_samples=7)
        yield {name: root.open(f"{name}@latest") for name in ("photos", "web")}


def batch_facts(batch):
    """All of a batch that is not a measure of time."""
    fields = {
        name: [np.asarray(one).tolist() if isinstance(one, np.ndarray) else one for one in values]
        for name, values in batch.items()
    }
    own = {name: batch.stats[name] for name in ("batches", "samples", "decoded_bytes")}
    return (
        *(batch.step, batch.ids, batch.mask.tolist(), batch.weight, batch.digest, batch.nbytes, batch.bucket),
        *([type(values) for _, values in batch.items()], batch.sources.tolist(), batch.ordinals.tolist()),
        *(fields, own, [one.identity for one in batch.substitutions]),
    )


def together(made, steps, **options):
    with loader.Loader(made, workers=0, framework="numpy", **options) as batches:
        return [batch_facts(batch) for batch in batches._assembler.batches(steps)]


def one_by_one(made, steps, **options):
    with loader.Loader(made, workers=0, framework="numpy", **options) as batches:
        return [batch_facts(batches.batch_at(step)) for step in steps]


FIELDS = [("cls",), ("x.npy", "txt"), ("cls", "x.npy", "ragged.npy", "txt", "json")]


@pytest.mark.parametrize("where", ["local", "versions"])
@settings(derandomize=True, deadline=None, max_examples=20)
@given(data=st.data())
def test_same_batches(where, data, request):
    versions = request.getfixturevalue(where)
    names = data.draw(st.sampled_from([("photos",), ("web",), ("photos", "web")]))
    fields = data.draw(st.sampled_from(FIELDS))
    batch = data.draw(st.sampled_from([5, [(0, 4), (3, 9), (6, 7)]]))
    views = {
        name: loader.source(versions[name].select(*fields), weight=2 + (name == "web")) for name in names
    }
    made = loader.plan(views, seed=data.draw(st.integers(0, 99)), global_batch=batch)
    first, n = data.draw(st.integers(0, 12)), data.draw(st.integers(2, 9))
    world = data.draw(st.integers(1, 4))
    options = {"rank": data.draw(st.integers(0, world - 1)), "world_size": world}
    if data.draw(st.booleans()):
        options["transform"] = lambda sample, rng: {**sample, "drawn": rng.integers(0, 10**9)}
    if data.draw(st.booleans()):
        options["decode"] = False
    steps = range(first, first + n)
    assert together(made, steps, **options) == one_by_one(made, steps, **options)


def test_shapes_that_differ_between_steps_alone(tmp_path):
    """Each step is one array, though all steps together would be a list."""
    with loader.Root(tmp_path / "root") as root, root.write("d") as writer:
        for i in range(30):
            writer.add(f"k{i}", {"x.npy": np.full(3 + i % 2, i, np.int32)})
    made = loader.plan({"d": writer.version}, seed=2, global_batch=1)
    with loader.Loader(made, workers=0, framework="numpy") as batches:
        found = [batch for steps in (range(4), range(4, 20)) for batch in batches._assembler.batches(steps)]
    assert {(type(batch["x.npy"]), batch["x.npy"].shape) for batch in found} == {
        (np.ndarray, (1, 3)),
        (np.ndarray, (1, 4)),
    }
    assert [batch_facts(batch) for batch in found] == one_by_one(made, range(20))


def test_tensors_of_steps_made_together_are_writable(tmp_path):
    """Also by what wants gradients, as a tensor of its own may be; another step's do not change."""
    with loader.Root(tmp_path / "root") as root, root.write("d") as writer:
        for i in range(12):
            writer.add(f"k{i}", {"x.npy": np.full(3, i, np.float32)})
    made = loader.plan({"d": writer.version}, seed=2, global_batch=3)
    with loader.Loader(made, workers=0) as batches:
        next(batches)  # its arrays' layout is known from now on
        first, second = (batch["x.npy"] for batch in batches._assembler.batches(range(1, 3)))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr(), "in one piece of memory"
    before = second.clone()
    first *= torch.full((1,), 2.0, requires_grad=True)
    assert first.requires_grad
    assert torch.equal(second, before)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_with_padding_at_the_end(local, world_size):
    made = loader.plan({"web": local["web"]}, seed=3, global_batch=8)
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "epochs": 2}
        assert together(made, range(5), **options) == one_by_one(made, range(5), **options)
    masked = loader.plan({"web": local["web"]}, seed=3, global_batch=8, boundary="mask")
    assert together(masked, range(7)) == one_by_one(masked, range(7))


def test_corrupt_sample_in_the_midst(memory_root, samples, watch_store):
    version = samples.write(memory_root, "photos", range(30), part_samples=8)
    store = watch_store(memory_root)
    view = memory_root.open("photos@latest").select("cls", "x.npy")
    (ordinal,) = view.ordinals([samples.key("photos", 11)]).tolist()
    at = version.address(np.array([ordinal]), ["x.npy"])[0].fields["x.npy"]

    def change(key, offset, data):
        if key == at.path and offset <= at.offset < offset + len(data):
            data = data[: at.offset - offset] + b"!" + data[at.offset - offset + 1 :]
        return data

    store.change = change
    made = loader.plan({"photos": view}, seed=7, global_batch=7)
    found = together(made, range(9), corrupt_budget=1.0)
    assert found == one_by_one(made, range(9), corrupt_budget=1.0)
    assert sum(len(one[-1]) for one in found) >= 1
    with loader.Loader(made, workers=0, on_corrupt="raise") as batches:
        bad = next(step for step, one in enumerate(found) if one[-1])
        making = batches._assembler.batches(range(9))
        assert [next(making).step for _ in range(bad)] == list(range(bad))
        with refusal(Corrupt, what="x.npy", within="photos/011"):
            next(making)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_error_comes_at_its_own_step(local, samples, in_workers, executor, monkeypatch):
    """After the batches before it, however many were begun together; asked again, it comes again."""
    monkeypatch.setattr("loader.run.making.prefetch.MAX_AHEAD", 4)  # so that steps are soon made together
    monkeypatch.setattr("loader.run.making.prefetch.STRIDE_S", 1e9)  # and as many, however slow they are
    made = loader.plan({"photos": local["photos"].select("cls")}, seed=1, global_batch=1)
    bad = 37
    transform = in_workers.FailsOn(samples.number(made.batch_ids(bad)[0][1]))
    with loader.Loader(made, 0, 1, executor=executor, workers=2, transform=transform) as batches:
        assert [next(batches).step for _ in range(bad)] == list(range(bad))
        for _ in range(2):
            with pytest.raises(TransformFailed):
                next(batches)
        batches.seek(bad + 1)
        assert next(batches).step == bad + 1


def test_costs_of_steps_made_together_are_complete(local):
    """Seconds are shared evenly; what was counted for all stands with the first."""
    made = loader.plan({"photos": local["photos"]}, seed=1, global_batch=6)
    with loader.Loader(made, 0, 1, workers=0) as batches:
        found = list(batches._assembler.batches(range(8)))
        total = batches.metrics()
    for stage in ("plan_seconds", "address_seconds", "collate_seconds"):
        assert sum(one.stats[stage] for one in found) == pytest.approx(total[f"{stage}_sum"])
        assert total[f"{stage}_count"] == 8
        assert len({one.stats[stage] for one in found}) == 1
    for name in ("batches", "samples", "fetched_bytes", "decoded_bytes", "requests"):
        assert sum(one.stats[name] for one in found) == total[f"{name}_total"]
    assert all(one.slowest is None or one.slowest.step == one.step for one in found)
    assert found[0].slowest is not None


def test_stride_grows_while_steps_are_small():
    stride = Stride()
    sizes = []
    for _ in range(4):
        sizes.append(stride.steps)
        stride.adapt(stride.steps, 1e-5 * stride.steps, 100 * stride.steps)
    assert sizes == [1, 8, 64, 64]
    assert MAX_STEPS == 64


@pytest.mark.parametrize(
    ("seconds", "nbytes", "steps"),
    [
        (STRIDE_S / 4, 1, 4),
        (STRIDE_S * 3, 1, 1),
        (1e-6, STRIDE_BYTES // 5, 5),
        (1e-6, STRIDE_BYTES * 2, 1),
        (0.0, 0, MAX_STEPS),
    ],
)
def test_stride_is_bounded_in_time_and_memory(seconds, nbytes, steps):
    stride = Stride()
    for _ in range(8):
        stride.adapt(stride.steps, seconds * stride.steps, nbytes * stride.steps)
    assert stride.steps == steps
