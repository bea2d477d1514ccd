"""The fuzzer: what it finds is found, and a few of its cases.

`make fuzz` runs 10,000; here are some sixty, and in `make ci` two hundred more, with ffprobe as the second opinion.
"""

import os
import pickle
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.media.objects import AuditRequest, AuditResult, audit_object
from fuzz import case as case_module
from fuzz import plausible
from fuzz.campaign import campaign, save, table
from fuzz.case import Case, Report, run_case
from fuzz.mutations import MUTATIONS, damaged
from fuzz.seeds import corpus_seeds, write_seeds
from penstock.compute.pool import LocalCompute
from tests.servers.patience import PATIENCE_S


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return tuple(map(str, write_seeds(tmp_path_factory.mktemp("seeds"))))


def cases(seeds: tuple[str, ...], numbers: range, **more: Any) -> list[Case]:
    return [Case(number=number, seed=20_231, own=seeds, **more) for number in numbers]


def test_encoding_av1_leaves_the_process_an_ordinary_one(seeds: tuple[str, ...]) -> None:
    """As root SVT-AV1 makes it a real-time one: with two such test processes nothing else ran on two cores."""
    assert any(name.endswith("av1.mp4") for name in seeds)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_sixty_cases(seeds: tuple[str, ...]) -> None:
    done: list[int] = []
    tally = campaign(
        cases(seeds, range(60)), workers=2, timeout_s=PATIENCE_S, progress=lambda n, of: done.append(n)
    )
    assert tally.broken == []
    assert tally.contained == []
    assert tally.n_cases == sum(tally.counts.values()) == 60
    outcomes = {outcome for outcome, _ in tally.counts}
    assert {"admitted", "rejected"} <= outcomes <= {"admitted", "rejected", "dropped"}
    assert done[-1] == 60
    assert "60 cases" in table(tally)


@pytest.mark.server
def test_hundreds_of_cases_and_a_second_opinion(seeds: tuple[str, ...], at_scale: Any) -> None:
    corpus, n = tuple(map(str, corpus_seeds())), at_scale(200, 500)
    tally = campaign(
        cases(seeds, range(60, 60 + n), corpus=corpus, peers=True), workers=None, timeout_s=PATIENCE_S
    )
    assert tally.broken == []
    assert tally.n_cases == n
    assert tally.peers["agrees"] > n // 5


def reports(wanted: list[Case]) -> list[Report]:
    engine = LocalCompute(2)
    try:
        outcomes = list(engine.map(run_case, wanted, timeout_s=PATIENCE_S))
    finally:
        engine.close()
    assert all(outcome.value is not None for outcome in outcomes)
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def check_sound(seeds: tuple[str, ...], numbers: Sequence[int]) -> None:
    """Undamaged files are taken, whatever the policy that belongs to the number."""
    wanted = [(Path(path), number) for path in seeds for number in numbers]
    found = reports([Case(number=number, seed=0, data=path.read_bytes()) for path, number in wanted])
    for (path, _), report in zip(wanted, found, strict=True):
        assert report.broken == [], path.name
        if path.suffix not in (".npy", ".json"):
            assert report.outcome in ("admitted", "dropped"), (path.name, report)
            assert report.cut in ("cut", "dropped", ""), (path.name, report)


def test_files_to_begin_with_are_sound(seeds: tuple[str, ...]) -> None:
    check_sound(seeds, range(1))


@pytest.mark.server
def test_they_are_under_any_policy(seeds: tuple[str, ...], at_scale: Any) -> None:
    """A case's number draws its policy, and whether clips are made ahead: in CI each of the four once."""
    check_sound(seeds, at_scale((1, 3, 4, 6), range(1, 9)))


def test_case_is_the_same_in_any_process_and_can_be_run_again(seeds: tuple[str, ...]) -> None:
    wanted = cases(seeds, range(20))
    again = []
    for one in wanted:
        source, data, damage = one.build()
        assert pickle.loads(pickle.dumps(one)).build() == (source, data, damage)  # noqa: S301 - our own
        assert replace(one, seed=1).build() != (source, data, damage)
        again.append(Case(number=one.number, seed=0, data=data))  # as `--replay` does
    same = ("outcome", "code", "reason", "kind", "cut", "cut_code", "n_units")
    for first, second in zip(reports(wanted), reports(again), strict=True):
        assert [getattr(first, name) for name in same] == [getattr(second, name) for name in same]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 1000))
def test_any_bytes_can_be_damaged(data: bytes, other: bytes, number: int) -> None:
    made, names = damaged(data, random.Random(number), other)
    assert (made, names) == damaged(data, random.Random(number), other)
    assert set(names) <= set(MUTATIONS)


@pytest.mark.parametrize("name", sorted(set(MUTATIONS) - {"untouched"}))
def test_every_damage_does_something(name: str, seeds: tuple[str, ...]) -> None:
    data, other = Path(seeds[0]).read_bytes(), Path(seeds[1]).read_bytes()
    made = [bytes(MUTATIONS[name](bytearray(data), random.Random(seed), other)) for seed in range(20)]
    assert len(set(made) - {data}) > 10


PLANTED = """
import os, time
from fuzz.case import Report

def crash(case):
    os.abort()

def hang(case):
    while True:
        time.sleep(0.01)

def bug(case):
    raise ZeroDivisionError("a bug")

def greedy(case) -> Report:
    return Report(number=case.number, source="x", damage=(), nbytes=0, outcome="admitted", peak_rss_mib=1e9)

def litter(case) -> Report:
    import tempfile
    open(os.path.join(os.path.dirname(tempfile.gettempdir()), "litter"), "w").close()
    return Report(number=case.number, source="x", damage=(), nbytes=0, outcome="admitted")
"""


@pytest.mark.parametrize(
    ("what", "timeout_s", "broken", "contained"),
    [
        ("crash", 60, "", "crashed"),
        ("hang", 0.5, "", "timeout"),
        ("bug", 60, "ZeroDivisionError", ""),
        ("greedy", 60, "MiB of memory", ""),
        ("litter", 60, "scratch that is left behind", ""),
    ],
)
def test_what_a_worker_does_wrong_is_told(
    what: str,
    timeout_s: float,
    broken: str,
    contained: str,
    tmp_path: Path,
    seeds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "planted_faults.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = getattr(import_module("planted_faults"), what)
    tally = campaign(cases(seeds, range(2)), workers=1, timeout_s=timeout_s, run=run)
    assert tally.n_cases == 2
    assert [broken in why for _, why in tally.broken] == [True] * len(tally.broken)
    assert bool(tally.broken) == bool(broken)
    assert [contained in why for _, why in tally.contained] == [True] * (2 if contained else 0)
    said = list(save(tally, tmp_path / "saved"))
    assert len(said) == len(tally.broken) + len(tally.contained)
    for path in (tmp_path / "saved").glob("*.bin"):
        number = int(path.name.split("-")[1])
        assert path.read_bytes() == cases(seeds, range(2))[number].build()[1]
        assert path.with_suffix(".json").exists()


def test_case_answers_for_its_own_memory(seeds: tuple[str, ...]) -> None:
    """Neither for that of the process that starts the workers, nor for what came before it in its own."""
    held = np.ones(600 * 2**20, np.uint8)
    (report,) = reports([Case(number=0, seed=0, data=b"no media")])
    assert 10 < report.peak_rss_mib < 500
    del held
    before = run_case(Case(number=0, seed=0, data=b"no media")).peak_rss_mib
    held = np.ones(300 * 2**20, np.uint8)
    assert run_case(Case(number=0, seed=0, data=b"no media")).peak_rss_mib > before + 250
    del held
    assert run_case(Case(number=0, seed=0, data=b"no media")).peak_rss_mib < before + 50


Audit = Callable[[AuditRequest], AuditResult]


@pytest.fixture
def replace_audit(monkeypatch: pytest.MonkeyPatch, seeds: tuple[str, ...]) -> Callable[[Audit], list[str]]:
    """What is said when the audit is replaced by another."""

    def run(audit: Audit) -> list[str]:
        monkeypatch.setattr(case_module, "audit_object", audit)
        path = next(path for path in map(Path, seeds) if path.name == "h264.mp4")
        return run_case(Case(number=0, seed=0, data=path.read_bytes())).broken

    return run


def test_what_is_left_behind_is_told(replace_audit: Callable[[Audit], list[str]]) -> None:
    event, left = threading.Event(), ExitStack()

    def leave_file(request: AuditRequest) -> AuditResult:
        told = audit_object(request)
        Path(request.scratch).mkdir(parents=True, exist_ok=True)
        (Path(request.scratch) / "raw.bin").write_bytes(b"x")
        return told

    def leave_open(request: AuditRequest) -> AuditResult:
        Path(request.scratch).mkdir(parents=True, exist_ok=True)
        file = left.enter_context((Path(request.scratch) / "x").open("wb"))
        os.unlink(file.name)
        return audit_object(request)

    def leave_thread(request: AuditRequest) -> AuditResult:
        thread = threading.Thread(target=event.wait)
        thread.start()
        left.callback(thread.join)
        left.callback(event.set)
        return audit_object(request)

    def leave_process(request: AuditRequest) -> AuditResult:
        pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "input()"])
        left.callback(os.waitpid, pid, 0)
        left.callback(os.kill, pid, signal.SIGKILL)
        return audit_object(request)

    with left:
        assert replace_audit(audit_object) == []
        assert any("the audit left" in one for one in replace_audit(leave_file))
        assert any("still open" in one for one in replace_audit(leave_open))
        assert any("threads are left" in one for one in replace_audit(leave_thread))
        assert any("processes are left" in one for one in replace_audit(leave_process))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration_s": float("nan")}, "duration_s is nan"),
        ({"duration_s": 1e9}, "it lasts"),
        ({"black_ratio": 1.5}, "black_ratio is 1.5"),
        ({"start_pts": 10**9}, "it ends at"),
        ({"end_pts": 1}, "a clip from"),
        ({"scene_cuts": [10**9]}, "scene cuts at"),
        ({"n_frames_decoded": 0}, "without a frame"),
    ],
)
def test_what_cannot_be_is_told(
    replace_audit: Callable[[Audit], list[str]], change: dict[str, Any], said: str
) -> None:
    def lie(request: AuditRequest) -> AuditResult:
        told = audit_object(request)
        assert told.row is not None
        return replace(told, row=told.row | change)

    monkeyed = replace_audit(lie)
    assert any(said in one for one in monkeyed), monkeyed


def test_fields_of_units_are_read(tmp_path: Path) -> None:
    from assets.media.unit import Unit

    (tmp_path / "x.jpg").write_bytes(b"no picture")
    row = dict.fromkeys((*plausible._RATIOS, "duration_s", "n_x"), None) | {"kind": "text"}
    wrong = plausible.implausible(row, [Unit(fields={"jpg": tmp_path / "x.jpg"}, metadata={})], tmp_path)
    assert "the loader cannot read jpg" in wrong[0]
    (tmp_path / "stray").write_bytes(b"")
    assert "files without a unit" in plausible.implausible(row, [], tmp_path)[0]
