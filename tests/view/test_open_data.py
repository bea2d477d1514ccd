"""Data that a viewer holds open: made once, bounded, given back, and nobody waits for another's."""

import threading
import time
import weakref
from dataclasses import replace

import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.view import open_data, open_items
from penstock.view.inspect.step_record import step_record
from penstock.view.kinds.kind import Media
from penstock.view.lru_cache import LruCache
from penstock.view.open_data import OpenData
from penstock.view.replays import idle_replays
from penstock.view.replays import replays as replays_module
from penstock.view.replays.replayed_values import Setting
from penstock.view.replays.replays import Replayers, Replays
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until
from tests.view.conftest import BATCH, train


@pytest.fixture
def opened(trained):
    with loader.Root(trained) as root:
        made = OpenData(root)
        yield made
        made.close()


def test_value_is_made_once_and_others_are_not_held_up():
    kept, made, begun, goes_on = LruCache(10), [], threading.Event(), threading.Event()

    def slowly():
        made.append(1)
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        return "slow"

    found = []
    threads = [threading.Thread(target=lambda: found.append(kept.get("a", slowly))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE_S)
    assert kept.get("b", lambda: "quick") == "quick"  # while another is being made
    goes_on.set()
    for thread in threads:
        thread.join()
    assert (found, made) == (["slow"] * 3, [1])


def test_value_that_was_not_asked_for_the_longest_goes_first():
    kept = LruCache(10, len)
    for key in ("aaaa", "bbbb"):
        kept.get(key, lambda key=key: key)
    kept.get("aaaa", lambda: pytest.fail("it is kept"))
    kept.get("cccc", lambda: "cccc")
    kept.get("aaaa", lambda: pytest.fail("it is kept"))
    assert kept.get("bbbb", lambda: "made anew") == "made anew"


def test_failure_is_no_value():
    kept = LruCache(10)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 / 0)
    assert kept.get("a", lambda: 2) == 2


def test_values_that_nobody_asks_for_are_dropped():
    kept = LruCache(10)
    kept.get("a", lambda: 1)
    kept.drop_idle(3600)
    kept.get("a", lambda: pytest.fail("it is kept"))
    kept.drop_idle(-1)
    assert kept.get("a", lambda: 2) == 2


def test_pictures_count_by_their_bytes(opened, monkeypatch):
    monkeypatch.setattr(opened.media, "_limit", 10_000)
    for key in "ab":
        opened.media.get(key, lambda: (Media(type="image/png", data=bytes(6000)),))
    assert opened.media.get("a", lambda: "made anew") == "made anew"


def test_version_that_nobody_looks_at_is_given_back(root, plan, monkeypatch):
    monkeypatch.setattr(open_data, "SWEEP_S", 0.005)
    monkeypatch.setattr(open_data, "IDLE_S", 0.0)
    made = OpenData(root)
    seen = weakref.ref(made.version("photos", 1))
    until(lambda: seen() is None)  # nobody asks for anything meanwhile
    made.close()


@pytest.fixture
def setting(trained):
    with loader.Root(trained) as root:
        return Setting(plan=loader.read_trail(root, "one").starts[0].plan)


def test_replay_in_use_is_closed_by_its_user(trained, setting):
    with loader.Root(trained) as root:
        replays = Replays(root)
        with replays.open_replay(setting) as replay:
            replays.close()
            digest = replay.digest(1)
        with refusal(InvalidRuntime, what="Replay", given="closed"):
            replay.digest(1)
        with replays.open_replay(setting) as again:
            assert again.digest(1) == digest
        replays.close()


def test_replays_are_opened_anew_after_a_while_and_few_are_kept(trained, setting, monkeypatch):
    with loader.Root(trained) as root:
        replays = Replays(root)
        with replays.open_replay(setting) as first:
            pass
        monkeypatch.setattr(replays_module, "MOST_PLANS", 1)
        with replays.open_replay(setting) as same:
            assert same is first
        with replays.open_replay(Setting(plan=setting.plan, epochs=3)):
            pass
        with refusal(InvalidRuntime, what="Replay", given="closed"):
            first.digest(1)
        replays.close()
        with replays.open_replay(setting) as stale:
            pass
        with replays.open_replay(setting, ledger_s=-1.0) as fresh:
            assert fresh is not stale
        replays.close()


def test_one_plan_is_used_by_one_at_a_time(trained, setting):
    with loader.Root(trained) as root:
        replays, order, comes = Replays(root), [], threading.Event()

        def other():
            comes.set()
            with replays.open_replay(setting):
                order.append("other")

        thread = threading.Thread(target=other)
        with replays.open_replay(setting):
            thread.start()
            assert comes.wait(PATIENCE_S)
            time.sleep(0.1)  # enough for the other to go on, were it not held up
            order.append("first")
        thread.join()
        replays.close()
    assert order == ["first", "other"]


class Counting:
    """A replayer that counts its parts."""

    def __init__(self, replays):
        self.replays, self.batches = replays, 0

    def __getattr__(self, name):
        return getattr(self.replays, name)

    def part(self, *given):
        self.batches += 1
        return self.replays.part(*given)


def test_step_is_made_once_for_its_page_and_pictures(opened, monkeypatch):
    monkeypatch.setattr(opened, "replayers", Replayers(plain=Counting(opened.replayers.plain)))
    training = opened.training("one")
    for _ in range(3):
        batch, trouble = opened.batch("one", 2, 0, 1)
        assert len(step_record(training, batch, None, trouble).slots) == BATCH
        assert all(set(slot.thumbnails) == {"jpg"} for slot in batch.slots)
    assert opened.replayers.plain.batches == 1
    assert batch.nbytes < 100_000  # and no tensor is kept


def made_ahead(opened, monkeypatch, step):
    """Steps that are made by the time that nobody has asked for anything for a while, after one was asked for."""
    steps, done = [], threading.Event()
    make = opened._batch

    def told(training, one, rank, world_size):
        found = make(training, one, rank, world_size)
        steps.append((one, rank, world_size))
        return found

    def asked(*given):
        if len(steps) > 1 and not given and not opened._idle_replays._requested.is_set():
            done.set()  # nothing is left to be made
        return wait(*given)

    wait = opened._idle_replays._requested.wait
    monkeypatch.setattr(opened, "_batch", told)
    monkeypatch.setattr(opened._idle_replays._requested, "wait", asked)
    monkeypatch.setattr(idle_replays, "AHEAD_S", 0.05)
    opened.batch("three", step, 1, 3)
    assert done.wait(PATIENCE_S)
    return list(dict.fromkeys(steps))


@pytest.mark.parametrize(
    ("step", "ahead"), [(2, [3, 1]), (0, [1]), (5, [4])], ids=["middle", "first", "last"]
)
def test_steps_beside_the_last_one_are_made_when_nobody_asks(opened, monkeypatch, step, ahead):
    monkeypatch.setattr(opened, "replayers", Replayers(plain=Counting(opened.replayers.plain)))
    assert made_ahead(opened, monkeypatch, step) == [(one, 1, 3) for one in (step, *ahead)]
    monkeypatch.setattr(idle_replays, "AHEAD_S", 3600)
    n = opened.replayers.plain.batches
    for one in ahead:
        opened.batch("three", one, 1, 3)
    assert opened.replayers.plain.batches == n == 1 + len(ahead)


def test_steps_are_made_ahead_though_the_request_ends_during_an_import(opened, monkeypatch):
    """The pause begins while a slow step is made, and the step is there before the import of polars ends."""
    monkeypatch.setattr(opened, "replayers", Replayers(plain=Counting(opened.replayers.plain)))
    imports, answered = threading.Event(), threading.Event()

    def slow_import():
        imports.set()
        assert answered.wait(PATIENCE_S)

    make = opened._batch

    def slow_step(*given):
        result = make(*given)
        if not answered.is_set():
            assert imports.wait(PATIENCE_S)
        return result

    def let_go():
        imports.wait()
        while opened._idle_replays._last is None or not opened._idle_replays._requested.is_set():
            time.sleep(0.001)
        answered.set()

    monkeypatch.setattr(open_data, "import_polars", slow_import)
    monkeypatch.setattr(opened, "_batch", slow_step)
    threading.Thread(target=let_go, daemon=True).start()
    assert made_ahead(opened, monkeypatch, 2) == [(one, 1, 3) for one in (2, 3, 1)]


def test_pictures_of_later_slots_are_those_of_the_whole_part(opened, monkeypatch):
    monkeypatch.setattr(open_data, "PICTURED_SLOTS", 2)
    counting = Counting(opened.replayers.plain)
    monkeypatch.setattr(opened, "replayers", Replayers(plain=counting))
    whole, _ = opened.batch("one", 2, 0, 1)
    few = replace(whole, n_pictured=2)
    ((key, (look, *more)),) = opened._batches._values.items()
    opened._batches._values[key] = (replace(look, value=few), *more)
    for slot in (5, 4, 3, 2, 1, 0):
        assert opened.thumbnails("one", 2, 0, 1, slot) == (whole.slots[slot].thumbnails, "")
        assert set(whole.slots[slot].thumbnails) == {"jpg"}
    assert counting.batches == 3  # slots 0 and 1 come with the part; 2 and 3, and 4 and 5, are made together
    with refusal(InvalidRuntime, what="slot", given=6, accepted=[0, 5]):
        opened.thumbnails("one", 2, 0, 1, 6)


def test_run_that_goes_on_is_seen_to_go_on(root, plan, monkeypatch):
    train(root, plan, "live", steps=2)
    made = OpenData(root)
    assert made.training("live").last_step == 1
    assert made.training("live").spreads["loss"].n == 2
    train(root, plan, "live", steps=5)
    assert made.training("live").last_step == 1  # a moment old
    monkeypatch.setattr(open_items, "FRESH_S", 0.0)
    assert made.training("live").last_step == 4
    assert made.training("live").spreads["loss"].n == 7
    assert len(made.training("live").rows(1)) == 2
    made.close()


FAILS = """
import pathlib

def recipe():
    return {"transform": halved}

def halved(sample, rng):
    if pathlib.Path(__file__).with_name("fails").exists():
        raise OSError("the table of labels is not mounted")
    return {"jpg": sample["jpg"][::2, ::2] // 2}
"""


def test_what_was_made_without_the_recipe_is_made_again_once_that_answers(trained, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(FAILS)
    (tmp_path / "fails").touch()
    clock = [1000.0]
    monkeypatch.setattr(open_data.time, "monotonic", lambda: clock[0])
    with loader.Root(trained) as root:
        opened = OpenData(root, f"{tmp_path}/train.py:recipe")
        failed = [opened.slot("one", 1, slot)[0] for slot in range(2)]
        assert all("is not mounted" in one.error and one.decoded for one in failed)
        batch, trouble = opened.batch("one", 1, 0, 1)
        assert "is not mounted" in trouble
        (tmp_path / "fails").unlink()
        assert opened.batch("one", 1, 0, 1) == (batch, trouble)  # pictures of one page do not ask anew
        clock[0] += open_data.RETRY_S
        whole, trouble = opened.slot("one", 1, 0)
        assert (whole.trained["jpg"].shape[0], trouble) == (-(-failed[0].decoded["jpg"].shape[0] // 2), "")
        clock[0] -= open_data.RETRY_S  # it answered meanwhile: that is enough
        assert opened.slot("one", 1, 1)[0].trained
        assert opened.batch("one", 1, 0, 1)[1] == ""
        assert opened.batch("one", 1, 0, 1)[0] is opened.batch("one", 1, 0, 1)[0]
        opened.close()
