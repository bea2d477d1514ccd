"""What every engine promises, over the registry."""

import functools
import importlib
import os
import signal
import sys
import threading
from collections import Counter

import pytest

from loader.errors import InvalidRuntime, Unpicklable, WorkerFailed
from penstock.compute.pool import ENGINES, Failure, Outcome, import_path, open_compute
from tests.refusals import refusal

TIMEOUT_S = 600.0
SHORT_S = 2.0
ISOLATING = [name for name in ENGINES if open_compute(name, 1).isolates]


@pytest.fixture(params=sorted(ENGINES))
def compute(request):
    engine = open_compute(request.param, 2)
    yield engine
    engine.close()


@pytest.fixture(params=ISOLATING)
def isolating(request):
    engine = open_compute(request.param, 2)
    yield engine
    engine.close()


def values(outcomes):
    found = list(outcomes)
    assert [outcome.error for outcome in found] == [None] * len(found)
    return [outcome.value for outcome in found]


def test_some_engine_isolates() -> None:
    assert "local" in ISOLATING


@pytest.mark.parametrize("n_units", [0, 1, 2, 3, 2500])
def test_outcomes_come_in_the_order_of_the_units(compute, units, n_units) -> None:
    found = values(compute.map(units.double, range(n_units), timeout_s=TIMEOUT_S))
    assert found == [2 * x for x in range(n_units)]


def test_value_may_be_none(compute, units) -> None:
    assert list(compute.map(units.nothing, [1], timeout_s=TIMEOUT_S)) == [Outcome(value=None, error=None)]


def test_function_with_arguments(compute, units) -> None:
    cube = functools.partial(units.power, exponent=3)
    assert values(compute.map(cube, [1, 2, 3], timeout_s=TIMEOUT_S)) == [1, 8, 27]


def test_unit_is_the_workers_own(compute, units) -> None:
    given = [["a"], ["b"]]
    assert values(compute.map(units.grow, given, timeout_s=TIMEOUT_S)) == [["a", "grown"], ["b", "grown"]]
    assert given == [["a"], ["b"]]


def test_what_is_raised_is_the_units_outcome(compute, units) -> None:
    found = list(compute.map(units.fail, range(7), timeout_s=TIMEOUT_S))
    assert [outcome.ok for outcome in found] == [True, False, True, True, False, True, True]
    assert [outcome.value for outcome in found] == [0, None, 2, 3, None, 5, 6]
    failure = found[4].error
    assert failure.code == "exception"
    assert failure.summary == "ValueError: unit 4 is odd in two lines"
    assert "in fail\n    raise ValueError" in failure.reason
    assert failure.reason.count("File ") == 1, "the engine's own frames say nothing"


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("memory", "memory", "MemoryError: too much of it"),
        ("exit", "exception", "SystemExit: leaving"),
        ("recursion", "exception", "RecursionError: maximum recursion depth"),
        ("result", "exception", "a value of _thread.lock cannot be sent back; accepted: None, bool"),
        ("unsendable", "exception", "a value of compute_units.Unsendable cannot be sent back"),
    ],
)
def test_every_way_to_fail(compute, units, how, code, says) -> None:
    before, failed, after = compute.map(units.fail_somehow, ["one", how, "two"], timeout_s=TIMEOUT_S)
    assert (before.value, after.value) == ("one", "two")
    assert failed.error.code == code
    assert says in failed.error.summary
    assert len(failed.error.reason) < 2100


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("import", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("name", "NameError: name 'no_such_name' is not defined"),
        ("full disk", "No space left on device"),
        ("rights", "PermissionError"),
        ("files", "Too many open files"),
        ("connection", "the server went away"),
    ],
)
def test_code_or_machine_that_fails_raises_and_is_no_outcome(compute, units, how, says) -> None:
    outcomes = compute.map(units.fault_somehow, [how, "missing file", "healthy"], timeout_s=TIMEOUT_S)
    with refusal(WorkerFailed, what="fault") as caught:
        list(outcomes)
    assert says in str(caught.value)


def test_missing_file_is_the_units_own_outcome(compute, units) -> None:
    failed, healthy = compute.map(units.fault_somehow, ["missing file", "healthy"], timeout_s=TIMEOUT_S)
    assert failed.error.code == "exception"
    assert healthy.value == "healthy"


def test_unit_whose_class_cannot_be_imported_raises(compute, units, tmp_path, monkeypatch) -> None:
    """Its module was on the path when the caller imported it, and is no longer."""
    (tmp_path / "left_module.py").write_text("class Unit:\n    pass\n")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(tmp_path))
        left_module = importlib.import_module("left_module")
    del sys.modules["left_module"]
    monkeypatch.setitem(sys.modules, "left_module", left_module)
    monkeypatch.setattr(import_path, "_folders", [])
    unit = left_module.Unit()
    if not compute.isolates:
        assert values(compute.map(units.nothing, [unit], timeout_s=TIMEOUT_S)) == [None]
        return
    with refusal(WorkerFailed, what="fault") as failed:
        list(compute.map(units.nothing, [unit], timeout_s=TIMEOUT_S))
    assert "No module named 'left_module'" in str(failed.value.given)


def test_unit_that_does_not_pickle_fails_alone(compute, units) -> None:
    found = list(
        compute.map(units.nothing, [1, threading.Lock(), units.Unsendable(), 3], timeout_s=TIMEOUT_S)
    )
    assert [outcome.ok for outcome in found] == [True, False, False, True]
    assert "cannot pickle" in found[1].error.summary
    assert "not from bytes" in found[2].error.summary


def test_function_that_does_not_pickle_is_refused_at_once(compute) -> None:
    function = lambda x: x  # noqa: E731 - without a name of its module
    with refusal(Unpicklable, what="function", given=repr(function)) as refused:
        compute.map(function, [1], timeout_s=TIMEOUT_S)
    assert "give a function at the top level of a module" in str(refused.value)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), None, "10", [0], [None]])
def test_timeout_is_a_number_of_seconds(compute, units, timeout_s) -> None:
    limit_s = timeout_s[0] if isinstance(timeout_s, list) else timeout_s
    with refusal(InvalidRuntime, what="timeout_s", given=limit_s):
        compute.map(units.double, [1], timeout_s=timeout_s)


@pytest.mark.parametrize("name", sorted(ENGINES))
@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_workers_are_a_number(name, workers) -> None:
    with refusal(InvalidRuntime, what="workers", given=workers):
        open_compute(name, workers)


def test_progress_ends_at_the_total_in_the_callers_thread(compute, units) -> None:
    told, threads = [], set()

    def progress(done, total):
        told.append((done, total))
        threads.add(threading.current_thread())

    values(compute.map(units.double, range(50), timeout_s=TIMEOUT_S, progress=progress))
    assert told[-1] == (50, 50)
    assert [done for done, _ in told] == sorted({done for done, _ in told}), (
        "never back, never twice the same"
    )
    assert threads == {threading.current_thread()}


def test_failures_are_progress_too(compute, units) -> None:
    told = []
    found = compute.map(
        units.fail, [1, 4], timeout_s=TIMEOUT_S, progress=lambda done, total: told.append(done)
    )
    assert not any(outcome.ok for outcome in found)
    assert told[-1] == 2


def test_what_progress_raises_ends_the_map(compute, units, children) -> None:
    def progress(done, total):
        raise OSError("no terminal")

    before = children()
    with pytest.raises(OSError) as raised:
        list(compute.map(units.double, range(5), timeout_s=TIMEOUT_S, progress=progress))
    assert raised.value.args == ("no terminal",)
    compute.close()
    assert children() == before


def test_nothing_runs_before_the_first_outcome_is_asked_for(compute, units, tmp_path) -> None:
    outcomes = compute.map(units.die_once, [("", str(tmp_path / "ran"))], timeout_s=TIMEOUT_S)
    assert not (tmp_path / "ran").exists()
    assert next(outcomes).ok
    assert (tmp_path / "ran").exists()


def test_big_values_and_units(compute, units) -> None:
    sizes = [0, 1, 2**16, 2**24 + 1, 5]
    assert [len(value) for value in values(compute.map(units.noise, sizes, timeout_s=TIMEOUT_S))] == sizes
    big = [b"x" * (2**24 + 3)]
    assert values(compute.map(units.double, big, timeout_s=TIMEOUT_S)) == [big[0] * 2]


def test_two_maps_at_once_from_two_threads(compute, units) -> None:
    found = {}

    def run(name, function, count):
        found[name] = values(compute.map(function, range(count), timeout_s=TIMEOUT_S))

    threads = [
        threading.Thread(target=run, args=("double", units.double, 300)),
        threading.Thread(target=run, args=("nothing", units.nothing, 200)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"double": [2 * x for x in range(300)], "nothing": [None] * 200}


def test_map_inside_another_ones_loop(compute, units) -> None:
    found = []
    for outer in compute.map(units.double, range(3), timeout_s=TIMEOUT_S):
        found += values(compute.map(units.double, [outer.value] * 2, timeout_s=TIMEOUT_S))
    assert found == [0, 0, 4, 4, 8, 8]


def test_closed_engine_says_so(compute, units) -> None:
    halfway = compute.map(units.double, range(5000), timeout_s=TIMEOUT_S)
    next(halfway)
    compute.close()
    compute.close()
    with refusal(InvalidRuntime, what="engine", given="closed"):
        list(compute.map(units.double, [1], timeout_s=TIMEOUT_S))
    with refusal(InvalidRuntime, given="closed"):
        list(halfway)


def test_unknown_engine() -> None:
    with refusal(InvalidRuntime, what="engine", given="cloud", accepted=["inline", "local"]):
        open_compute("cloud")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("SIGKILL", "was killed by SIGKILL; a new one, with nothing beside it, was killed by SIGKILL"),
        ("SIGTERM", "was killed by SIGTERM"),
        ("segfault", "was killed by SIGSEGV"),
        ("exit", "exited with status 7"),
        ("exit beside a child", "exited with status 7"),
        ("close", "its process was killed"),
    ],
)
def test_process_that_dies_costs_its_unit_only(isolating, units, how, says) -> None:
    given = ["a", "b", how, "c", "d", "e"]
    found = list(isolating.map(units.die, given, timeout_s=TIMEOUT_S))
    assert [outcome.value for outcome in found] == ["a", "b", None, "c", "d", "e"]
    assert found[2].error.code == "crashed"
    assert says in found[2].error.reason


def test_process_dies_by_a_signal_that_its_parent_ignores(isolating, units) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        (outcome,) = isolating.map(units.die, ["SIGTERM"], timeout_s=TIMEOUT_S)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "was killed by SIGTERM" in outcome.error.reason


@pytest.mark.parametrize("how", ["hang", "hold the lock"])
def test_unit_that_takes_too_long_is_killed(isolating, units, how) -> None:
    found = list(isolating.map(units.die, ["a", how, "b", "c"], timeout_s=SHORT_S))
    assert [outcome.value for outcome in found] == ["a", None, "b", "c"]
    assert found[1].error == Failure(code="timeout", reason="took longer than 2 s and was killed")


def test_nothing_but_poison(isolating, units) -> None:
    found = list(isolating.map(units.die, ["exit"] * 9, timeout_s=TIMEOUT_S))
    assert [outcome.error.code for outcome in found] == ["crashed"] * 9
    assert values(isolating.map(units.double, range(4), timeout_s=TIMEOUT_S)) == [0, 2, 4, 6]


def test_poison_among_short_units_costs_itself_alone(isolating, units, tmp_path) -> None:
    ends, path = {150: "exit", 220: "SIGKILL", 290: "hang"}, tmp_path / "begun"
    given = [(n, ends.get(n, ""), str(path)) for n in range(400)]
    limits = [SHORT_S if n == 290 else TIMEOUT_S for n in range(400)]
    found = list(isolating.map(units.noted, given, timeout_s=limits))
    failed = {n: outcome.error.code for n, outcome in enumerate(found) if not outcome.ok}
    assert failed == {150: "crashed", 220: "crashed", 290: "timeout"}
    assert [outcome.value for outcome in found if outcome.ok] == [n for n in range(400) if n not in ends]
    begun = Counter(map(int, path.read_text().split()))
    assert (begun.pop(150) in (1, 2), begun.pop(220)) == (True, 2)
    assert begun == Counter({n for n in range(400) if n not in (150, 220)}), "the others ran once"


def test_who_may_have_been_the_victim_runs_again(isolating, units, tmp_path) -> None:
    """SIGKILL is what the kernel sends when memory runs out, and not always to the one who took it."""
    given = [("SIGKILL", str(tmp_path / "killed"))] + [("", str(tmp_path / "killed"))] * 5
    found = values(isolating.map(units.die_once, given, timeout_s=TIMEOUT_S))
    assert len(found) == 6
    assert (tmp_path / "killed").exists()


def test_who_may_have_been_the_victim_runs_again_alone(isolating, units, tmp_path) -> None:
    given = [("first", str(tmp_path)), ("second", str(tmp_path))]
    assert values(isolating.map(units.alone_at_last, given, timeout_s=TIMEOUT_S)) == ["alone", "done"]


def test_unit_that_lacks_memory_runs_again_alone(isolating, units, tmp_path) -> None:
    """Units beside it may have had the memory."""
    outcomes = values(
        isolating.map(units.without_memory_once, [str(tmp_path / "marker")] * 3, timeout_s=TIMEOUT_S)
    )
    assert len(outcomes) == 3


def test_memory_that_the_machine_lacks_raises_and_is_no_outcome(isolating, units) -> None:
    before, failed, after = isolating.map(
        units.without_memory, ["healthy", "unit", "healthy"], timeout_s=TIMEOUT_S
    )
    assert (before.value, failed.error.code, after.value) == (1, "memory", 1)
    with refusal(WorkerFailed, what="fault") as lack:
        list(isolating.map(units.without_memory, ["machine"], timeout_s=TIMEOUT_S))
    assert str(lack.value.given).startswith("MemoryError")


def test_damage_that_an_earlier_unit_left_is_not_held_against_a_unit(units) -> None:
    for name in ISOLATING:
        engine = open_compute(name, 1)
        given = ["damage", "innocent", "too"]
        assert values(engine.map(units.damage, given, timeout_s=TIMEOUT_S)) == given
        engine.close()


def test_units_run_side_by_side(isolating, units, tmp_path) -> None:
    given = [(str(tmp_path), "left", "right"), (str(tmp_path), "right", "left")]
    assert values(isolating.map(units.meet, given, timeout_s=TIMEOUT_S)) == ["left", "right"]


def test_closing_the_iterator_ends_what_runs(isolating, units, children, fifo) -> None:
    before = children()
    outcomes = isolating.map(units.hold, ["", fifo, ""], timeout_s=TIMEOUT_S)
    assert next(outcomes).ok
    with open(fifo, encoding="ascii") as there:
        assert int(there.readline()) > 0
        outcomes.close()
        assert there.read() == "", "the worker and what it started are gone"
    assert values(isolating.map(units.double, range(3), timeout_s=TIMEOUT_S)) == [0, 2, 4]
    isolating.close()
    assert children() == before


def test_exception_in_the_consumer_ends_what_runs(isolating, units, children, fifo) -> None:
    before = children()

    def consume():
        for _ in isolating.map(units.hold, ["", fifo], timeout_s=TIMEOUT_S):
            raise KeyError("the consumer's")

    with pytest.raises(KeyError):
        consume()
    isolating.close()
    assert children() == before


def test_closing_the_engine_ends_what_runs(isolating, units, children, fifo) -> None:
    before = children()
    outcomes = isolating.map(units.hold, [fifo], timeout_s=TIMEOUT_S)
    waiting = threading.Thread(target=pytest.raises, args=(InvalidRuntime, next, outcomes))
    waiting.start()
    with open(fifo, encoding="ascii") as there:
        there.readline()
        isolating.close()
        assert there.read() == ""
    waiting.join()
    assert children() == before


def test_timeout_ends_what_the_unit_started(isolating, units, fifo) -> None:
    outcomes = isolating.map(units.hold, [fifo], timeout_s=SHORT_S)
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), encoding="ascii") as there:
        (outcome,) = outcomes
        os.set_blocking(there.fileno(), True)
        assert int(there.readline()) > 0
        assert there.read() == ""
    assert outcome.error.code == "timeout"


def test_every_unit_may_have_a_timeout_of_its_own(isolating, units) -> None:
    limits = [TIMEOUT_S, SHORT_S, TIMEOUT_S]
    found = list(isolating.map(units.die, ["", "hang", ""], timeout_s=limits))
    assert [outcome.ok for outcome in found] == [True, False, True]
    assert found[1].error.code == "timeout"
    assert f"{SHORT_S:g} s" in found[1].error.reason


def test_there_are_as_many_timeouts_as_units(compute, units) -> None:
    with refusal(InvalidRuntime, what="timeout_s", given=1, accepted=2):
        compute.map(units.double, [1, 2], timeout_s=[TIMEOUT_S])
    assert list(compute.map(units.double, [], timeout_s=[])) == []


def test_killed_unit_leaves_no_temporary_files(isolating, units, capfd) -> None:
    for how in ("hang", "SIGKILL", ""):
        assert len(list(isolating.map(units.leave_files, [how], timeout_s=SHORT_S))) == 1
    isolating.close()
    paths = capfd.readouterr().out.split()
    assert len(paths) == 4, "the one that was killed ran twice"
    assert not [path for path in paths if os.path.exists(path)]


def test_what_a_unit_prints_comes_out_with_its_outcome(isolating, units, capfd, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    values(isolating.map(units.speak, ["hello"], timeout_s=TIMEOUT_S))
    assert capfd.readouterr().out == "hello\n"


def test_killed_idle_worker_costs_nothing(isolating, units) -> None:
    for pid in set(values(isolating.map(units.pid, range(20), timeout_s=TIMEOUT_S))):
        os.kill(pid, signal.SIGKILL)
    assert values(isolating.map(units.double, range(5), timeout_s=TIMEOUT_S)) == [0, 2, 4, 6, 8]
