"""Any sequence of uses of one loader does what the simplest loader would: one step after another, no threads."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidRuntime, TransformFailed

steps = st.integers(0, 14)
uses = st.lists(
    st.one_of(
        st.just(("next", 0)),
        st.just(("next", 0)),
        st.tuples(st.sampled_from(("seek", "load", "batch_at")), steps),
    ),
    max_size=25,
)


class Model:
    """What a loader with `steps` and a transform that fails at some steps must do."""

    def __init__(self, wanted, end, broken):
        self.wanted, self.end, self.broken, self.step = wanted, end, broken, 0

    def use(self, name, step):
        if name in ("seek", "load"):
            self.step = step
            return None
        at = self.step if name == "next" else step
        if name == "next" and at >= self.end:
            return "end"
        if at in self.broken:
            return "failed"
        self.step += name == "next"
        return at, self.wanted[at]


def do(batches, plan, name, step):
    try:
        if name == "seek":
            return batches.seek(step)
        if name == "load":
            return batches.load_state_dict(plan.state(step))
        batch = next(batches) if name == "next" else batches.batch_at(step)
    except StopIteration:
        return "end"
    except TransformFailed:
        return "failed"
    return batch.step, batch.digest


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    uses=uses,
    broken=st.sets(steps, max_size=3),
    end=st.integers(0, 15),
    workers=st.sampled_from((0, 1, 3)),
    prefetch=st.sampled_from((0, 500, None)),
)
@example(
    uses=[("next", 0), ("next", 0), ("seek", 7), ("next", 0), ("batch_at", 2), ("next", 0)],
    broken=set(),
    end=15,
    workers=1,
    prefetch=None,
)
def test_any_sequence_of_uses(uses, broken, end, workers, prefetch, versions, properties):
    plan = loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=5)
    model = Model(properties.reference_digests(plan, 15), end, broken)
    bad = {key for step in broken for _, key in plan.batch_ids(step)[:1]}
    model.broken = {step for step in range(15) if bad & {key for _, key in plan.batch_ids(step)}}

    def transform(sample, rng):
        if f"photos/{sample['cls']:03d}" in bad:
            raise ValueError("broken")
        return sample

    options = {"transform": transform, "workers": workers, "prefetch": prefetch, "steps": end}
    with loader.Loader(plan, 0, 1, framework="numpy", **options) as batches:
        for name, step in uses:
            assert do(batches, plan, name, step) == model.use(name, step)
            assert batches.state_dict() == plan.state(model.step)
    for use in (lambda: next(batches), lambda: batches.batch_at(0)):
        try:
            use()
        except InvalidRuntime:
            continue
        raise AssertionError("a closed loader went on")
