"""The same batches for every world size, thread count, prefetch bound and framework."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader

FILTERS = (None, "i < 20", "even", "i % 3 <> 1")
FIELDS = {
    "photos": (("cls",), ("x.npy", "txt"), ("cls", "x.npy", "ragged.npy", "txt", "json")),
    "web": (("cls", "txt"), ("json", "ragged.npy")),
    "text": (("txt", "cls"), ("txt",)),
}


@pytest.fixture(scope="session")
def truth(samples):
    return lambda source, key: samples.sample(source, samples.number(key))


@st.composite
def make_plan(draw, versions):
    """A plan of one to three sources with weights, filters and chosen fields."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True))
    sources = {}
    for name in names:
        view = versions[name].select(*draw(st.sampled_from(FIELDS[name])))
        predicate = draw(st.sampled_from(FILTERS))
        if predicate is not None:
            view = view.where(predicate)
        sources[name] = loader.source(view, weight=draw(st.integers(1, 4)))
    return loader.plan(
        sources,
        seed=draw(st.integers(0, 2**64 - 1)),
        global_batch=draw(st.integers(8, 13)),
        allow_repeats=True,
    )


runtimes = st.fixed_dictionaries(
    {
        "world_size": st.sampled_from((1, 2, 3, 5, 8)),
        "workers": st.sampled_from((0, 1, 2, 4)),
        "prefetch": st.sampled_from((0, 1, 3000, None)),
        "framework": st.sampled_from(("torch", "numpy")),
        "start": st.one_of(st.integers(0, 40), st.just(10**9)),
    }
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data(), runtime=runtimes)
def test_every_runtime_delivers_the_same_global_batches(data, runtime, versions, truth, properties):
    plan = data.draw(make_plan(versions))
    properties.delivers_the_plan(plan, truth, **runtime)


@pytest.mark.parametrize(("world_size", "in_ci"), [(1, (4, 0)), (2, (1,)), (3, (2,)), (5, (0,)), (8, (1, 4))])
def test_every_world_size_and_every_thread_count(world_size, in_ci, versions, truth, properties, at_scale):
    """Any pair of them is drawn above as well."""
    plan = loader.plan(
        {"photos": loader.source(versions["photos"], weight=3), "web": versions["web"]},
        seed=7,
        global_batch=13,
    )
    for workers in at_scale(in_ci, (0, 1, 2, 4)):
        properties.delivers_the_plan(
            plan, truth, world_size=world_size, workers=workers, prefetch=2000, start=1, steps=4
        )


@pytest.mark.parametrize("start", [0, 1, 10**7])
def test_batch_that_holds_a_sample_twice(start, versions, truth, properties):
    few = versions["web"].where("i < 3")
    plan = loader.plan({"web": few}, seed=3, global_batch=8, allow_repeats=True)
    assert len(set(plan.batch_ids(start))) < 8
    properties.delivers_the_plan(plan, truth, world_size=3, workers=2, start=start)


def test_chunked_order_with_lanes(versions, truth, properties):
    """Chunks and lanes decide the order; ranks then get slots of the same chunk."""
    plan = loader.plan(
        {"text": loader.source(versions["text"], chunk=4, lanes=2), "photos": versions["photos"]},
        seed=11,
        global_batch=10,
    )
    for world_size in (1, 3, 8):
        properties.delivers_the_plan(plan, truth, world_size=world_size, workers=2, steps=12)


def test_augmentation_depends_on_the_sample_alone(versions, properties):
    """A predicate does not change what a transform draws for the samples that it leaves."""
    plan = loader.plan(
        {"photos": versions["photos"].select("cls"), "web": versions["web"].select("cls")},
        seed=2,
        global_batch=9,
    )
    properties.augments_by_sample(plan)
    version = versions["photos"]
    fields = ["cls"]
    seed = 5
    drawn = []
    for view in (version.select(*fields), version.select(*fields).where("i >= 9")):
        plan = loader.plan({"photos": view}, seed=seed, global_batch=4)
        with loader.Loader(
            plan, 0, 1, transform=properties.draw, framework="numpy", workers=0, epochs=1
        ) as batches:
            drawn.append(
                {
                    one: value
                    for batch in batches
                    for one, value in zip(batch.ids, batch["drawn"].tolist(), strict=True)
                    if one is not None
                }
            )
    everything, some = drawn
    assert some.items() <= everything.items()
    assert len(some) < len(everything)


def test_another_epoch_draws_anew(versions, properties):
    """A sample is augmented otherwise in its next epoch. The version is one batch."""
    version = versions["web"]
    plan = loader.plan({"s": version.select("cls")}, seed=2, global_batch=len(version))
    with loader.Loader(plan, 0, 1, transform=properties.draw, framework="numpy", workers=2) as batches:
        first, second = (
            dict(zip(batch.ids, batch["drawn"].tolist(), strict=True))
            for batch in (next(batches), next(batches))
        )
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())


def test_digest_covers_the_bytes_read(memory_root, samples, properties):
    """The digest of a batch changes with what was read: here only the fields that are selected differ."""
    root = memory_root
    version = samples.write(root, "photos", range(8), fields=("cls", "txt"))
    digests = set()
    for fields in (("cls",), ("txt",), ("cls", "txt")):
        plan = loader.plan({"s": version.select(*fields)}, seed=1, global_batch=8)
        digests.add(properties.reference_digests(plan, 1)[0])
    assert len(digests) == 3


def test_lost_byte_is_never_delivered(memory_root, samples, watch_store, properties):
    """A byte that another reads than was written, at every read, is an error and not a batch."""
    samples.write(memory_root, "photos", range(8))
    store = watch_store(memory_root)
    version = memory_root.open("photos@latest")
    watch_store = store
    field = "x.npy"
    plan = loader.plan({"s": version.select(field)}, seed=1, global_batch=4)
    watch_store.change = lambda key, offset, data: (
        bytes([data[0] ^ 1]) + data[1:] if key.endswith(".tar") and data else data
    )
    with loader.Loader(plan, 0, 1, workers=0, decode=False, on_corrupt="raise", cache=0) as batches:
        try:
            next(batches)
        except loader.errors.Corrupt:
            return
    raise AssertionError("changed bytes were delivered")


def test_fields_of_several_groups_that_only_some_parts_have(memory_root, samples, truth, properties):
    """Derived fields lie in shards of their own; a view of them leaves out the parts that came later."""
    samples.write(memory_root, "photos", range(20), part_samples=6)
    memory_root.add_group("photos", "derived", {"neg.npy": lambda sample: -sample["x.npy"]})
    grown = samples.write(memory_root, "photos", range(20, 30), part_samples=6)
    view = grown.select("neg.npy", "txt", "cls", where_present=True)
    assert len(view) == 20

    def with_negatives(source, key):
        whole = truth(source, key)
        return {**whole, "neg.npy": -whole["x.npy"]}

    plan = loader.plan({"photos": view.where("i > 1"), "rest": grown.select("cls")}, seed=1, global_batch=9)
    for world_size, workers in ((1, 0), (3, 2)):
        properties.delivers_the_plan(
            plan,
            lambda _, key: with_negatives("photos", key),
            world_size=world_size,
            workers=workers,
            steps=5,
        )


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_samples_without_a_byte(where, tmp_path, properties):
    """Empty fields lie in the shard too, and need no read."""
    with loader.Root("memory://run-empty" if where == "memory" else str(tmp_path / "root")) as root:
        with root.write("empty") as writer:
            for i in range(9):
                writer.add(f"k/{i}", {"txt": "", "blob": b""})
        plan = loader.plan({"e": root.open("empty@1")}, seed=1, global_batch=4)
        properties.delivers_the_plan(
            plan, lambda _, key: {"txt": "", "blob": b""}, world_size=2, workers=1, steps=3
        )
