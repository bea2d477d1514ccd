"""The retry budget and the limiter, on a clock of our own."""

import random
import threading

import pytest

from loader.errors import Forbidden, InvalidStore, Throttled, Transient
from loader.storage.requests import Limiter, Retrier, RetryBudget, patient, try_once
from tests.refusals import refusal


class Clock:
    """Time passes by sleeping, and by `work_s` per try."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []
        self.work_s = work_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


def retrier(
    clock: Clock, budget: RetryBudget, fraction: float = 0.999, limiter: Limiter | None = None
) -> Retrier:
    return Retrier(budget, limiter or Limiter(), clock=clock, sleep=clock.sleep, rng=lambda: fraction)


def failing(clock: Clock, errors: list[Exception]):
    def attempt() -> str:
        clock.now_s += clock.work_s
        if errors:
            raise errors.pop(0)
        return "done"

    return attempt


def test_it_tries_until_it_succeeds():
    clock = Clock()
    errors = [Throttled("slow"), Transient("broken"), Throttled("slow")]
    assert retrier(clock, RetryBudget(base_s=1, cap_s=100)).call(failing(clock, errors)) == "done"
    assert clock.pauses_s == pytest.approx([0.999, 1.998, 3.996])


def test_retry_leaves_the_generator_of_a_training_script():
    clock, before = Clock(), random.getstate()
    retries = Retrier(RetryBudget(base_s=1, cap_s=100), Limiter(), clock=clock, sleep=clock.sleep)
    assert retries.call(failing(clock, [Throttled("slow"), Transient("broken")])) == "done"
    assert len(clock.pauses_s) == 2
    assert random.getstate() == before


def test_throttled_verbs_have_more_time_within_patient():
    """A store that does not answer has no more: a wrong endpoint is named as soon as otherwise."""
    for error, tries in ((Throttled, 100), (Transient, 10)):
        clock, budget = Clock(work_s=1.0), RetryBudget(deadline_s=10, base_s=0, cap_s=0)
        with patient(), pytest.raises(error, match=rf"gave up after {tries} tries"):
            retrier(clock, budget).call(failing(clock, [error("no")] * 200))
    clock = Clock(work_s=1.0)
    with pytest.raises(Throttled, match="gave up after 10 tries"):
        retrier(clock, budget).call(failing(clock, [Throttled("no")] * 200))


def test_pauses_are_jittered_and_capped():
    budget = RetryBudget(base_s=1, cap_s=5)
    assert [budget.pause_s(tries, 0.5) for tries in (1, 2, 3, 4, 5, 2000)] == [0.5, 1, 2, 2.5, 2.5, 2.5]
    assert budget.pause_s(3, 0.0) == 0.0


@pytest.mark.parametrize("leaf", [Throttled, Transient])
def test_no_try_begins_after_the_deadline(leaf):
    clock = Clock(work_s=1.0)
    with pytest.raises(
        leaf, match=r"answered 503; gave up after \d+ tries in \d+\.\d s .*retry_deadline_s=10"
    ):
        retrier(clock, RetryBudget(deadline_s=10, base_s=1, cap_s=2)).call(
            failing(clock, [leaf("answered 503")] * 1000)
        )
    assert clock.now_s - 100.0 <= 10 + 1.0


def test_deadline_of_zero_means_one_try():
    clock = Clock()
    with pytest.raises(Transient, match="gave up after 1 tries"):
        retrier(clock, RetryBudget(deadline_s=0)).call(failing(clock, [Transient("x")]))
    assert clock.pauses_s == []


def test_other_errors_are_not_tried_again():
    clock = Clock()
    with pytest.raises(Forbidden):
        retrier(clock, RetryBudget()).call(failing(clock, [Forbidden("no")]))
    assert clock.pauses_s == []


@pytest.mark.parametrize("values", [{"deadline_s": -1}, {"base_s": -1}, {"base_s": 2, "cap_s": 1}])
def test_budget_is_checked(values):
    with pytest.raises(InvalidStore, match="retry_deadline_s"):
        RetryBudget(**values)


def test_throttling_halves_the_limit_and_success_grows_it():
    limiter = Limiter(8)
    limiter.release(limiter.acquire(), throttled=True)
    assert limiter.limit == 4
    for _ in range(5):
        limiter.release(limiter.acquire(), throttled=False)
    assert limiter.limit == 5
    for _ in range(1000):
        limiter.release(limiter.acquire(), throttled=False)
    assert limiter.limit == 8
    for _ in range(10):
        limiter.release(limiter.acquire(), throttled=True)
    assert limiter.limit == 1


def test_one_burst_cuts_once():
    limiter = Limiter(8)
    tokens = [limiter.acquire() for _ in range(8)]
    for token in tokens:
        limiter.release(token, throttled=True)
    assert limiter.limit == 4


def test_no_more_than_the_limit_are_in_flight():
    limiter = Limiter(3)
    clock = Clock()
    most = 0
    inside = 0
    lock = threading.Lock()
    full = threading.Barrier(3)

    def attempt() -> None:
        nonlocal most, inside
        with lock:
            inside += 1
            most = max(most, inside)
        full.wait()  # only when three are inside together does anyone leave
        with lock:
            inside -= 1

    threads = [
        threading.Thread(target=lambda: retrier(clock, RetryBudget(), limiter=limiter).call(attempt))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_limit_below_one_is_refused():
    with refusal(InvalidStore, what="max_concurrency", given=0, accepted="1 or more"):
        Limiter(0)


def test_what_is_tried_once_is_not_tried_again() -> None:
    clock = Clock()
    call = retrier(clock, RetryBudget())
    with pytest.raises(Transient, match=r"^first$"), try_once():
        call.call(failing(clock, [Transient("first")]))
    assert clock.pauses_s == []
    assert call.call(failing(clock, [Transient("first")])) == "done"
