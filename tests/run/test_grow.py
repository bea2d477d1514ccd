"""A Loader over a plan that goes on under later versions: real samples of both, stops and resumes, epochs."""

from collections import Counter

import pytest

import loader


@pytest.fixture(scope="module")
def growth_root(samples):
    """photos: 30 samples; then 12 more and without two of them; then 6 more. (root, plan, keys per version)"""
    root = loader.Root("memory://run-grow")
    samples.write(root, "photos", range(30), part_samples=8, fields=("cls", "x.npy"))
    samples.write(root, "web", range(19), part_samples=8, fields=("cls", "x.npy"))
    root.exclude("photos@1", [samples.key("photos", i) for i in (3, 17)], reason="bad")
    samples.write(root, "photos", range(30, 42), part_samples=8, fields=("cls", "x.npy"))
    samples.write(root, "photos", range(42, 48), part_samples=8, fields=("cls", "x.npy"))
    return root


def make_plan(root, **more):
    given = {"photos": root.open("photos@1"), **more}
    made = loader.plan(given, seed=5, global_batch=6)
    return made.grow({"photos": root.open("photos@3")}, 2).grow({"photos": root.open("photos@4")}, 4)


def test_every_runtime_delivers_the_same_global_batches(growth_root, samples, properties):
    made = make_plan(growth_root, web=loader.source(growth_root.open("web@1"), 2))
    for world_size, workers in ((1, 2), (3, 0), (6, 1)):
        properties.delivers_the_plan(
            made,
            lambda source, key: {
                field: value
                for field, value in samples.sample(source.rstrip("#+0123456789"), samples.number(key)).items()
                if field in ("cls", "x.npy")
            },
            world_size=world_size,
            workers=workers,
            framework="numpy",
            start=0,
            steps=25,
        )


@pytest.mark.parametrize(
    "script",
    [
        [(1, 3, False), (3, 2, True), (2, 9, False)],
        [(2, 2, False), (1, 2, False), (6, 1, True), (3, 8, True)],
    ],
)
def test_stops_and_resumes(growth_root, properties, script):
    made = make_plan(growth_root)
    properties.resumes_exactly(
        loader.open_plan(growth_root, made.save(growth_root)), script, workers=2, framework="numpy"
    )


def test_run_continues_from_the_state_of_its_first_plan(growth_root):
    before = loader.plan({"photos": growth_root.open("photos@1")}, seed=5, global_batch=6)
    with loader.Loader(before, 0, 1, steps=2, framework="numpy") as batches:
        first = [batch.digest for batch in batches]
        state = batches.state_dict()
    with loader.Loader(make_plan(growth_root), 0, 1, steps=6, framework="numpy") as batches:
        whole = [batch.digest for batch in batches]
    with loader.Loader(make_plan(growth_root), 0, 1, steps=6, framework="numpy") as batches:
        batches.load_state_dict(state)
        rest = [batch.digest for batch in batches]
    assert first + rest == whole


@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (3, 0)])
def test_buckets_grow_and_resume(growth_root, samples, properties, world_size, workers):
    """A bucket of larger numbers comes with the growth; photos of both versions are delivered as planned."""

    def make_bucket(**more):
        return loader.bucket("i", edges=[0, 15, 35, "inf"], batch={"0..15": 4, "15..35": 6, **more})

    views = {"photos": growth_root.open("photos@1"), "web": loader.source(growth_root.open("web@1"), 2)}
    made = loader.plan(views, seed=5, global_batch=8, bucket_by=make_bucket(), allow_repeats=True)
    made = made.grow({"photos": growth_root.open("photos@3")}, 3, bucket_by=make_bucket(**{"35..inf": 3}))
    made = made.grow({"photos": growth_root.open("photos@4")}, 8)
    made = loader.open_plan(growth_root, made.save(growth_root))
    assert {made.bucket(step) for step in range(25)} == {"0..15", "15..35", "35..inf"}
    properties.delivers_the_plan(
        made,
        lambda source, key: {
            field: value
            for field, value in samples.sample(source.partition("/")[0], samples.number(key)).items()
            if field in ("cls", "x.npy")
        },
        world_size=world_size,
        workers=workers,
        framework="numpy",
        start=0,
        steps=25,
    )
    script = [(1, 3, False), (3, 4, True), (2, 9, False)]
    properties.resumes_exactly(made, script, workers=workers, framework="numpy")


def test_ledger_becomes_a_list_after_a_step(growth_root):
    """Old and new samples that a run met as corrupt, in quarantine: the plan has the batches that the run delivered."""

    def refuses(data, rng):
        if int(data) in (5, 16, 33, 36, 44):
            raise ValueError(f"{int(data)} is not to be read")
        return int(data)

    asked = loader.bucket("i", edges=[0, 35, "inf"], batch={"0..35": 5, "35..inf": 3})
    first = loader.bucket("i", edges=[0, 35, "inf"], batch={"0..35": 5})
    made = loader.plan({"photos": growth_root.open("photos@1")}, seed=5, global_batch=8, bucket_by=first)
    made = made.grow({"photos": growth_root.open("photos@3")}, 2, bucket_by=asked)
    made = made.grow({"photos": growth_root.open("photos@4")}, 6)
    options = {"framework": "numpy", "decode": {"cls": refuses}, "corrupt_budget": 1.0}
    with loader.Loader(made, 0, 1, steps=30, **options) as batches:
        delivered = [batch.ids for batch in batches]
    bad = {}
    for one in loader.read_ledger(growth_root, made):
        bad.setdefault(made.sources[one.source].source, []).append(one.address.key)
    assert len(set(bad["photos"])) == 5
    listed = made.quarantined(bad, 6)
    assert [listed.batch_ids(step) for step in range(6, 30)] == delivered[6:]
    assert [listed.batch_ids(step) for step in range(6)] == [made.batch_ids(step) for step in range(6)]
    assert listed.check_state(made.state(6)) == 6
    with loader.Loader(listed, 0, 1, steps=30, on_corrupt="raise", **options) as batches:
        batches.load_state_dict(made.state(6))
        assert [batch.ids for batch in batches] == delivered[6:]


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_epochs_end_where_the_samples_do(growth_root, epochs):
    """The first epoch: 30, 12 new ones from step 2 on and 6 from step 4 on. Later ones: the 46 that are live then."""
    with loader.Loader(make_plan(growth_root), 0, 1, epochs=epochs, framework="numpy") as batches:
        assert len(batches) == -(-(48 + 46 * (epochs - 1)) // 6)
        taken = Counter(one for batch in batches for one in filter(None, batch.ids))
        made = sum(taken.values())
    assert made == 48 + 46 * (epochs - 1)
    assert {name for name, _ in taken} == {
        "photos",
        "photos+1",
        "photos+2",
        *(["photos#2"] if epochs > 1 else []),
    }
    new = Counter(name for name, _ in taken.elements())
    assert (new["photos+1"], new["photos+2"]) == (12, 6)


def test_samples_are_explained_by_their_version(growth_root):
    made = make_plan(growth_root)
    versions = {one.source: one.address.version for step in range(20) for one in loader.explain(made, step)}
    wanted = {"photos": "photos@1", "photos+1": "photos@3", "photos+2": "photos@4", "photos#2": "photos@4"}
    assert versions == wanted
