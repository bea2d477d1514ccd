import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import FormatTooNew, InvalidRuntime, PlanMismatch
from loader.order.digests import planned_digest
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.slots import rank_slice
from loader.order.sources.views import synthetic
from tests.refusals import refusal


def views(photos=4000, web=700, chunk=8):
    return {
        "photos": source(synthetic(photos, "p"), 3, chunk=chunk, lanes=16),
        "web": source(synthetic(web, "w"), 1),
    }


def build_plan(seed=7, global_batch=48, schedule=((10, {"photos": 1, "web": 1}),), **sizes):
    return make_plan(views(**sizes), seed=seed, global_batch=global_batch, schedule=schedule)


def test_state_is_small_json_and_accepted_by_its_own_plan():
    made = build_plan()
    for step in (0, 1, 10, 11, 10**9):
        state = json.loads(json.dumps(made.state(step)))
        assert made.check_state(state) == step
        assert state["step"] == step
        assert len(json.dumps(state)) < 700


def test_state_holds_the_digest_of_the_last_batch():
    made = build_plan()
    assert made.state(0)["digest"] == ""
    assert made.state(6)["digest"] == planned_digest(5, made.slots(5), made)


def test_only_begun_segments_and_their_sources_are_in_it():
    made = make_plan(views(), seed=7, global_batch=48, schedule=[(0, {"photos": 1}), (10, {"web": 1})])
    assert made.state(0)["past"]["sources"] == {}
    assert made.state(0)["segments"] == []
    assert list(made.state(10)["past"]["sources"]) == ["photos"]
    assert len(made.state(10)["segments"]) == 1
    assert list(made.state(11)["past"]["sources"]) == ["photos", "web"]
    assert len(made.state(11)["segments"]) == 2


LATER_EDITS = [
    None,  # the later segment removed
    [(10, {"photos": 9, "web": 1})],  # edited
    [(12, {"photos": 1, "web": 1})],  # moved
    [(10, {"photos": 1, "web": 1}), (11, {"web": 1})],  # another one added
]


@pytest.mark.parametrize("schedule", LATER_EDITS)
def test_later_segments_may_change_before_their_first_step(schedule, properties):
    made, other = build_plan(), build_plan(schedule=schedule)
    for step in (0, 1, 9, 10):
        assert other.check_state(made.state(step)) == step
        assert other.state(step) == made.state(step)
    properties.prefix_is_untouched(made, other, 10)
    if schedule != LATER_EDITS[3]:
        with pytest.raises(PlanMismatch, match="segment"):
            other.check_state(made.state(20))


def test_source_added_later_does_not_disturb_a_state():
    made = build_plan()
    more = views() | {"audio": source(synthetic(500, "a"), 0)}
    later = [(10, {"photos": 1, "web": 1}), (30, {"audio": 1})]
    other = make_plan(more, seed=7, global_batch=48, schedule=later)
    assert other.check_state(made.state(20)) == 20
    assert made.check_state(other.state(30)) == 30


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 8}, ["seed: 7 in the state, 8 in this plan"]),
        ({"global_batch": 50}, ["global_batch: 48 in the state, 50"]),
        ({"web": 701}, ["source 'web' view", "source 'web' n: 700 in the state, 701"]),
        ({"chunk": 4}, ["source 'photos' chunk: 8 in the state, 4"]),
        ({"seed": 8, "photos": 4001}, ["seed", "source 'photos' n"]),
        ({"schedule": [(3, {"web": 1})]}, ["segments[1]"]),
    ],
)
def test_another_past_is_refused_and_named(change, says):
    state = build_plan().state(20)
    with pytest.raises(PlanMismatch) as caught:
        build_plan(**change).check_state(state)
    for words in says:
        assert words in str(caught.value)


def test_renamed_source_is_another_past():
    state = build_plan().state(20)
    renamed = {"pictures" if name == "photos" else name: view for name, view in views().items()}
    with refusal(
        PlanMismatch,
        what="state",
        where="step 20",
        given=["source 'photos'", "source 'pictures'", "segments"],
    ):
        make_plan(renamed, seed=7, global_batch=48).check_state(state)


def test_even_before_the_first_step_another_seed_is_refused():
    with refusal(PlanMismatch, what="state", where="step 0", given=["seed"]):
        build_plan(seed=8).check_state(build_plan().state(0))


def test_edited_state_is_refused():
    made = build_plan()
    state = made.state(20)
    with refusal(PlanMismatch, what="plan", where="step 20", given="past-0"):
        made.check_state(state | {"plan": "past-0"})
    with refusal(PlanMismatch, what="digest", where="step 19"):
        made.check_state(state | {"digest": "0" * 16})
    with refusal(PlanMismatch, what="digest", where="step 20"):
        made.check_state(state | {"step": 21})
    with refusal(PlanMismatch, what="state", where="step 20", given=["sources are missing from the state"]):
        made.check_state(state | {"past": {**state["past"], "sources": None}})


@pytest.mark.parametrize("name", ["format", "plan", "step", "segments", "past", "digest"])
def test_state_without_a_field_is_refused_by_name(name):
    made = build_plan()
    state = made.state(20)
    for broken in ({key: value for key, value in state.items() if key != name}, state | {name: None}):
        with refusal(PlanMismatch, what="state", given=[name]):
            made.check_state(broken)


@pytest.mark.parametrize("state", [None, 5, "state", [1]])
def test_what_is_no_state_is_refused(state):
    with refusal(PlanMismatch, what="state", given=type(state).__name__, accepted="a dict from state_dict()"):
        build_plan().check_state(state)


def test_newer_and_impossible_states_are_refused():
    made = build_plan()
    state = made.state(20)
    with refusal(FormatTooNew, what="format", where="state", given=2):
        made.check_state(state | {"format": 2})
    with refusal(FormatTooNew, what="order version", where="state", given=2):
        made.check_state(state | {"past": state["past"] | {"order": 2}})
    with refusal(PlanMismatch, what="state", given=["format"]):
        made.check_state(state | {"format": 0})
    with refusal(InvalidRuntime, what="step", given=-1):
        made.check_state(state | {"step": -1})


@settings(max_examples=30, deadline=None, derandomize=True)
@given(legs=st.lists(st.tuples(st.integers(1, 48), st.integers(0, 7)), min_size=1, max_size=6))
def test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run(legs):
    """legs: (world size, batches before the stop), each leg resumed from the JSON of the one before."""
    state, got = build_plan().state(0), []
    for world_size, batches in legs:
        made = build_plan()
        first = made.check_state(json.loads(json.dumps(state)))
        for step in range(first, first + batches):
            ids = made.batch_ids(step)
            got += [ids[rank_slice(48, rank, world_size)] for rank in range(world_size)]
        state = made.state(first + batches)
    whole = build_plan()
    want = [one for step in range(sum(batches for _, batches in legs)) for one in whole.batch_ids(step)]
    assert [one for part in got for one in part] == want
    assert state == whole.state(sum(batches for _, batches in legs))
