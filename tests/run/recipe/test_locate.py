"""Sources of a mixture are planned, looked up and read together, however different they are."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.reading.places import Lookup
from loader.errors import Corrupt
from tests.refusals import refusal

FIELDS = ("cls", "x.npy", "txt")


def write(root, samples, name, numbers, fields, **how):
    with root.write(name, **how) as writer:
        for i in numbers:
            whole = samples.sample(name, i)
            writer.add(
                samples.key(name, i), {field: whole[field] for field in fields}, metadata={"even": i % 2 == 0}
            )
    return root.open(f"{name}@latest")


@pytest.fixture(scope="module")
def views(tmp_path_factory, samples):
    """Of one group and of two, with other fields beside, with exclusions, of one version twice, on a disk and not."""
    path, more = tmp_path_factory.mktemp("mixture") / "root", (*FIELDS, "json", "ragged.npy")
    with loader.Root(path) as disk, loader.Root("memory://mixture") as memory:
        plain = write(disk, samples, "plain", range(40), FIELDS, part_samples=9)
        write(disk, samples, "fewer", range(30), FIELDS, part_samples=7)
        disk.exclude("fewer@latest", [samples.key("fewer", i) for i in (0, 8, 9, 29)], reason="blurred")
        found = {
            "even": plain.where("even").select(*FIELDS),
            "fewer": disk.open("fewer@latest").select(*FIELDS),
            "far": write(memory, samples, "far", range(25), FIELDS, part_samples=6).select(*FIELDS),
            "groups": write(disk, samples, "groups", range(33), FIELDS, groups={"txt": "words"}).select(
                *FIELDS
            ),
            "more": write(disk, samples, "more", range(31), more, part_samples=8).select(*FIELDS),
            "plain": plain.select(*FIELDS),
            "words": plain.select("txt"),
        }
        yield found


@settings(derandomize=True, deadline=None, max_examples=25)
@given(data=st.data())
def test_every_sample_is_its_sources(views, samples, data):
    names = data.draw(st.lists(st.sampled_from(sorted(views)), min_size=1, unique=True))
    weighted = {name: loader.source(views[name], weight=data.draw(st.integers(1, 5))) for name in names}
    plan = loader.plan(
        weighted, seed=data.draw(st.integers(0, 99)), global_batch=data.draw(st.integers(1, 20))
    )
    world = data.draw(st.integers(1, min(3, plan.global_batch)))
    rank, first = data.draw(st.integers(0, world - 1)), data.draw(st.integers(0, 40))
    with loader.Loader(plan, rank, world, workers=0, framework="numpy") as batches:
        for batch in batches._assembler.batches(range(first, first + data.draw(st.integers(1, 6)))):
            wanted = plan.batch_ids(batch.step)
            assert batch.ids == wanted[rank * len(wanted) // world : (rank + 1) * len(wanted) // world]
            for slot, (source, key) in enumerate(batch.ids):
                dataset = key.partition("/")[0]
                whole = samples.sample(dataset, samples.number(key))
                assert dataset == (source if source not in ("even", "words") else "plain")
                for field in views[source].fields:
                    assert np.array_equal(batch[field][slot], whole[field])


def test_error_has_the_address_of_its_sample(tmp_path, samples):
    with loader.Root(tmp_path / "root") as root:
        found = {
            name: write(root, samples, name, range(20), FIELDS, part_samples=6) for name in ("a", "b", "c")
        }
        (ordinal,) = found["b"].select().ordinals([samples.key("b", 11)]).tolist()
        (at,) = found["b"].address(np.array([ordinal]), ["txt"])
        place = at.fields["txt"]
        with open(tmp_path / "root" / place.path, "r+b") as shard:
            shard.seek(place.offset)
            shard.write(b"!")
        plan = loader.plan(found, seed=1, global_batch=60, allow_repeats=True)
        with (
            loader.Loader(plan, 0, 1, workers=0, on_corrupt="raise") as batches,
            refusal(Corrupt, what="txt", within="field 'txt'") as caught,
        ):
            next(batches)
        assert at.describe("txt") in str(caught.value)


def test_versions_listed_twice_are_joined_once(views):
    plain, fewer = views["plain"].version, views["fewer"].version
    lookup = Lookup([plain, fewer, plain], ["txt"])
    of, ordinals = np.array([2, 1, 0, 2, 1]), np.array([39, 0, 39, 8, 25])
    found = lookup.places(of, ordinals)
    alone = [(plain, fewer)[one % 2].address(ordinals[i : i + 1], ["txt"])[0] for i, one in enumerate(of)]
    assert found.addresses() == alone
    assert len(lookup._parts.first) == len(plain.parts) + len(fewer.parts) + 1
    assert {shard.version for shard, _ in found.fields["txt"].by_shard()} == {0, 1, 2}


def count_calls(function):
    """Calls of Python and of C that it takes."""
    seen = 0

    def count(frame, event, argument):
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


def test_what_a_source_costs(tmp_path, samples):
    """Of the same number of samples: no more than a look at its shard, at a stretch of its index and at its keys."""
    costs = {}
    with loader.Root(tmp_path / "root") as root:
        for n in (2, 8, 32):
            names = [f"{n}-{i}" for i in range(n)]
            found = {
                name: write(root, samples, name, range(512 // n), ("txt",)).select("txt") for name in names
            }
            plan = loader.plan(found, seed=1, global_batch=64, allow_repeats=True)
            with loader.Loader(plan, 0, 1, workers=0, decode=False, framework="numpy") as batches:
                making = batches._assembler
                list(making.batches(range(4, 8)))  # derives keys, reads indexes and maps shards
                planning = count_calls(lambda plan=plan: plan.stack(range(4, 8), 0, 1))
                costs[n] = planning, count_calls(lambda making=making: list(making.batches(range(4, 8))))
    for before, after in ((2, 8), (8, 32)):
        planning, making = (
            (b - a) / (after - before) for a, b in zip(costs[before], costs[after], strict=True)
        )
        assert planning < 30
        assert making < 150
