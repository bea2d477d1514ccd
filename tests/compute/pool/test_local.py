"""Local processes: how they start, how far they run ahead, how they end with their parent."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from loader.errors import InvalidRuntime, Unpicklable
from penstock.compute.pool import LocalCompute
from penstock.compute.pool.environment import visible_gpus, worker_environment
from penstock.compute.pool.local import AHEAD_BYTES, AHEAD_UNITS
from penstock.compute.pool.process import MapTask, Pool
from tests.refusals import refusal
from tests.servers.patience import until
from tests.servers.processes import python

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
DRIVER = str(HERE / "units" / "compute_driver.py")
TIMEOUT_S = 600.0


@pytest.fixture
def engine():
    opened = LocalCompute(2)
    yield opened
    opened.close()


class Watched(Sequence):
    """Numbers, and how far anybody looked."""

    def __init__(self, n, value):
        self.n, self.value, self.furthest = n, value, -1

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.furthest = max(self.furthest, index)
        return self.value


def test_worker_imports_what_the_function_needs_and_nothing_else(engine, units) -> None:
    import dagster  # the parent has it

    assert dagster.__name__ in sys.modules
    heavy = ["dagster", "torch", "av", "loader", "resources", "pytest", "multiprocessing"]
    (outcome,) = engine.map(units.modules, [heavy], timeout_s=TIMEOUT_S)
    loaded, main, path, safe = outcome.value
    assert (loaded, main, safe) == ([], "worker.py", True)
    assert path == sys.path, "and not the folder of the worker's own file"


def test_pool_does_not_import_dagster() -> None:
    code = "import sys, penstock.compute.pool; assert 'dagster' not in sys.modules"
    done = python("-c", code, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


def test_workers_start_when_needed_and_are_used_again(units, children) -> None:
    before = children()
    engine = LocalCompute(3)
    assert children() == before
    one = [outcome.value for outcome in engine.map(units.pid, [0], timeout_s=TIMEOUT_S)]
    assert children() - before == set(one), "one unit, one worker"
    again = [outcome.value for outcome in engine.map(units.pid, [0], timeout_s=TIMEOUT_S)]
    assert again == one
    many = {outcome.value for outcome in engine.map(units.pid, range(200), timeout_s=TIMEOUT_S)}
    assert set(one) <= children() - before
    assert many <= children() - before
    assert len(children() - before) <= 3
    engine.close()
    assert children() == before


def test_idle_workers_that_were_killed_cost_a_unit_nothing(engine, units, children, tmp_path) -> None:
    before = children()
    given = [(str(tmp_path), "left", "right"), (str(tmp_path), "right", "left")]
    assert all(outcome.ok for outcome in engine.map(units.meet, given, timeout_s=TIMEOUT_S))
    killed = children() - before
    assert len(killed) == 2
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    (outcome,) = engine.map(units.double, [2], timeout_s=TIMEOUT_S)
    assert outcome.value == 4


def test_two_maps_share_the_workers(engine, units) -> None:
    first = engine.map(units.pid, range(400), timeout_s=TIMEOUT_S)
    second = engine.map(units.double, range(400), timeout_s=TIMEOUT_S)
    pids = [(a.value, b.value) for a, b in zip(first, second, strict=True)]
    assert len({pid for pid, _ in pids}) <= 2


@pytest.mark.parametrize(
    ("nbytes", "ahead"), [(8, AHEAD_UNITS), (2**22, AHEAD_BYTES // 2**22 + 2)], ids=["many", "large"]
)
def test_slow_consumer_bounds_what_runs_ahead(engine, units, nbytes, ahead) -> None:
    watched = Watched(3 * AHEAD_UNITS, nbytes)
    outcomes = engine.map(units.noise, watched, timeout_s=TIMEOUT_S)
    for consumed in range(1, 4):
        assert next(outcomes).ok
        # The other map takes turns with this one, so it is a clock that does not depend on the machine.
        assert all(outcome.ok for outcome in engine.map(units.double, range(1000), timeout_s=TIMEOUT_S))
        assert 0 < watched.furthest < consumed + ahead
    outcomes.close()


def test_values_that_were_consumed_count_no_more(engine, units, tmp_path) -> None:
    given = [2**23] * (AHEAD_BYTES // 2**23 + 8)
    given += [(str(tmp_path), "left", "right"), (str(tmp_path), "right", "left")]
    outcomes = list(engine.map(units.noise_or_meet, given, timeout_s=TIMEOUT_S))
    assert [outcome.value for outcome in outcomes[-2:]] == ["left", "right"]


def test_long_unit_among_short_ones_holds_no_other_one_up(engine, units, tmp_path) -> None:
    pair = [(str(tmp_path), "left", "right"), (str(tmp_path), "right", "left")]
    outcomes = list(engine.map(units.noise_or_meet, [1] * 200 + pair + [1] * 200, timeout_s=TIMEOUT_S))
    assert [outcome.value for outcome in outcomes[200:202]] == ["left", "right"]


def test_worker_is_free_before_its_last_answer_is_told(units) -> None:
    """A map may end with that answer, and kills whoever still works for it."""
    pool = Pool(1, threading.RLock())
    task = MapTask(function=pickle.dumps(units.double), environment=worker_environment())
    given = [pickle.dumps(n) for n in range(3)]
    assert [len(task.busy) for _ in pool.run(task, given, [TIMEOUT_S] * 3, lambda n: None)] == [1, 1, 0]
    pool.close()


def test_what_a_sequence_raises_comes_through(engine, units, children) -> None:
    class Broken(Watched):
        def __getitem__(self, index):
            raise LookupError(f"no unit {index}")

    with pytest.raises(LookupError) as raised:
        list(engine.map(units.double, Broken(3, 1), timeout_s=TIMEOUT_S))
    assert raised.value.args == ("no unit 0",)


def test_function_that_only_this_process_has(engine, monkeypatch) -> None:
    nowhere = types.ModuleType("nowhere_on_the_path")
    exec("def work(x):\n    return x", nowhere.__dict__)
    monkeypatch.setitem(sys.modules, nowhere.__name__, nowhere)
    with refusal(Unpicklable, what="function") as caught:
        list(engine.map(nowhere.work, range(5), timeout_s=TIMEOUT_S))
    assert "No module named 'nowhere_on_the_path'\n" in str(caught.value.given)
    assert "must stand in modules that can be imported" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "what", "fault"),
    [
        ("import os; os._exit(3)", "import", "exited with status 3"),
        ("1 / 0", "function", "ZeroDivisionError"),
    ],
)
def test_module_that_breaks_its_workers(
    engine, units, tmp_path, monkeypatch, body, what, fault, children
) -> None:
    name = f"breaks_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import sys\n"
        "if getattr(sys.modules['__main__'], '__file__', '').endswith('worker.py'):\n"
        f"    {body}\ndef work(x):\n    pass\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    module = __import__(name)
    with refusal((InvalidRuntime, Unpicklable), what=what) as caught:
        list(engine.map(module.work, range(5), timeout_s=TIMEOUT_S))
    assert str(caught.value.given).startswith(fault)
    assert [outcome.value for outcome in engine.map(units.double, [4], timeout_s=TIMEOUT_S)] == [8]


def test_no_room_for_a_worker(units, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    engine = LocalCompute(2)
    with refusal(InvalidRuntime, what="worker", given="FileNotFoundError"):
        list(engine.map(units.double, range(5), timeout_s=TIMEOUT_S))
    engine.close()


@pytest.mark.parametrize("function", ["hold", "hold_the_lock"])
def test_killed_parent_leaves_no_orphan(function, fifo, units) -> None:
    """Nobody can tell the worker; with the interpreter's lock taken, no thread of it could listen either."""
    with start_driver(function, fifo) as parent, open(fifo, encoding="ascii") as there:
        assert int(there.readline()) > 0
        parent.kill()
        assert there.read() == ""
    assert parent.returncode == -signal.SIGKILL


def test_ctrl_c_ends_what_runs(fifo, units) -> None:
    parent = start_driver("hold", fifo)
    with open(fifo, encoding="ascii") as there:
        assert int(there.readline()) > 0
        parent.send_signal(signal.SIGINT)
        assert there.read() == ""
    out, _ = parent.communicate()
    assert (parent.returncode, out) == (0, "interrupted, 0 children left\n")


def start_driver(function, fifo):
    path = os.pathsep.join([str(REPOSITORY), str(HERE / "units")])
    return subprocess.Popen(
        [sys.executable, DRIVER, function, fifo],
        env=os.environ
        | {"PYTHONPATH": path, "TMPDIR": str(Path(fifo).parent)},  # a killed parent tidies nothing
        stdout=subprocess.PIPE,
        text=True,
    )


def test_abandoned_map_ends_what_runs(engine, units, fifo) -> None:
    outcomes = engine.map(units.hold, ["", fifo], timeout_s=TIMEOUT_S)
    assert next(outcomes).ok
    with open(fifo, encoding="ascii") as there:
        there.readline()
        del outcomes
        assert there.read() == ""


@pytest.mark.parametrize("asked", [None, "2"])
def test_workers_products_have_one_thread_unless_more_are_asked_for(
    engine, units, monkeypatch, asked
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", asked)
    (outcome,) = engine.map(units.threads_for_products, [500], timeout_s=TIMEOUT_S)
    assert outcome.value == int(asked or 1) - 1


@pytest.mark.gpu
@pytest.mark.parametrize("named_by", ["number", "uuid"])
@pytest.mark.parametrize("killed", [False, True])
def test_worker_sees_its_gpu_alone_and_gives_its_memory_back(units, monkeypatch, named_by, killed) -> None:
    import torch

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    number, uuid = visible_gpus()[0], str(torch.cuda.get_device_properties(0).uuid)
    share = {"number": number, "uuid": f"GPU-{uuid}"}[named_by]

    def used() -> int:
        free, total = torch.cuda.mem_get_info(0)
        return total - free

    before, engine = used(), LocalCompute(2)
    try:
        given = {"timeout_s": TIMEOUT_S, "gpus": [share]}
        first, second = (one.value for one in engine.map(units.hold_on_gpu, [2 << 30] * 2, **given))
        assert first == second, "one worker"
        assert first[:4] == ["cuda:0", share, 1, uuid]
        assert used() - before > 4 << 30
        if killed:
            os.kill(first[4], signal.SIGKILL)
    finally:
        engine.close()
    until(lambda: used() - before <= 64 << 20)


def test_gpu_has_one_unit_and_one_worker_at_a_time(units) -> None:
    engine, found = LocalCompute(4), []

    def mapped() -> None:
        shared = {"timeout_s": TIMEOUT_S, "gpus": ["3", "GPU-5"]}
        found.extend(one.value for one in engine.map(units.on_gpu, [0.02] * 6, **shared))

    threads = [threading.Thread(target=mapped) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (free,) = engine.map(units.on_gpu, [0.0], timeout_s=TIMEOUT_S)
    engine.close()
    assert len(found) == 12
    assert {gpu for gpu, *_ in found} == {"3", "GPU-5"}
    assert {place for _, place, *_ in found} == {"cuda:0"}
    for mine in ("3", "GPU-5"):
        assert len({pid for gpu, _, pid, *_ in found if gpu == mine}) == 1
        times = sorted((begun, ended) for gpu, _, _, begun, ended in found if gpu == mine)
        assert all(before[1] <= after[0] for before, after in pairwise(times))
    assert free.value[:2] == [os.environ.get("CUDA_VISIBLE_DEVICES"), None]
