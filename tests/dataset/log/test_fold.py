"""Folding is one function of the entries, and refuses an entry that breaks a rule."""

import json
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.log.entries import Entry, canonical, parse, seal
from loader.dataset.log.fold import fold, fold_all
from loader.dataset.log.log import Log
from loader.dataset.log.rules import Done
from loader.dataset.log.snapshots import dump_state, load_state
from loader.dataset.log.state import State
from loader.errors import Corrupt, FormatTooNew
from loader.storage import open_store
from tests.dataset.log.histories import after, all_entries, deny, history, publish


def test_append_writes_nothing_that_readers_would_refuse(store):
    log = Log(store)
    for body in (
        {"kind": "commit", "txn": "t"},
        {"kind": "deny", "hashes": [], "scope": "sample"},
        {"kind": "hold", "n": 5},
    ):
        with pytest.raises(Corrupt):
            log.append(lambda state, body=body: body)
    with pytest.raises(FormatTooNew):
        log.append(lambda state: {"kind": "compress"})
    with pytest.raises(TypeError, match="no floats"):
        log.append(lambda state: {"kind": "hold", "until": 0.5})
    assert all_entries(store) == []


def test_done_appends_nothing(store):
    outcome = Log(store).append(lambda state: Done(state.n))
    assert (outcome.entry, outcome.value) == (None, 0)
    assert all_entries(store) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"kind": "begin", "txn": "t1", "dataset": "photos", "parent": None}, "t1 was begun before"),
        ({"kind": "begin", "txn": "t9", "dataset": "photos", "parent": "v-1"}, "no version of photos"),
        ({"kind": "begin", "txn": "t9", "dataset": 7, "parent": None}, "dataset 7, expected text"),
        ({"kind": "abort", "txn": "t1", "reason": "x"}, "t1 is committed, not open"),
        ({"kind": "abort", "txn": "t9", "reason": "x"}, "t9 is never begun"),
        ({"kind": "retire", "dataset": "photos", "number": 1, "id": "v-1", "reason": "x"}, "with that id"),
        ({"kind": "retire", "dataset": "photos", "number": 2, "id": "v-1", "reason": "x"}, "no version 2"),
        (
            {"kind": "retire", "dataset": "photos", "number": True, "id": "v", "reason": "x"},
            "expected an int",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tag", "number": 2, "was": None},
            "no live version 2",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tog", "number": 1, "was": None},
            "'tog'",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tag", "number": 1, "was": 4},
            "named None, not 4",
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "one", "ref_kind": "tag", "number": 1, "was": 1},
            "cannot become",
        ),
        ({"kind": "deny", "hashes": "aa", "scope": "sample"}, "not a list of text"),
        ({"kind": "mirror", "url": None, "upto": 7}, "url None, expected text"),
        ({"kind": "mirror", "url": "az://b/p", "upto": 8}, "which comes later"),
        ({"kind": "commit", "txn": "t2", "dataset": "photos"}, "number None, expected an integer"),
    ],
)
def test_fold_refuses(store, body, says):
    state = history(store)
    with pytest.raises(Corrupt, match=says) as caught:
        fold(state, after(state, **body))
    assert "log/000000000008.json" in str(caught.value)


def test_fold_names_the_hash_that_a_repair_record_gives(store):
    state = history(store)
    entry = after(state, kind="mirror", url="az://b/p", upto=7)
    assert fold(state, replace(entry, prev="a" * 64, prev_means=state.prev)).n == 8
    relinked = replace(entry, prev_means="b" * 64)
    with pytest.raises(Corrupt, match=f"sha256 {'b' * 64}, but entry 7 has {state.prev}"):
        fold(state, relinked)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"txn": "t1"}, "t1 is committed, not open"),
        ({"txn": "t3"}, "t3 is aborted, not open"),
        ({"txn": "t9"}, "t9 was never begun"),
        ({"dataset": "other"}, "belongs to photos"),
        ({"number": 3}, "number 3, expected 2"),
        ({"parent": None}, "parent None, but the newest"),
        ({"denies": 0}, "takedowns up to entry 0, expected 4"),
        ({"id": None}, "id None, expected text"),
    ],
)
def test_fold_refuses_a_commit(store, change, says):
    state = history(store)
    one = state.version("photos", 1)
    good = {"kind": "commit", "txn": "t2", "dataset": "photos", "number": 2, "manifest": "m"}
    good |= {"id": f"v-{'0' * 64}", "sha256": "0" * 64, "parent": one.id, "denies": 4}
    assert fold(state, after(state, **good)).version("photos", 2).id == good["id"]
    with pytest.raises(Corrupt, match=says):
        fold(state, after(state, **(good | change)))
    with pytest.raises(Corrupt, match="photos@1"):
        fold(state, after(state, **(good | {"id": one.id, "sha256": one.sha256})))


def test_fold_leaves_the_state_it_was_given_alone(store):
    state = history(store)
    before = dump_state(state)
    log = Log(store)
    publish(log)
    log.retire("photos", 1, "old")
    assert dump_state(state) == before
    assert log.state.version("photos", 1).retired == "old"


def test_unknown_fields_of_a_known_kind_are_ignored_and_new_formats_refused(store):
    state = history(store)
    body = {"kind": "begin", "txn": "t9", "dataset": "photos", "parent": None, "note": "later"}
    assert fold(state, after(state, **body)).txns["t9"].status == "open"
    text = json.loads(after(state, **body).data)
    for change in ({"format": 2}, {"kind": "compact"}):
        with pytest.raises(FormatTooNew, match="upgrade"):
            parse(8, canonical(text | change))
    for change in ({"format": 0}, {"format": "1"}, {"kind": 1}, {"nonce": ""}, {"at_us": None}, {"n": 7}):
        with pytest.raises(Corrupt, match=r"log/000000000008\.json"):
            parse(8, canonical(text | change))
    for data in (b"", b"[]", b"{", b"\xff", json.dumps(text).encode(), canonical(text) + b"\n"):
        with pytest.raises(Corrupt, match=r"log/000000000008\.json"):
            parse(8, data)


VERBS = {"publish", "begin", "gated", "abort", "retire", "tag", "deny", "hold", "release"}


@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_any_cut_of_any_history_folds_to_the_same_state(data):
    store = open_store(f"memory://log-{uuid4().hex}")
    log, datasets = Log(store), ("a", "b")
    for _ in range(data.draw(st.integers(0, 12))):
        dataset = data.draw(st.sampled_from(datasets))
        verb = data.draw(st.sampled_from(sorted(VERBS)))
        newest = log.state.newest(dataset)
        if verb == "publish":
            publish(log, dataset)
        elif verb == "begin":
            log.begin(dataset)
        elif verb == "gated":
            publish(log, dataset, gated=True)
        elif verb == "abort":
            log.abort(log.begin(dataset).txn, "ü")
        elif verb == "retire" and newest:
            log.retire(dataset, newest.number, "old")
        elif verb == "tag" and newest:
            log.ref(dataset, f"t{log.state.n}", "tag", newest.number)
        elif verb == "deny":
            log.append(deny)
        elif verb == "hold" and newest:
            log.hold(dataset, newest.number, data.draw(st.sampled_from("ab")), "ü")
        elif verb == "release" and newest:
            log.release(dataset, newest.number, "a")
    entries = all_entries(store)
    cut = data.draw(st.integers(0, len(entries)))
    half = fold_all(State(), entries[:cut])
    assert load_state(dump_state(half)) == half
    assert fold_all(load_state(dump_state(half)), entries[cut:]) == log.state == log.verify()


def test_entry_is_a_value():
    entry = seal(1, "", "aa", 5, {"kind": "hold"})
    assert isinstance(entry, Entry)
    assert parse(1, entry.data) == entry
