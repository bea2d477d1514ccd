"""What makes the items of datasets: the training's thread, then processes if they pay; never a thread beside it."""

import functools
import os
import threading
from time import perf_counter, sleep

import pytest

import loader
from loader.errors import InvalidRuntime
from loader.run import executor
from loader.run.items import item_watch
from loader.run.items.first_maker import processes_instead
from loader.run.maker_choice import Maker, Room, Stages
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

BATCH = 8
MOST_STEPS = 2000


@pytest.fixture
def cores(monkeypatch):
    """Let the machine have two cores, whatever other programs leave of it."""
    monkeypatch.setattr(executor, "rank_cores", lambda: 2)
    monkeypatch.setattr(executor, "rank_processes", lambda: 2)


def make_plan(dataset):
    return loader.plan({"photos": dataset}, seed=7, global_batch=BATCH)


def until_decided(batches):
    """Take batches until another maker makes them, or a reason says why not; return (step, digest) of each."""
    first = batches.executor_reason
    taken = []
    for batch in batches:
        taken.append((batch.step, batch.digest))
        if batches.executor_reason != first or len(taken) == MOST_STEPS:
            break
    return taken


def digests(plan, steps):
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        return [(step, batches.batch_at(step).digest) for step in steps]


def test_auto_moves_slow_items_to_processes(cores, datasets):
    plan = make_plan(datasets.Slow())
    with loader.Loader(plan, 0, 1) as batches:
        assert (batches.executor, batches.workers) == ("caller", 0)
        taken = until_decided(batches)
        assert batches.executor == "processes"
        assert "making the items took" in batches.executor_reason
        after = [(batch.step, batch.digest) for batch, _ in zip(batches, range(3), strict=False)]
        assert "tried: the training's own thread for" in batches.describe()
    steps = [step for step, _ in taken + after]
    assert steps == list(range(len(steps)))
    assert (taken + after)[-6:] == digests(plan, steps[-6:])


def test_auto_stays_with_the_training_if_items_cost_it_little():
    room = Room(cores=8, processes=8, threads=False, local=True, caller=False)
    caller = Maker("caller", 0)

    def stages(wait_share):
        return Stages(
            wait_share=wait_share,
            compute_share=0.5,
            decode_share=0.9,
            fetch_share=0.0,
            load=wait_share,
            cores=1.0,
        )

    assert processes_instead(room, stages(0.05), caller) is None
    maker, why = processes_instead(room, stages(0.4), caller)
    assert maker == Maker("processes", 8)
    assert why == "making the items took 40% of the time of the training's thread"
    assert processes_instead(room, stages(0.4), Maker("processes", 8)) is None
    alone = Room(cores=1, processes=1, threads=False, local=True, caller=False)
    assert processes_instead(alone, stages(0.4), caller) is None
    barred = Room(cores=8, processes=0, threads=False, local=True, caller=False)
    assert processes_instead(barred, stages(0.4), caller) is None


def test_dataset_that_cannot_be_sent_stays_with_the_training(cores, datasets, caplog):
    dataset = datasets.Slow()
    dataset.lock = threading.Lock()
    with loader.Loader(make_plan(dataset), 0, 1) as batches:
        until_decided(batches)
        assert batches.executor == "caller"
        assert "worker processes cannot start" in batches.describe()
        assert "lock" in batches.describe()
        for _ in range(5):
            next(batches)
        assert batches.executor == "caller"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert (
        "the training's own thread makes the batches, though worker processes would be faster" in warnings[0]
    )


def test_worker_that_cannot_send_a_batch_leaves_items_to_the_training(cores, datasets, caplog):
    collate = functools.partial(datasets.unpicklable_items, os.getpid())
    plan = make_plan(loader.items(datasets.Slow(), collate=collate))
    with loader.Loader(plan, 0, 1) as batches:
        taken = until_decided(batches)
        assert batches.executor == "processes"
        for batch in batches:
            taken.append((batch.step, batch.digest))
            if batches.executor != "processes":
                break
        assert batches.executor == "caller"
        assert "worker processes were faster, but field 'collated'" in batches.executor_reason
        taken += [(batch.step, batch.digest) for batch, _ in zip(batches, range(3), strict=False)]
    assert [step for step, _ in taken] == list(range(len(taken)))
    assert taken[-6:] == digests(plan, range(len(taken))[-6:])


class Watched:
    """Records the threads that are in the dataset at the same time."""

    def __init__(self):
        self.threads = set()
        self.inside = 0
        self.most = 0

    def __len__(self):
        return 400

    def __getitem__(self, i):
        self.threads.add(threading.get_ident())
        self.inside += 1
        self.most = max(self.most, self.inside)
        sleep(0.0003)  # lets another thread run, whatever the machine does
        self.inside -= 1
        return i


def test_dataset_is_never_called_by_two_threads_at_once():
    dataset = Watched()
    plan = make_plan(dataset)
    with loader.Loader(plan, 0, 1, steps=20, workers=0) as batches:
        others = [threading.Thread(target=batches.batch_at, args=(step,)) for step in range(20, 26)]
        for other in others:
            other.start()
        assert len(list(batches)) == 20
        for other in others:
            other.join()
    assert len(dataset.threads) > 1
    assert dataset.most == 1


def test_datasets_of_two_loaders_draw_one_after_the_other(datasets):
    """A validation loader in a thread of its own leaves the training's items as they are."""
    plan = loader.plan({"photos": datasets.Augmented()}, seed=7, global_batch=30)
    with loader.Loader(plan, 0, 1, steps=6, workers=0) as batches:
        expected = [batch["image"].tolist() for batch in batches]
    results = {}

    def run(number):
        with loader.Loader(plan, 0, 1, steps=6, workers=0) as batches:
            results[number] = [batch["image"].tolist() for batch in batches]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number] == expected for number in range(3)] == [True, True, True]


def test_device_that_comes_later_moves_items_to_processes(datasets):
    from loader.run.device.device_backend import DeviceBackend, Finished

    class Memory(DeviceBackend):
        def copy(self, batch):
            return batch, Finished(0)

        def moved(self, batch):
            return batch

    plan = make_plan(datasets.Augmented())
    with loader.Loader(plan, 0, 1, steps=4) as batches:
        first = next(batches).digest
        assert batches.executor == "caller"
        rest = [batch.digest for batch in batches.on(Memory())]
        assert batches.executor == "processes"
    assert list(enumerate([first, *rest])) == digests(plan, range(4))
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        with refusal(InvalidRuntime, what="workers", given=0, accepted="'auto', or at least 1"):
            batches.on(Memory())
        assert next(batches).digest == first


def warnings_about_items(caplog, count):
    """Wait for warnings, and return them."""
    deadline = perf_counter() + PATIENCE_S
    while perf_counter() < deadline:
        messages = [
            record.getMessage() for record in caplog.records if "has not returned" in record.getMessage()
        ]
        if len(messages) >= count:
            return messages
        sleep(0.02)
    raise AssertionError("no item was named")


def test_item_that_hangs_in_a_worker_is_named_and_close_ends(datasets, caplog):
    plan = loader.plan({"photos": datasets.Hanging()}, seed=7, global_batch=120)
    batches = loader.Loader(plan, 0, 1, workers=1)
    errors = []

    def take():
        try:
            next(batches)
        except BaseException as error:  # noqa: BLE001 - the test counts them
            errors.append(error)

    waiting = threading.Thread(target=take)
    waiting.start()
    (message,) = warnings_about_items(caplog, 1)
    assert message.startswith("source 'photos': item 7 has not returned for ")
    batches.close()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert len(errors) == 1


def test_item_that_hangs_in_the_training_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr(item_watch, "SLOW_S", 0.2)
    returns = threading.Event()

    class Stuck:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            if i == 7:
                returns.wait(PATIENCE_S)
            return i

    plan = loader.plan({"photos": Stuck()}, seed=7, global_batch=40)
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        taken = []
        waiting = threading.Thread(target=lambda: taken.append(next(batches)))
        waiting.start()
        warnings_about_items(caplog, 1)
        sleep(0.5)
        returns.set()
        waiting.join(PATIENCE_S)
        assert sorted(taken[0]["item"].tolist()) == list(range(40))
        assert len(warnings_about_items(caplog, 1)) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert "penstock-item-watch" not in names
