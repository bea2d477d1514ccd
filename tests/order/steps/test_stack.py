"""Several steps planned at once, for one rank alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidRuntime
from loader.order import plan


def with_schedule(properties):
    return properties.two_sources_plan(
        schedule=[(5, {"photos": 1, "web": 2}), (9, {"web": 1}), (10, {"photos": 7, "web": 3})]
    )


def with_ramp(properties):
    views = {"a": plan.synthetic(300, "a"), "b": plan.source(plan.synthetic(90, "b"), weight=2)}
    return plan.make_plan(views, seed=1, global_batch=[(0, 8), (3, 13), (11, 40)])


def with_buckets(properties):
    sizes = {"a": {"s": 90, "l": 30}, "b": {"s": 11, "l": 200}}
    return properties.bucket_plan(sizes, {"s": 9, "l": 21}, schedule=[(7, {"a": 1, "b": 5})])


def with_padding(properties):
    return plan.make_plan({"a": plan.synthetic(50, "a")}, seed=2, global_batch=16, boundary="mask")


def with_growth(properties):
    views = properties.versions([40, 20, 10], [{0, 5}, {1, 11, 21, 29}])
    made = plan.make_plan({"a": views[0]}, seed=3, global_batch=10, quarantine=[(1, {"a": ["0/7", "0/20"]})])
    return made.grow({"a": views[1]}, 2).grow({"a": views[2]}, 4)


PLANS = [with_schedule, with_ramp, with_buckets, with_padding, with_growth]


@pytest.mark.parametrize("made", PLANS)
@settings(derandomize=True, deadline=None, max_examples=25)
@given(first=st.integers(0, 30), n=st.integers(1, 12), world_size=st.integers(1, 8))
def test_stack_is_its_steps(properties, made, first, n, world_size):
    properties.stack_is_the_steps(made(properties), range(first, first + n), world_size)


def test_far_away(properties):
    views = {"a": plan.synthetic(10**9, "a"), "b": plan.synthetic(10**6, "b")}
    made = plan.make_plan(views, seed=2, global_batch=64)
    properties.stack_is_the_steps(made, range(10**12, 10**12 + 5), 5)


@pytest.mark.parametrize(
    ("steps", "rank", "world"), [(range(-1, 2), 0, 1), (range(3), 2, 2), (range(3), 0, 49)]
)
def test_refusals(properties, steps, rank, world):
    with pytest.raises(InvalidRuntime):
        properties.two_sources_plan().stack(steps, rank, world)


def test_cost_is_that_of_the_rank(properties, monkeypatch):
    """The permutations are worked out for the rank's slots and no others."""
    from loader.order import slots

    seen = []
    real = slots.locate_samples
    monkeypatch.setattr(slots, "locate_samples", lambda *given: seen.append(len(given[-1])) or real(*given))
    made = properties.two_sources_plan(global_batch=480)
    made.stack(range(10), 3, 8)
    assert sum(seen) == 10 * 480 // 8
    assert len(seen) == 1  # both sources' at once
