"""The ledger: every substitution on record once, behind the step's back, and never lost in silence."""

import json
import threading

import pytest

import loader
from loader.errors import Corrupt, Forbidden, FormatTooNew
from loader.order.substitutes import substitute
from tests.refusals import refusal
from tests.servers.processes import python


def refuse(numbers, words="{} is not to be read"):
    def decode(data, rng):
        if int(data) in numbers:
            raise ValueError(words.format(int(data)))
        return int(data)

    return decode


@pytest.fixture
def plan(memory_root, samples):
    version = samples.write(memory_root, "photos", range(40), part_samples=9)
    return loader.plan({"photos": version.select("cls")}, seed=5, global_batch=8)


def sample_numbers(plan, step):
    return [int(key[-3:]) for _, key in plan.batch_ids(step)]


@pytest.fixture
def chain(plan):
    """A slot of step 0, and the numbers of its sample and of its first substitute."""
    own = sample_numbers(plan, 0)
    for slot in range(8):
        position = int(plan.slots(0).position[slot])
        first = substitute(plan, 0, position, 1)[1]
        (number,) = (int(key[-3:]) for key in plan.sources["photos"].view.keys([first]))
        if number not in own:
            return slot, own[slot], number
    raise AssertionError("no such slot")


def objects(root):
    return [info.key for info in root.store.list("ledgers/")]


def test_each_attempt_is_a_line_with_the_address_of_what_was_corrupt(memory_root, plan, chain):
    slot, own, first = chain
    with loader.Loader(plan, 0, 1, decode={"cls": refuse({own, first})}, workers=0) as batches:
        batch = next(batches)
        state = batches.state_dict()
        assert state["step"] == 1
        assert (
            loader.read_ledger(memory_root, plan) == batch.substitutions
        )  # stored before the state is given
    one, two = loader.read_ledger(memory_root, plan.hash)
    assert [(at.step, at.slot, at.attempt, at.stage) for at in (one, two)] == [
        (0, slot, 1, "decode"),
        (0, slot, 2, "decode"),
    ]
    assert one.address == loader.explain(plan, 0)[slot].address
    assert (one.substitute, two.address.key) == (f"photos/{first:03d}",) * 2
    assert two.substitute == batch.ids[slot][1]
    assert one.substitute_ordinal == two.address.ordinal
    view = plan.sources["photos"].view
    assert view.keys([two.substitute_ordinal]) == [two.substitute]
    place = two.address.fields["cls"]
    assert memory_root.store.get_range(place.path, place.offset, place.nbytes).data == b"%d" % first
    (key,) = objects(memory_root)
    assert key.startswith(f"ledgers/{plan.hash}/0-of-1/{0:019d}-{slot:010d}-")
    lines = memory_root.store.get(key).data.decode().splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [1, 2]
    assert json.loads(lines[0])["format"] == 1


def test_step_made_again_is_not_listed_again(memory_root, plan, chain):
    _, own, first = chain
    options = {"decode": {"cls": refuse({own, first})}, "corrupt_budget": 1.0}
    with loader.Loader(plan, 0, 1, **options) as batches:
        for step in (0, 1, 0, 0):
            batches.seek(step)
            next(batches)
        batches.batch_at(0)
    once = objects(memory_root)
    listed = loader.read_ledger(memory_root, plan)
    again = refuse({own, first}, "in other words, {}")
    for world_size in (1, 2, 3):
        for rank in range(world_size):
            with loader.Loader(plan, rank, world_size, **{**options, "decode": {"cls": again}}) as batches:
                next(batches)
    assert set(once) <= set(objects(memory_root))
    assert [key for key in objects(memory_root) if "/0-of-1/" in key] == once
    seen = [one.identity for one in loader.read_ledger(memory_root, plan)]
    assert seen == [one.identity for one in listed]
    assert len({identity[:3] for identity in seen}) == len(seen)


def test_what_was_only_made_ahead_is_not_listed(memory_root, plan):
    later = sample_numbers(plan, 3)[0]
    assert later not in sample_numbers(plan, 0)
    with loader.Loader(plan, 0, 1, decode={"cls": refuse({later})}, workers=2) as batches:
        next(batches)
        assert batches.metrics()["substituted_total"] == 0
    assert objects(memory_root) == []


class Gate:
    """A store whose creates wait, or fail, as the test says."""

    def __init__(self, store, error=None):
        self.inner, self.error, self.waits, self.open = store, error, threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def put_if_absent(self, key, data):
        if key.startswith("ledgers/"):
            self.waits.set()
            self.open.wait()
            if self.error:
                raise self.error
        self.inner.put_if_absent(key, data)


def gate_store(root, plan, error=None):
    root.store = Gate(root.store, error)
    view = root.open("photos@1").select("cls")
    return root.store, loader.plan({"photos": view}, seed=5, global_batch=8)


def test_step_does_not_wait_for_the_store_and_the_state_does(memory_root, plan, monkeypatch):
    store, plan = gate_store(memory_root, plan)
    bad = refuse({sample_numbers(plan, 0)[2]})
    with loader.Loader(plan, 0, 1, decode={"cls": bad}, workers=0) as batches:
        flush = batches._ledger.flush
        monkeypatch.setattr(batches._ledger, "flush", lambda: (store.open.set(), flush()))
        assert [next(batches).step for _ in range(3)] == [0, 1, 2]
        store.waits.wait()
        assert objects(memory_root) == []
        state, listed = batches.state_dict(), objects(memory_root)
        store.open.set()  # whatever happened, so that the thread can end
        assert state["step"] == 3
        assert len(listed) == 1


@pytest.mark.parametrize("at", [next, loader.Loader.state_dict, loader.Loader.close])
def test_ledger_that_cannot_be_written_is_an_error(at, memory_root, plan):
    store, plan = gate_store(memory_root, plan, Forbidden("this account only reads", what="account"))
    store.open.set()
    batches = loader.Loader(plan, 0, 1, decode={"cls": refuse({sample_numbers(plan, 0)[2]})}, workers=0)
    next(batches)
    for write in list(batches._ledger._pending):
        write.future.exception()  # until the thread is done with it
    with refusal(Forbidden, what="account") as caught:
        at(batches)
    assert f"ledgers/{plan.hash}/0-of-1/" in caught.value.__notes__[0]
    assert "Loader(ledger=loader.Root(...))" in caught.value.__notes__[0]
    batches.close()
    assert batches.step == 1


@pytest.mark.parametrize("again", [next, loader.Loader.state_dict, loader.Loader.close])
def test_ledger_is_stored_after_its_error_was_raised(again, memory_root, plan, caplog):
    store, plan = gate_store(memory_root, plan, Forbidden("this account only reads", what="account"))
    store.open.set()
    batches = loader.Loader(plan, 0, 1, decode={"cls": refuse({sample_numbers(plan, 0)[2]})}, workers=0)
    batch = next(batches)
    for _ in range(2):
        with refusal(Forbidden, what="account"):
            batches.state_dict()
    store.error = None
    again(batches)
    batches.close()
    assert loader.read_ledger(memory_root, plan) == batch.substitutions


def test_where_the_data_may_only_be_read_the_ledger_goes_to_another_root(memory_root, plan, tmp_path):
    mine = loader.Root(str(tmp_path / "ledgers"))
    bad = refuse({sample_numbers(plan, 0)[2]})
    with loader.Loader(plan, 0, 1, decode={"cls": bad}, workers=0, ledger=mine) as batches:
        batch = next(batches)
    assert len(batch.substitutions) == 1
    assert loader.read_ledger(mine, plan) == batch.substitutions
    assert loader.read_ledger(memory_root, plan) == []


def test_secrets_of_an_errors_words_are_hidden(memory_root, plan):
    words = "{} from https://me:hunter2@host/x?X-Amz-Signature=abcdef12&b=1 " + "x" * 5000
    with loader.Loader(plan, 0, 1, decode={"cls": refuse({sample_numbers(plan, 0)[0]}, words)}) as batches:
        next(batches)
    (key,) = objects(memory_root)
    text = memory_root.store.get(key).data.decode()
    assert "from https://***@host" in text
    assert "hunter2" not in text
    assert "abcdef12" not in text
    assert len(text) < 4000


def test_ledgers_of_other_plans_and_roots_are_apart(memory_root, plan, tmp_path, samples):
    """A sample is listed in the root that it lies in."""
    here = loader.Root(str(tmp_path / "root"))
    web = samples.write(here, "web", range(20)).select("cls")
    both = loader.plan({"photos": plan.sources["photos"].view, "web": web}, seed=5, global_batch=8)
    bad = {
        name: next(int(key[-3:]) for source, key in both.batch_ids(0) if source == name)
        for name in ("photos", "web")
    }
    with loader.Loader(both, 0, 1, decode={"cls": refuse(set(bad.values()))}, corrupt_budget=1.0) as batches:
        batch = next(batches)
    assert {one.source for one in loader.read_ledger(here, both)} == {"web"}
    assert {one.source for one in loader.read_ledger(memory_root, both)} == {"photos"}
    assert len(batch.substitutions) == sum(
        len(loader.read_ledger(root, both)) for root in (here, memory_root)
    )
    assert loader.read_ledger(here, plan) == []


def test_process_that_just_ends_has_written_its_ledger(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(12))
    plan = loader.plan({"photos": version.select("cls")}, seed=5, global_batch=8)
    plan.save(root)
    program = f"""
import loader
root = loader.Root({root.url!r})
def refuse(data, rng):
    if int(data) == {sample_numbers(plan, 0)[3]}:
        raise ValueError("no")
    return int(data)
plan = loader.open_plan(root, {plan.hash!r})
batches = loader.Loader(plan, 0, 1, decode={{"cls": refuse}}, framework="numpy", workers=1)
print(next(batches).substitutions[0].substitute)
"""
    done = python("-c", program, check=True)
    (one,) = loader.read_ledger(root, plan)
    assert one.substitute == done.stdout.strip()
    assert one.slot == 3


def test_objects_that_are_no_ledger_are_named(memory_root, plan, chain):
    _, own, _ = chain
    with loader.Loader(plan, 0, 1, decode={"cls": refuse({own})}) as batches:
        next(batches)
    (key,) = objects(memory_root)
    good = memory_root.store.get(key).data
    for line, error, part, problem in (
        (b"not json\n", Corrupt, "ledger", "DamagedJson"),
        (b"[]\n", Corrupt, "ledger", "DamagedJson"),
        (good.replace(b'"slot"', b'"slat"'), Corrupt, "ledger", "KeyError"),
        (good.replace(b'"format":1', b'"format":2'), FormatTooNew, "ledger format", 2),
    ):
        memory_root.store.put(key, line)
        with refusal(error, what=part, where=f"{memory_root.url}/{key}", given=problem):
            loader.read_ledger(memory_root, plan)
