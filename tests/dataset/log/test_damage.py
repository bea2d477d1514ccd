"""Flipped bits in what is read of the log, hints that say other things, and logs of releases without checksums."""

import hashlib
import json
import random
from uuid import uuid4

import pytest

import loader
from loader.dataset.log.append import read_tail
from loader.dataset.log.entries import canonical, entry_checksum, entry_key, parse
from loader.dataset.log.fold import fold, fold_all
from loader.dataset.log.log import Log
from loader.dataset.log.marker import MARKER, check_root
from loader.dataset.log.snapshots import HINT_EVERY, dump_state, hint_key, load_state
from loader.dataset.log.state import State
from loader.errors import Corrupt, PenstockError, Transient
from loader.storage import open_store
from penstock.upkeep.migrate.mirror_update import make_primary
from tests.refusals import refusal


class Flipped:
    """A store of which one answer has a changed byte: the `at`-th read of `key`."""

    def __init__(self, store, key, change, at=0):
        self.store, self.url, self.key, self.change, self.at = store, store.url, key, change, at

    def get(self, key):
        found = self.store.get(key)
        if key == self.key:
            self.at -= 1
            if self.at == -1:
                return found._replace(data=self.change(found.data))
        return found

    def __getattr__(self, name):
        return getattr(self.store, name)


def digit_of_time(data):
    """A digit of `at_us` flipped: still canonical JSON, and an entry to any release without checksums."""
    at = data.index(b'"at_us":') + len(b'"at_us":') + 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def name_of_checksum(data):
    return data.replace(b'"checksum"', b'"chdcksum"')


def old_release(store, *bodies, state=None):
    """Append entries as a release without checksums did; the state after them."""
    state = Log(store).state if state is None else state
    for body in bodies:
        value = {
            "format": 1,
            "n": state.n + 1,
            "nonce": uuid4().hex,
            "prev": state.prev,
            "at_us": 4_000_000_000_000_000,
        }
        entry = parse(state.n + 1, canonical({**value, **body}))
        assert entry.checksum == ""
        store.put_if_absent(entry_key(entry.n), entry.data)
        state = fold(state, entry)
    return state


def begin_body(name, dataset="photos"):
    return {"kind": "begin", "txn": name, "dataset": dataset, "parent": None}


def names(store):
    return sorted(Log(store).state.txns)


def sound(store):
    """Whether every reader takes the log, from its first entry on, and by its hints."""
    return Log(store).verify() == Log(store).state


@pytest.mark.parametrize(
    "change", [digit_of_time, name_of_checksum, lambda data: data[:-3], lambda data: b"[]"]
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_flip_on_the_way_leaves_the_log_whole(store, change, at):
    for name in "abc":
        Log(store).begin("photos", txn=name)
    Log(Flipped(store, entry_key(3), change, at)).begin("photos", txn="d")
    assert names(store) == ["a", "b", "c", "d"]
    assert sound(store)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_flip_in_the_newest_entry_of_an_earlier_release_is_not_sealed(store, at):
    """It has no checksum: it is read twice before anything rests on it."""
    old_release(store, *map(begin_body, "abc"))
    Log(Flipped(store, entry_key(3), digit_of_time, at)).begin("photos", txn="d")
    assert names(store) == ["a", "b", "c", "d"]
    assert sound(store)


@pytest.mark.parametrize("at", [0, 1])
def test_flip_in_an_entry_that_came_first_is_not_sealed(store, at):
    """The loser of a race reads what came first, and writes behind it."""
    Log(store).begin("photos", txn="a")
    log = Log(Flipped(store, entry_key(2), digit_of_time, at))
    assert log.state.n == 1
    old_release(store, begin_body("b"))
    log.begin("photos", txn="c")
    assert names(store) == ["a", "b", "c"]
    assert sound(store)


def test_flip_where_a_writer_looks_for_his_own_entry(store):
    """His write is stored and its answer lost: he reads it, damaged on the way, and again."""

    class Lost(Flipped):
        def put_if_absent(self, key, data):
            self.store.put_if_absent(key, data)
            raise Transient("no answer")

    Log(store).begin("photos", txn="a")
    assert Log(Lost(store, entry_key(2), digit_of_time, 1)).begin("photos", txn="b").n == 2
    assert sound(store)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_flips_nothing_wrong_is_believed(store, seed):
    """Any byte of any read of the log, of old entries and new: who appends is told, or the log goes on whole."""
    chance = random.Random(seed)
    old_release(store, *map(begin_body, "abc"[: chance.randrange(4)]))
    for name in "def":
        Log(store).begin("photos", txn=name)
    known = names(store)

    def flip(data):
        at = chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]

    key = entry_key(chance.randrange(1, len(known) + 1))
    try:
        Log(Flipped(store, key, flip, chance.randrange(2))).begin("photos", txn="z")
    except PenstockError:
        pass
    else:
        known.append("z")
    assert names(store) == known
    assert sound(store)


def test_entry_that_was_damaged_where_it_lies_is_named_by_itself(store):
    for name in "abc":
        Log(store).begin("photos", txn=name)
    store.put(entry_key(2), digit_of_time(store.get(entry_key(2)).data))
    with refusal(Corrupt, what="checksum", where="log entry log/000000000002.json"):
        Log(store).refresh()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data.replace(b'"format":1', b'"format":3')]
)
def test_marker_that_is_damaged_on_its_way_is_read_again(tmp_path, damage):
    loader.Root(tmp_path).create()
    store = open_store(str(tmp_path))
    assert check_root(Flipped(store, MARKER, damage)) == check_root(store)


@pytest.mark.parametrize("at", [0, 1])
def test_no_marker_is_written_after_a_flipped_one(tmp_path, at):
    """Its id would be another one for good."""
    loader.Root(tmp_path).create()
    store = open_store(str(tmp_path))
    good = store.get(MARKER).data

    def other_id(data):
        place = data.index(b'"id":"') + 6
        return data[:place] + (b"0" if data[place : place + 1] != b"0" else b"1") + data[place + 1 :]

    with refusal(Transient, what="penstock.json", where=tmp_path, given="other bytes"):
        make_primary(Flipped(store, MARKER, other_id, at), "token")
    assert store.get(MARKER).data == good


def test_commit_that_is_not_of_its_manifest_is_not_opened(tmp_path):
    """Edited by somebody who knows the format: the entry's checksum and the manifest's hash are right."""
    root = loader.Root(tmp_path)
    root.begin("d", txn="older")
    with root.write("d") as writer:
        writer.add("k", {"cls": 1})
    n = root.state.n
    value = {**json.loads(root.store.get(entry_key(n)).data), "txn": "older"}
    root.store.put(entry_key(n), canonical({**value, "checksum": entry_checksum(value)}))
    with refusal(Corrupt, what="txn", where=f"{root.url}/{entry_key(n)}", given="older"):
        loader.Root(tmp_path).open("d@1")


# --- hints


def grow_log(store, entries):
    log = Log(store)
    for k in range(entries):
        log.begin("photos", txn=f"t{k:04d}")
    return log


def forge_hint(data):
    """A hint with a right checksum of its own and the same last entry, in which transactions were given up."""
    body = json.loads(data)["state"]
    for txn in body["txns"]:
        txn.update(status="aborted", reason="forged")
    body = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return b'{"checksum":"%b","format":1,"state":%b}' % (hashlib.sha256(body).hexdigest().encode(), body)


@pytest.mark.parametrize("entries", [HINT_EVERY + 1, HINT_EVERY + 9])
def test_forged_hint_is_not_believed(store, entries, caplog):
    log = grow_log(store, entries)
    good = store.get(hint_key(HINT_EVERY)).data
    assert load_state(forge_hint(good)).prev == load_state(good).prev
    store.put(hint_key(HINT_EVERY), forge_hint(good))
    assert Log(store).state == log.state
    assert "differs from its checksum in the next entry" in caplog.text
    assert store.get(hint_key(HINT_EVERY)).data == good  # written again by who read without it
    Log(store).begin("photos", txn="later")
    assert sound(store)


def test_hint_behind_the_last_entry_is_not_believed(store):
    """No entry vouches for it yet."""
    log = grow_log(store, HINT_EVERY)
    before = log.state
    store.put(hint_key(HINT_EVERY), forge_hint(dump_state(before)))
    assert Log(store).state == before
    Log(store).begin("photos", txn="later")
    assert Log(store).state == Log(store).verify()
    assert load_state(store.get(hint_key(HINT_EVERY)).data) == before


def test_hints_of_an_earlier_release_are_not_believed_until_an_entry_says_so(store):
    """Its log is read from the start; the next append vouches for what came before it."""
    state = old_release(store, *(begin_body(f"t{k:04d}") for k in range(HINT_EVERY + 40)), state=State())
    at_hint = State()
    for entry in read_tail(store, 0):
        at_hint = fold(at_hint, entry) if entry.n <= HINT_EVERY else at_hint
    store.put(hint_key(HINT_EVERY), forge_hint(dump_state(at_hint)))
    assert Log(store).state == state
    Log(store).begin("photos", txn="new")
    assert load_state(store.get(hint_key(HINT_EVERY + 40)).data) == state
    seen = []

    class Counted(Flipped):
        def get(self, key):
            seen.append(key)
            return super().get(key)

    assert Log(Counted(store, "", None)).state == Log(store).verify()
    assert len(seen) < 6
    store.put(hint_key(HINT_EVERY + 40), forge_hint(dump_state(state)))
    assert Log(store).state == Log(store).verify()


def test_every_cut_of_a_log_gives_the_same_hint(store):
    """The checksum that an entry says is that of whoever folds, however much at once."""
    log = grow_log(store, 20)
    for dataset in ("words", "clips"):
        log.begin(dataset, txn=dataset)
    entries = list(read_tail(store, 0))
    whole = dump_state(fold_all(State(), entries))
    for cut in range(len(entries)):
        assert dump_state(fold_all(fold_all(State(), entries[:cut]), entries[cut:])) == whole
