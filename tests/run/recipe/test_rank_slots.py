"""Slots that were planned several steps at once are those of each step planned by itself."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.run.recipe import rank_slots as planned
from loader.run.recipe.rank_slots import AHEAD, Locate, SlotPlanner, rank_slots
from loader.run.recipe.recipe import Recipe
from loader.run.recipe.world import World

N_STEPS = 3 * AHEAD


@pytest.fixture(scope="module")
def plans(tmp_path_factory, samples):
    """Without padding, and with steps that are short at their end."""
    root = loader.Root(str(tmp_path_factory.mktemp("planned") / "root"))
    photos = samples.write(root, "photos", range(47), fields=("cls",))
    web = samples.write(root, "web", range(30), fields=("cls",))
    both = {"photos": photos, "web": web}
    return {
        "fill": loader.plan(both, seed=4, global_batch=6, allow_repeats=True),
        "mask": loader.plan({"photos": photos}, seed=4, global_batch=6, boundary="mask"),
    }


def recipe(plan, rank):
    return Recipe(
        plan=plan,
        world=World.of(rank, 2),
        decode=True,
        transform=None,
        framework="numpy",
        position_limit=None,
        substitute=True,
    )


def plain(value):
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return list(value) if isinstance(value, list | tuple | range) else value


MOVES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, -1, -5, 7, AHEAD, 2 * AHEAD]), st.integers(1, 9)),
    min_size=9,
    max_size=40,
)
"""(Steps between the end of the last steps and the first of these, number of these)."""


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.sampled_from(["fill", "mask"]), st.integers(0, 1), MOVES, st.booleans())
def test_any_requested_steps(plans, boundary, rank, moves, bounded):
    """Also where what was given out has been changed, as it is for substitutes."""
    mine = recipe(plans[boundary], rank)
    get, stop = SlotPlanner(mine, N_STEPS if bounded else None), 0
    for move, n in moves:
        first = min(max(0, stop + move), N_STEPS - 1)
        stop = min(first + n, N_STEPS)
        found = get(range(first, stop))
        assert [plain(one) for one in found] == [plain(one) for one in rank_slots(mine, range(first, stop))]
        for one in found:
            one.slots.attempt[...] = 7


def test_steps_in_a_row_are_planned_together(plans, monkeypatch):
    asked = []
    monkeypatch.setattr(
        planned, "rank_slots", lambda mine, steps: asked.append(len(steps)) or rank_slots(mine, steps)
    )
    get = SlotPlanner(recipe(plans["fill"], 0), 3 * AHEAD)
    for step in range(3 * AHEAD):
        get([step])
    assert asked == [1, AHEAD, AHEAD, AHEAD - 1]
    get([2])
    assert asked[4:] == [1], "after a move back a step is planned alone"
    whole = AHEAD // 20 * 20
    for step in range(9, 9 + 2 * whole, 20):
        get(range(step, step + 20))
    assert asked[5:] == [whole, whole], "as many whole stretches of them as there is room for"


@pytest.mark.parametrize("rank", [0, 1])
def test_only_a_step_with_padding_is_planned_by_itself(plans, rank):
    """An epoch of 47 samples has 8 steps of 6: its last one has 5 samples."""
    own = recipe(plans["mask"], rank)
    runs = rank_slots(own, range(3, 26))
    n_padded = [int((~run.valid).sum()) for run in runs]
    if rank == 0:  # every sample is missing in the last rank's part
        assert [list(run.steps) for run in runs] == [list(range(3, 26))]
        assert n_padded == [0]
        return
    assert [list(run.steps) for run in runs] == [
        [3, 4, 5, 6],
        [7],
        [8, 9, 10, 11, 12, 13, 14],
        [15],
        [16, 17, 18, 19, 20, 21, 22],
        [23],
        [24, 25],
    ]
    assert n_padded == [0, 1, 0, 1, 0, 1, 0]
    for run in runs:
        by_step = [rank_slots(own, [step])[0] for step in run.steps]
        numbers = np.concatenate([one.number for one in by_step])
        ordinals = np.concatenate([one.slots.ordinal for one in by_step])
        assert run.number.tolist() == numbers.tolist()
        assert run.slots.ordinal.tolist() == ordinals.tolist()


def test_large_steps_are_planned_alone(plans, monkeypatch):
    asked = []
    monkeypatch.setattr(
        planned, "rank_slots", lambda mine, steps: asked.append(len(steps)) or rank_slots(mine, steps)
    )
    monkeypatch.setattr(planned, "AHEAD_SLOTS", 2 * 6 + 5)
    get = SlotPlanner(recipe(plans["fill"], 0))
    for step in range(6):
        get([step])
    assert asked == [1, 2, 2, 2]


def test_error_comes_at_its_own_step(plans, monkeypatch):
    def failing(mine, steps):
        if 20 in steps:
            raise IndexError
        return rank_slots(mine, steps)

    monkeypatch.setattr(planned, "rank_slots", failing)
    get = SlotPlanner(recipe(plans["fill"], 0))
    for step in range(20):
        get([step])
    with pytest.raises(IndexError):
        get([20])


def make_locate(mine):
    stored = mine.stored
    fields = {source: view.fields for source, view in stored.items()}
    return Locate(stored, fields, dict.fromkeys(stored), [None] * len(stored))


def addresses(located):
    return [
        (one.kind.number, one.source.tolist(), one.rows.tolist(), one.places.addresses()) for one in located
    ]


def test_samples_of_steps_planned_together_are_looked_up_together(plans, monkeypatch):
    """Each step has its own, as if they were looked up alone."""
    mine, asked = recipe(plans["fill"], 1), []
    locate = make_locate(mine)
    locate(plans["fill"].slots(0), np.arange(6))  # reads the indexes, which have a row group each
    find_cached = Locate.find_cached
    monkeypatch.setattr(
        Locate, "find_cached", lambda self, slots: asked.append(1) or find_cached(self, slots)
    )
    get = SlotPlanner(mine, None, locate)
    assert get([0])[0].located is None
    for first in range(1, AHEAD - 2, 3):
        (found,) = get(range(first, first + 3))
        assert addresses(found.located) == addresses(locate(found.slots, found.real_rows))
    assert len(asked) == 1


def test_no_index_is_read_for_steps_to_come(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    plan = loader.plan(
        {"a": samples.write(root, "a", range(9), fields=("cls",))}, seed=4, global_batch=2, allow_repeats=True
    )
    mine = recipe(plan, 0)
    get = SlotPlanner(mine, None, make_locate(mine))
    assert [get([step])[0].located for step in range(3)] == [None] * 3
