"""The numbers of describe(), counted on small plans step by step."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidRuntime
from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.sources.bucket import bucket
from loader.order.sources.views import synthetic
from tests.refusals import refusal


def step_samples(made, steps):
    """name -> its samples in these steps."""
    names = made.source_names
    return Counter(names[k] for step in steps for k in made.slots(step).source.tolist())


def exhaustion_step(made, limit):
    """name -> the step that takes the last sample of its first epoch, counted."""
    out, used = {}, Counter()
    for step in range(limit):
        used.update(step_samples(made, [step]))
        for name, one in made.sources.items():
            if used[name] >= one.shape.n:
                out.setdefault(name, step)
    return out


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    photos=st.dictionaries(st.sampled_from(("b0", "b1", "b2")), st.integers(6, 60), min_size=1),
    web=st.dictionaries(st.sampled_from(("b1", "b3")), st.integers(6, 60), min_size=1),
    batches=st.fixed_dictionaries({"b0": st.integers(1, 6), "b1": st.integers(1, 6)}),
    bucketed=st.booleans(),
    weights=st.tuples(st.integers(1, 4), st.integers(0, 4)),
    at=st.integers(1, 20),
)
def test_exhaustion_is_the_step_that_a_count_finds(photos, web, batches, bucketed, weights, at):
    views = {
        "photos": source(synthetic(sum(photos.values()), "p", photos), weights[0]),
        "web": source(synthetic(sum(web.values()), "w", web), weights[1]),
    }
    labels = {*photos, *web}
    by = (
        bucket("b", batch={label: n for label, n in batches.items() if label in labels}) if bucketed else None
    )
    made = make_plan(
        views, seed=1, global_batch=6, bucket_by=by, schedule=[(at, {"photos": 1})], allow_repeats=True
    )
    facts, limit = made.facts(), 150
    counted = exhaustion_step(made, limit)
    told = {name: one["exhausted_at_step"] for name, one in facts["sources"].items()}
    assert {name: step for name, step in told.items() if step is not None and step < limit} == counted
    if counted:
        assert (told[facts["first_exhausted"]], facts["first_exhausted"]) == min(
            (step, name) for name, step in counted.items()
        )
    web_ends = [step for name, step in told.items() if name.startswith("web")]
    assert all(step is None or step < at for step in web_ends)


def test_rates_of_a_bucketed_mixture_are_those_of_a_whole_cycle():
    views = {
        "photos": source(synthetic(300, "p", {"b0": 120, "b1": 180}), 2),
        "web": synthetic(90, "w", {"b1": 60, "b2": 30}),
    }
    made = make_plan(views, seed=1, global_batch=12, bucket_by=bucket("b", batch={"b0": 6}))
    (facts,) = made.facts()["segments"]
    cycle = facts["buckets"]["b0"]["total_turns"] * 3  # 3: the weights in a bucket repeat too
    counted = step_samples(made, range(cycle))
    for name, one in facts["sources"].items():
        assert counted[name] == pytest.approx(cycle * one["samples_per_step"], rel=1e-12)
        assert one["steps_per_epoch"] == pytest.approx(made.sources[name].shape.n * cycle / counted[name])
    assert sum(counted.values()) == pytest.approx(cycle * facts["samples_per_step"])
    turns = Counter(made.bucket(step) for step in range(cycle))
    assert turns == {label: 3 * one["turns"] for label, one in facts["buckets"].items()}
    for name, steps in facts["steps_per_epoch"].items():
        mine = sum(count for full, count in counted.items() if made.sources[full].source == name)
        assert steps == pytest.approx({"photos": 300, "web": 90}[name] * cycle / mine)


class Sized:
    """A view of samples of 1000 bytes."""

    def __init__(self, n, name):
        self._view = synthetic(n, name)
        self.mean_sample_bytes = 1000

    def __len__(self):
        return len(self._view)

    def __getattr__(self, name):
        return getattr(self._view, name)


def test_bytes_requests_and_working_set():
    views = {"a": source(Sized(4000, "p"), 3, chunk=8, lanes=16), "b": Sized(700, "w")}
    made = make_plan(views, seed=7, global_batch=48, schedule=[(9, {"b": 1})])
    facts = made.facts(world_size=4, steps_per_s=2.5)
    first, later = facts["segments"]
    assert (first["start_step"], first["end_step"], later["end_step"]) == (0, 9, None)
    assert first["bytes_per_step"] == 48_000
    assert first["per_s"] == {
        "samples": 120.0,
        "bytes": 120_000.0,
        "requests": 120.0,
        "chunk_requests": 2.5 * (36 / 8 + 12),
    }
    assert first["per_rank_per_s"] == {name: value / 4 for name, value in first["per_s"].items()}
    a, b = facts["sources"]["a"], facts["sources"]["b"]
    assert (a["live_chunks"], a["live_bytes"], facts["live_bytes"]) == (64, 512_000, 512_000)
    assert (b["live_chunks"], b["live_bytes"], b["tail_share"]) == (0, 0, 0)
    assert a["tail_share"] == (4000 - 16 * 4 * 8 * 7) / 4000
    few = make_plan({"a": source(Sized(100, "p"), chunk=8, lanes=16)}, seed=7, global_batch=48)
    assert few.facts()["sources"]["a"]["live_chunks"] == 13
    assert few.facts()["live_bytes"] == 100_000


def test_words_are_the_numbers():
    photos = synthetic(300, "p", {"b0": 120, "b1": 180})
    made = make_plan({"a": photos}, seed=7, global_batch=20, bucket_by=bucket("shape", batch={"b0": 10}))
    text = made.describe(world_size=5, steps_per_s=2)
    for words in (
        "bucketed by shape, 2 source(s)",
        "bucket 'b0': batches of 10, 4 of 7 steps (57.14 %)",
        "bucket 'b1': batches of 20, 3 of 7 steps (42.86 %)",
        "'a/b0': 1 of 1 slots (100.00 %), an epoch is 21.0 steps",
        "'a': an epoch is 21.0 steps in all",
        "first exhausted: 'a/b",
        "exhausted (and begun again) at step 20",
        "a step has 14.3 samples, 0 bytes; at 2 steps/s 28.6 samples/s",
        "each of 5 ranks: 5.7 samples/s",
    ):
        assert words in text, (words, text)
    never = make_plan({"a": photos, "b": source(synthetic(50), 0)}, seed=7, global_batch=20).describe()
    assert "never exhausted" in never


@pytest.mark.parametrize(
    ("name", "value"),
    [("world_size", 0), ("world_size", 11), ("steps_per_s", 0), ("steps_per_s", "1"), ("steps_per_s", True)],
)
def test_what_no_run_can_be(name, value):
    photos = synthetic(300, "p", {"b0": 120, "b1": 180})
    made = make_plan({"a": photos}, seed=7, global_batch=20, bucket_by=bucket("shape", batch={"b0": 10}))
    with refusal(InvalidRuntime, what=name, given=value):
        made.facts(**{name: value})
