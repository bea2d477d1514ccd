"""Arguments and uses that cannot be: each a clear error, none a hang."""

import copy
import pickle
import threading

import numpy as np
import pytest

import loader
from loader.errors import FieldNotFound, InvalidPlan, InvalidRuntime, Unpicklable
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python


@pytest.fixture(scope="module")
def plan(versions):
    return loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=6)


@pytest.mark.parametrize(
    ("arguments", "what", "given"),
    [
        ((3, 3), "rank", 3),
        ((-1, 3), "rank", -1),
        ((0, 0), "world_size", 0),
        ((0, 7), "world_size", 7),
        ((0, None), "rank", [0, None]),
        ((None, 2), "rank", [None, 2]),
        ((0.0, 1), "rank", 0.0),
        ((True, 2), "rank", True),
        (("0", "1"), "world_size", "1"),
        (("0", 1), "rank", "0"),
    ],
)
def test_rank_and_world_size(plan, arguments, what, given):
    with refusal(InvalidRuntime, what=what, given=given):
        loader.Loader(plan, *arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": -1},
        {"workers": 1.5},
        {"workers": "many"},
        {"workers": True},
        {"prefetch": -1},
        {"prefetch": "1GB"},
        {"steps": -1},
        {"steps": 2.0},
        {"epochs": 0},
        {"epochs": True},
        {"framework": "mxnet"},
    ],
)
def test_runtime_options(plan, options):
    ((name, value),) = options.items()
    before = set(threading.enumerate())
    with refusal(InvalidRuntime, what=name, given=value):
        loader.Loader(plan, 0, 1, **options)
    assert set(threading.enumerate()) <= before


def test_numpy_integers_are_whole_numbers(plan):
    with loader.Loader(plan, np.int64(1), np.int32(2), workers=np.int8(0), steps=np.int64(2)) as batches:
        assert len(list(batches)) == 2
        assert batches.world.rank == 1


def test_view_without_bytes(plan):
    planned = loader.plan({"s": loader.synthetic(100)}, seed=1, global_batch=4)
    with refusal(InvalidRuntime, what="view", where="source 's'", given="SyntheticView"):
        loader.Loader(planned, 0, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_closed_loader(plan, workers):
    batches = loader.Loader(plan, 0, 1, workers=workers)
    next(batches)
    batches.close()
    batches.close()
    for use in (lambda: next(batches), lambda: batches.batch_at(0)):
        with refusal(InvalidRuntime, what="Loader", given="closed"):
            use()
    assert batches.state_dict()["step"] == 1
    assert batches.metrics()["batches_total"] >= 1


def test_plan_of_views_on_a_disk_pickles(tmp_path, samples, properties):
    root = loader.Root(str(tmp_path / "root"))
    view = samples.write(root, "photos", range(9)).select("cls").where("i < 7")
    plan = loader.plan({"p": view}, seed=1, global_batch=6)
    copy = pickle.loads(pickle.dumps(plan))  # noqa: S301 - our own
    assert copy == plan
    assert properties.reference_digests(copy, 3) == properties.reference_digests(plan, 3)


FORK = """
import os, sys
import loader
from loader.errors import PenstockError

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
workers = int(sys.argv[3])
batches = loader.Loader(plan, 0, 1, workers=workers, framework="numpy")
if sys.argv[4] == "used":
    next(batches)
child = os.fork()
if child == 0:
    for use in (lambda: next(batches), lambda: batches.batch_at(3)):
        try:
            use()
            print("no error")
        except PenstockError as error:
            print(type(error).__name__, error)
    batches.close()
    with loader.Loader(plan, 0, 1, workers=workers, framework="numpy") as own:
        print("own", next(own).digest)
    del batches
    sys.stdout.flush()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", loader.Loader(plan, 0, 1, workers=0, framework="numpy").batch_at(0).digest)
batches.close()
"""


@pytest.mark.parametrize(("workers", "used"), [(2, "used"), (0, "used"), (2, "unused")])
def test_forked_child_is_told_and_may_make_its_own(tmp_path, samples, workers, used):
    root = loader.Root(str(tmp_path / "root"))
    plan = loader.plan({"p": samples.write(root, "photos", range(9))}, seed=1, global_batch=6)
    plan.save(root)
    done = python("-c", FORK, root.url, plan.hash, workers, used)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in lines[:2]:
        assert line.startswith("InvalidRuntime this Loader was made in process")
        assert "Make the Loader in the child, or start workers by spawn" in line
    assert lines[2].removeprefix("own ") == lines[3].removeprefix("parent ")


@pytest.mark.parametrize("given", [None, "p-abc", {"p": 1}])
def test_what_is_no_plan(given):
    with refusal(InvalidRuntime, what="plan", given=given):
        loader.Loader(given, 0, 1)


def test_version_instead_of_a_mapping_or_a_plan(versions):
    with refusal(InvalidPlan, what="sources", given=versions["photos"]):
        loader.plan(versions["photos"], seed=1, global_batch=2)
    with refusal(InvalidRuntime, what="plan", given=versions["photos"]):
        loader.Loader(versions["photos"], 0, 1)


@pytest.mark.parametrize("names", [["cls", "txt"], ("cls",), None, 5])
def test_names_of_fields_in_a_list(versions, names):
    for whole in (versions["photos"], versions["photos"].select()):
        with refusal(FieldNotFound, what="field", given=names, accepted="names of fields"):
            whole.select(names)


def test_transform_that_is_no_function_and_a_ledger_that_is_no_root(plan):
    with refusal(InvalidRuntime, what="transform", given="flip"):
        loader.Loader(plan, 0, 1, transform="flip")
    with refusal(InvalidRuntime, what="ledger", given="here"):
        loader.Loader(plan, 0, 1, ledger="here")


def test_field_that_the_batch_does_not_have(plan):
    with loader.Loader(plan, 0, 1, workers=0) as batches, pytest.raises(KeyError, match="it has 'cls'"):
        next(batches)["image"]


def test_loader_is_not_sent_or_copied(plan):
    with loader.Loader(plan, 0, 1, workers=0) as batches:
        for move in (pickle.dumps, copy.copy, copy.deepcopy):
            with refusal(Unpicklable, what="Loader", accepted="its plan"):
                move(batches)


def test_threads_that_share_a_loader_get_different_batches(plan):
    taken = []
    with loader.Loader(plan, 0, 1, workers=0, steps=60) as batches:
        inside, look = batches._next, threading.Lock()

        def alone():
            assert look.acquire(blocking=False), "two threads make a batch at once"
            try:
                return inside()
            finally:
                look.release()

        batches._next = alone
        threads = [
            threading.Thread(target=lambda: taken.extend(one.step for one in batches)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(taken) == list(range(60))
