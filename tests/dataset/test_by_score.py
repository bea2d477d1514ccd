"""Samples drawn by score: as often as their weight says, in an order that is a contract like any other."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from loader.errors import FieldNotFound, InvalidPlan
from loader.order import by_score
from tests.refusals import ABSENT, refusal

CI = settings(max_examples=25, deadline=None, derandomize=True)
SCORES = [0, 0.5, 1, 2, 4.9, 5, 6, 7, 8, 9, 9.5, 9.9]


@pytest.fixture
def version(root):
    """Twelve samples with scores from 0 to 10, and mood "calm" for every other one; published before anybody scored."""
    with root.write("d", part_samples=5) as writer:
        for i in range(len(SCORES)):
            writer.add(f"k{i}", {"cls": i}, metadata={"mood": ("calm", "wild")[i % 2]})
    return root.annotate(
        "d", "aesthetic", {f"k{i}": {"aesthetic": s} for i, s in enumerate(SCORES)}, author="m"
    ).version


def draw_counts(plan, steps):
    """How often every sample is in these steps."""
    return Counter(key for step in range(steps) for _, key in plan.batch_ids(step))


def test_sample_comes_as_often_as_its_weight_says(version):
    sources = loader.by_score("d", version, "aesthetic", [1, 2, 4], edges=[0, 5, 9, 10])
    assert {name: len(one.view) for name, one in sources.items()} == {"d:0..5": 5, "d:5..9": 4, "d:9..10": 3}
    plan = loader.plan(sources, seed=3, global_batch=5, allow_repeats=True)
    assert plan.segments[0].weights == {"d:0..5": 5, "d:5..9": 8, "d:9..10": 12}
    found = draw_counts(plan, 40)  # 200 slots, 25 of which are 1 of each weight 1
    assert [found[f"k{i}"] for i in range(12)] == [8] * 5 + [16] * 4 + [32] * 3


def test_values_are_bands_without_edges(version):
    sources = loader.by_score("d", version.where("aesthetic < 9"), "mood", {"calm": 3, "wild": 0})
    assert {name: len(one.view) for name, one in sources.items()} == {"d:calm": 5}
    sources = loader.by_score("d", version, "mood", {"calm": "0.5", "wild": Fraction(1, 4)}, share=2)
    with_more = {**sources, "e": loader.source(version.select("cls"), weight=1)}
    plan = loader.plan(with_more, seed=3, global_batch=9, allow_repeats=True)
    assert plan.segments[0].weights == {"d:calm": 4, "d:wild": 2, "e": 3}


@CI
@example([(1, 1), (3000, 1000)])
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 1000)), min_size=1, max_size=6).filter(
        lambda bands: any(weight for _, weight in bands)
    )
)
def test_shares_are_those_of_samples_times_weights(bands):
    exact = {f"b{i}": Fraction(n * weight) for i, (n, weight) in enumerate(bands) if weight}
    found = by_score.coarse_integers(exact)
    assert found.keys() == exact.keys()
    assert min(found.values()) > 0
    assert sum(found.values()) <= by_score.RESOLUTION + len(found)
    for label, share in exact.items():
        wanted, got = share / sum(exact.values()), Fraction(found[label], sum(found.values()))
        assert abs(got - wanted) <= Fraction(len(found) + 1, by_score.RESOLUTION)
    small = {label: share for label, share in exact.items() if share < 50}
    if small and sum(small.values()) <= by_score.RESOLUTION:
        whole = by_score.coarse_integers(small)
        assert all(Fraction(whole[a], whole[b]) == small[a] / small[b] for a in small for b in small)


@pytest.mark.parametrize("world_sizes", [(2, 3), (3, 1, 2)])
def test_every_world_size_and_resume_gives_the_same(version, world_sizes):
    sources = loader.by_score("d", version.select("cls"), "aesthetic", [1, 3], edges=[0, 6, 10])
    plan = loader.plan(sources, seed=5, global_batch=6, allow_repeats=True)
    expected = [plan.batch_ids(step) for step in range(4 * len(world_sizes))]
    found, state = [], None
    for world_size in world_sizes:
        steps = []
        for rank in range(world_size):
            with loader.Loader(plan, rank, world_size, framework="numpy", workers=0) as batches:
                if state:
                    batches.load_state_dict(state)
                mine = [next(batches) for _ in range(4)]
                steps.append([list(zip(batch.ids, batch["cls"].tolist(), strict=True)) for batch in mine])
                after = batches.state_dict()
        state = after
        found += [[one for rank in steps for one in rank[step]] for step in range(4)]
    assert [[one for one, _ in step] for step in found] == expected
    assert all(key == f"k{value}" for step in found for (_, key), value in step)


def test_plan_is_stored_and_names_its_bands(version, root):
    plan = loader.plan(
        loader.by_score("d", version, "aesthetic", [0, 1, 2], edges=[0, 1, 6, float("inf")]),
        seed=1,
        global_batch=4,
        allow_repeats=True,
    )
    assert plan.source_names == ("d:1..6", "d:6..inf")
    again = loader.open_plan(root, plan.save(root))
    assert [again.batch_ids(step) for step in range(5)] == [plan.batch_ids(step) for step in range(5)]
    relabelled = root.annotate("d", "aesthetic", {"k0": {"aesthetic": 9.0}}, author="ann").version
    other = loader.by_score("d", relabelled, "aesthetic", [0, 1, 2], edges=[0, 1, 6, float("inf")])
    assert len(other["d:6..inf"].view) == 7
    assert loader.plan(other, seed=1, global_batch=4, allow_repeats=True).hash != plan.hash
    assert [again.batch_ids(step) for step in range(5)] == [plan.batch_ids(step) for step in range(5)]


def test_what_is_refused(version, root):
    edges = [0, 5, 10]
    by_label = {"0..5": 1, "5..10": 2}
    infinite = float("inf")
    above_0 = "a weight above 0 for a band with samples"
    finite = "a finite number, 0 or above"
    for arguments, more, error, what, value, accepted in (
        (("aesthetic", [1]), {"edges": edges}, InvalidPlan, "weights", [1], "a list of 2 weights"),
        (("aesthetic", by_label), {"edges": edges}, InvalidPlan, "weights", by_label, "a list of 2 weights"),
        (("mood", [1, 2]), {}, InvalidPlan, "weights", [1, 2], "a mapping of each value to its weight"),
        (("mood", {"calm": 1}), {}, InvalidPlan, "weights", ["calm"], ["calm", "wild"]),
        (
            ("mood", {"calm": 1, "wild": 1, "x": 1}),
            {},
            InvalidPlan,
            "weights",
            ["calm", "wild", "x"],
            ["calm", "wild"],
        ),
        (("mood", {"calm": -1, "wild": 1}), {}, InvalidPlan, "weight of 'calm'", -1, finite),
        (("mood", {"calm": infinite, "wild": 1}), {}, InvalidPlan, "weight of 'calm'", infinite, finite),
        (("mood", {"calm": True, "wild": 1}), {}, InvalidPlan, "weight of 'calm'", True, finite),
        (
            ("mood", {"calm": 0, "wild": 0}),
            {},
            InvalidPlan,
            "weights",
            ["0", "0"],
            above_0,
        ),
        (
            ("aesthetic", [1, 1]),
            {"edges": edges, "share": "x"},
            InvalidPlan,
            "weight of 'share'",
            "x",
            finite,
        ),
        (("aesthetic", [1, 1]), {"edges": [0, 5, 9]}, InvalidPlan, "bucket('aesthetic')", 3, "0 to 9"),
        (("nope", {"a": 1}), {}, FieldNotFound, "bucket('nope')", ["nope"], ABSENT),
    ):
        with refusal(error, what=what, given=value, accepted=accepted):
            loader.by_score("d", version, *arguments, **more)
    gone = root.annotate("d", "aesthetic", {"k3": {"aesthetic": None}}, author="ann", nulls="remove").version
    with refusal(InvalidPlan, what="bucket('aesthetic')", where="source 'd'", given=1, accepted="0 to 10"):
        loader.by_score("d", gone, "aesthetic", [1, 2], edges=edges)


def test_weight_per_sample_in_the_loss(version, root):
    """As docs/pipeline.md says: a field, which every batch, executor and micro batch brings along."""
    scores = dict(version.samples().select("key", "aesthetic").collect().iter_rows())
    weights = {"weight.npy": lambda sample: np.float32(scores[sample["__key__"]] / 10)}
    plan = loader.plan({"d": root.add_group("d", "weights", weights)}, seed=1, global_batch=6)
    with loader.Loader(plan, framework="numpy", workers=0) as batches:
        batch = next(batches)
    assert batch["weight.npy"].tolist() == [np.float32(scores[key] / 10) for _, key in batch.ids]
    assert batch["weight.npy"].dtype == np.float32
