"""`loader.torch_dataset` in torchdata's StatefulDataLoader: the package's own state is the position."""

import json
from functools import cache
from itertools import islice

import pytest
from torch.utils.data import DataLoader

import loader
from loader.api.torch_iterable import next_step
from loader.errors import PlanMismatch
from tests.refusals import refusal

STEPS = 7

needs_torchdata = pytest.mark.server
quiet = [
    pytest.mark.filterwarnings("ignore:.*vital.*", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes"),  # on a small machine
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*"),
]
pytestmark = quiet


@pytest.fixture(scope="module")
def plan(tmp_path_factory, samples):
    root = loader.Root(str(tmp_path_factory.mktemp("torchdata") / "root"))
    version = samples.write(root, "photos", range(30), part_samples=11, fields=("cls", "txt"))
    return loader.plan({"photos": version}, seed=8, global_batch=6)


@pytest.fixture(scope="module")
def reference_steps(plan, properties):
    return list(properties.reference_digests(plan, STEPS).items())


def stateful(dataset, workers, start="fork", **options):
    """The real thing. (The versions lie on disk, so that workers may be forked, which starts them quickly.)"""
    from torchdata.stateful_dataloader import StatefulDataLoader

    context = start if workers else None
    return StatefulDataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, **options
    )


def short_dataset(plan, rank=0, world_size=1):
    return loader.torch_dataset(plan, rank, world_size, steps=STEPS)


def read_digests(iterable, n=STEPS + 1):
    return [(batch.step, batch.digest) for batch in islice(iterable, n)]


@cache
def states(plan, workers, every):
    """The StatefulDataLoader's states after each number of batches, as JSON."""
    batches = stateful(short_dataset(plan), workers, snapshot_every_n_steps=every)
    iterator, found = iter(batches), []
    for _ in range(STEPS + 1):
        found.append(json.dumps(batches.state_dict()))
        next(iterator, None)
    return found


def state_after_steps(plan, n, workers, every=1):
    return json.loads(states(plan, workers, every)[n])


@needs_torchdata
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_its_own_state_restores_the_position_anywhere(plan, reference_steps, workers):
    for stop in range(STEPS):
        state = state_after_steps(plan, stop, workers)
        resumed = stateful(short_dataset(plan), workers)
        resumed.load_state_dict(state)
        assert read_digests(resumed) == reference_steps[stop:]


@needs_torchdata
def test_spawned_workers_and_a_resume_of_a_resume(plan, reference_steps):
    resumed = stateful(short_dataset(plan), 2, start="spawn")
    resumed.load_state_dict(state_after_steps(plan, 3, 2))
    assert read_digests(resumed, 2) == reference_steps[3:5]
    again = stateful(short_dataset(plan), 2)
    again.load_state_dict(resumed.state_dict())
    assert read_digests(again) == reference_steps[5:]


@needs_torchdata
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("every", [1, 3])
def test_dataset_takes_it_for_any_number_of_workers(plan, reference_steps, before, every, at_scale):
    stops = range(STEPS + 1)  # of every third step alone too: between two of its own states is the harder
    if every == 1:
        stops = at_scale((0, 3, STEPS), stops)
    for stop in stops:
        state = state_after_steps(plan, stop, before, every)
        dataset = short_dataset(plan)
        dataset.load_state_dict(state)
        assert dataset.state_dict() == plan.state(stop)
        after = (before + stop) % 4
        assert read_digests(stateful(dataset, after)) == reference_steps[stop:]
    assert (
        read_digests(DataLoader(dataset, batch_size=None)) == []
    )  # a run that has ended goes on with nothing


@needs_torchdata
def test_package_refuses_another_number_of_workers_itself(plan):
    """Were it to accept one day, each worker would go on at another worker's step."""
    for before, after in ((2, 1), (2, 3), (0, 1), (1, 0)):
        resumed = stateful(short_dataset(plan), after)
        resumed.load_state_dict(state_after_steps(plan, 4, before))
        with pytest.raises(AssertionError):
            next(iter(resumed))


@needs_torchdata
def test_finished_pass_begins_anew_by_its_state_and_not_by_the_datasets(plan, reference_steps):
    """With workers, the package takes a finished pass for an epoch; docs/training.md says so."""
    state = state_after_steps(plan, STEPS, 2)
    finished = stateful(short_dataset(plan), 2)
    assert read_digests(finished) == reference_steps
    anew = stateful(short_dataset(plan), 2)
    anew.load_state_dict(finished.state_dict())
    assert read_digests(anew) == reference_steps
    for end in (state, finished.state_dict()):
        dataset = short_dataset(plan)
        dataset.load_state_dict(end)
        assert read_digests(stateful(dataset, 2)) == []


@needs_torchdata
def test_one_ranks_state_serves_any_world_size(plan, reference_steps, properties):
    """As Lightning and Accelerate keep it: the first rank's alone."""
    first = stateful(short_dataset(plan, 0, 2), 2)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = first.state_dict()
    for world_size in (1, 2, 3):
        digests = {}
        for rank in range(world_size):
            resumed = stateful(short_dataset(plan, rank, world_size), 2)
            resumed.load_state_dict(state)
            for batch in resumed:
                digests[batch.step] = (digests.get(batch.step, 0) + batch.digest) % properties.MODULUS
        assert list(digests.items()) == reference_steps[3:]


@needs_torchdata
def test_state_of_another_plan(plan):
    other = loader.plan({"photos": plan.sources["photos"].view}, seed=9, global_batch=6)
    # A state of two workers has the step of the one that is ahead.
    for workers, step in ((0, 3), (2, 4)):
        with refusal(PlanMismatch, what="state", where=f"step {step}", given=["seed"]):
            short_dataset(other).load_state_dict(state_after_steps(plan, 3, workers))


def test_what_is_no_such_state_is_refused(plan):
    workers = {"worker_0": {"dataset_state": plan.state(1)}}
    missing = ["format", "plan", "segments", "past", "digest"]
    for state, fault in (
        ({"_snapshot": {}}, ["_snapshot"]),
        ({"_snapshot": None}, ["_snapshot"]),
        ({"_snapshot": {"_worker_snapshots": {}}, "_steps_since_snapshot": 0}, "no worker's state"),
        ({"_snapshot": {"_worker_snapshots": workers}}, ["_snapshot"]),
        ({"dataset_state": None}, "NoneType"),
        ({"step": 3}, missing),
        (None, "NoneType"),
    ):
        with refusal(PlanMismatch, what="state", given=fault):
            next_step(plan, state)
