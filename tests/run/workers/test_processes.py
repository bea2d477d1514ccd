"""Worker processes make the batches that threads make: the same bytes, ids, masks, digests, in the same order."""

import json
import pickle
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidRuntime, Unpicklable
from tests.refusals import refusal


@pytest.fixture(scope="module")
def plan(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("processes") / "root"))
    photos = samples.write(root, "photos", range(30), part_samples=11)
    web = samples.write(root, "web", range(20))
    return loader.plan({"photos": photos, "web": web.select("cls", "txt")}, seed=8, global_batch=7)


def plain(value):
    """A value with its arrays as (dtype, bytes), to compare."""
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:
            return ("tensor", "bfloat16", value.shape, plain(value.view(torch.int16)))
        return ("tensor", plain(value.numpy()))
    if isinstance(value, np.ndarray | np.generic):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


def contents(batch):
    """All of a batch but what the clock says."""
    counts = {name: value for name, value in batch.stats.items() if not name.endswith(("seconds", "_us"))}
    rest = (
        batch.step,
        batch.ids,
        batch.weight,
        batch.digest,
        batch.nbytes,
        batch.bucket,
        batch.substitutions,
    )
    return (*rest, plain(batch.mask), {name: plain(value) for name, value in batch.items()}, counts)


def apart_from_requests(batch):
    """Its contents without the number of requests: which process has read which index is its own affair."""
    *rest, counts = contents(batch)
    return *rest, {name: value for name, value in counts.items() if name != "requests"}


@pytest.fixture(scope="module", params=["torch", "numpy"])
def both(plan, in_workers, request):
    """(a loader with two worker processes, one that makes batches itself)."""
    options = {"framework": request.param, "transform": in_workers.various, "prefetch": 3 * 2**20}
    with (
        loader.Loader(plan, 1, 2, executor="processes", workers=2, **options) as processes,
        loader.Loader(plan, 1, 2, workers=0, **options) as alone,
    ):
        yield processes, alone


moves = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.sampled_from(("seek", "load", "look")), st.integers(0, 40)),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(moves=moves)
def test_whatever_is_asked_for_is_what_one_thread_makes(both, plan, moves):
    for move, number in moves:
        for one in both:
            if move == "seek":
                one.seek(number)
            elif move == "load":
                one.load_state_dict(plan.state(number))
        if move == "look":
            assert apart_from_requests(both[0].batch_at(number)) == apart_from_requests(
                both[1].batch_at(number)
            )
        for _ in range(number if move == "take" else 1):
            got, wanted = (apart_from_requests(next(one)) for one in both)
            assert got == wanted
    assert both[0].executor == "processes"
    assert both[0].state_dict() == both[1].state_dict()


@pytest.mark.parametrize(("world_size", "workers"), [(2, 1), (1, 2)])
def test_every_world_size_delivers_the_plan(plan, samples, properties, world_size, workers):
    properties.delivers_the_plan(
        plan,
        lambda source, key: samples.sample(source, samples.number(key)),
        world_size=world_size,
        workers=workers,
        executor="processes",
        prefetch=1,
        start=3,
    )


def test_run_goes_on_with_other_executors(plan, properties, in_workers):
    script = [("processes", 2, 3, 1), ("threads", 1, 2, 2), ("processes", 1, 2, 1), ("auto", 0, 1, 3)]
    wanted = properties.reference_digests(plan, 8)
    got, state = {}, json.dumps(plan.state(0))
    for executor, workers, taken, world_size in script:
        with ExitStack() as stack:
            options = {"executor": executor, "workers": workers, "transform": in_workers.noisy}
            ranks = properties.open_ranks(stack, plan, world_size, **options)
            for rank in ranks:
                rank.load_state_dict(json.loads(state))
            for _ in range(taken):
                batches = [next(rank) for rank in ranks]
                got[batches[0].step] = sum(batch.digest for batch in batches) % properties.MODULUS
            state = properties.state_text(ranks)
    assert got == wanted


def test_randomness_is_the_samples_own(plan, in_workers):
    def read_draws(**options):
        with loader.Loader(plan, 0, 1, transform=in_workers.noisy, steps=4, **options) as batches:
            return [contents(batch)[-2:-1] for batch in batches]

    assert read_draws(executor="processes", workers=2) == read_draws(executor="threads", workers=2)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_tensors_of_a_transform(plan, in_workers, framework):
    def read_batches(**options):
        options |= {"transform": in_workers.tensors, "framework": framework, "epochs": None, "steps": 3}
        with loader.Loader(plan, 0, 1, **options) as batches:
            return [contents(batch)[:-1] for batch in batches]

    assert read_batches(executor="processes", workers=1) == read_batches(workers=0)


def test_rank_of_padding_alone(plan, in_workers):
    few = loader.plan({"p": plan.sources["photos"].view}, seed=1, global_batch=8)

    def last(**options):
        with loader.Loader(few, 3, 4, epochs=1, transform=in_workers.tensors, **options) as batches:
            return [contents(batch)[:-1] for batch in batches][-1]

    padded = last(executor="processes", workers=1)
    assert padded == last(workers=0)
    assert padded[1] == [None, None]


def test_raw_bytes(plan):
    def read_batches(**options):
        with loader.Loader(plan, 0, 1, decode=False, steps=3, **options) as batches:
            return [contents(batch)[:-1] for batch in batches]

    assert read_batches(executor="processes", workers=1) == read_batches(workers=0)


def test_worker_imports_neither_torch_nor_dagster(plan, in_workers):
    options = {"transform": in_workers.where, "executor": "processes", "workers": 1, "steps": 2}
    with loader.Loader(plan, 0, 1, framework="torch", **options) as batches:
        for batch in batches:
            assert isinstance(batch.mask, torch.Tensor)
            assert set(batch["heavy"]) == {""}
            assert set(batch["pid"].tolist()) == set(batches._execution.prefetch()._maker.pids)


def test_metrics_are_those_of_threads(plan, in_workers):
    def read_metrics(**options):
        with loader.Loader(plan, 0, 1, transform=in_workers.noisy, steps=5, **options) as batches:
            slow = [batch.slowest for batch in batches if batch.slowest]
            assert {(one.step, one.key) for one in slow} == {(one.step, one.key) for one in batches.slowest()}
            seen, text = batches.metrics(), batches.metrics_text()
        assert 'penstock_samples_total{rank="0",source="photos"}' in text
        assert seen["decode_seconds_count"] == seen["transform_seconds_count"] == 5
        assert 0 < seen["room_wait_seconds_count"] <= 5
        assert seen["handover_wait_seconds_count"] == 5
        kept = (
            "batches",
            "samples",
            "consumed_batches",
            "consumed_samples",
            "fetched_bytes",
            "decoded_bytes",
        )
        return [seen[f"{name}_total"] for name in kept]

    assert read_metrics(executor="processes", workers=2) == read_metrics(executor="threads", workers=2)


def test_status_line_names_processes(plan):
    with loader.Loader(plan, 0, 1, executor="processes", workers=1, steps=2) as batches:
        list(batches)
        assert "worker processes: " in batches.status_line()
        assert (batches.executor, batches.workers, batches.executor_reason) == (
            "processes",
            1,
            "as requested",
        )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"executor": "fibres"}, {"what": "executor", "given": "fibres"}),
        ({"executor": "processes", "workers": 0}, {"what": "workers", "given": 0}),
    ],
)
def test_refusals(plan, options, fault: dict[str, object]):
    with refusal(InvalidRuntime, **fault):
        loader.Loader(plan, 0, 1, **options)


def test_store_in_memory_cannot_be_sent(versions):
    plan = loader.plan({"p": versions["photos"]}, seed=1, global_batch=4)
    with refusal(Unpicklable, what="source 'p'", given="memory://run-versions"):
        loader.Loader(plan, 0, 1, executor="processes")


def test_loader_is_not_what_is_sent(plan, in_workers):
    """Nobody can see in the command line of a worker what it was sent."""
    with loader.Loader(plan, 0, 1, executor="processes", workers=1, transform=in_workers.noisy) as batches:
        next(batches)
        (pid,) = batches._execution.prefetch()._maker.pids
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
        assert b"noisy" not in command
        assert pickle.dumps(plan)[:20] not in command


def test_packed_sequences(tmp_path):
    root = loader.Root(str(tmp_path / "root"))
    with root.write("docs") as writer:
        for number in range(40):
            writer.add(f"{number:03d}", {"tokens.npy": np.arange(number % 13, dtype=np.int32)})
    view = root.open("docs@1").select("tokens.npy")
    plan = loader.plan({"docs": view}, seed=3, global_batch=4, pack=loader.pack("tokens.npy", 16, pad_id=9))

    def read_batches(**options):
        with loader.Loader(plan, 0, 1, steps=4, **options) as batches:
            return [contents(batch)[:-1] for batch in batches]

    assert read_batches(executor="processes", workers=1) == read_batches(workers=0)
