from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order.plan import make_plan
from loader.order.planned_source import source
from loader.order.sources.views import synthetic
from loader.order.substitutes import MAX_ATTEMPTS, substitute


@settings(max_examples=60, deadline=None, derandomize=True)
@given(n=st.integers(2, 300), position=st.integers(0, 2000), seed=st.integers(0, 2**64 - 1))
def test_substitute_is_the_formula_and_another_sample(reference, n, position, seed):
    views = {"a": synthetic(5), "b": source(synthetic(n), chunk=2, lanes=4)}
    made = make_plan(views, seed=seed, global_batch=1)
    epoch, i = divmod(position, n)
    own = reference.locate((n, 2, 4, 4), seed, "b", epoch, i)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        drawn = reference.key(seed, "b", "substitute", epoch, i, attempt) % (n - 1)
        got = substitute(made, 1, position, attempt)
        assert got == ((own + 1 + drawn) % n,) * 2
        assert got[0] != own


def test_attempts_differ_and_are_spread_over_the_source():
    made = make_plan({"a": synthetic(1000)}, seed=7, global_batch=10)
    drawn = [substitute(made, 0, position, attempt)[0] for position in range(50) for attempt in (1, 2, 3)]
    assert len(set(drawn)) > 120
    assert min(drawn) < 50
    assert max(drawn) > 950


def test_source_of_one_sample_has_no_other():
    made = make_plan({"a": synthetic(1)}, seed=7, global_batch=1)
    assert substitute(made, 0, 5, 1) == (0, 0)
