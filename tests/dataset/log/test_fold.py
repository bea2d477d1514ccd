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
from tests.dataset.log.histories import all_entries, deny, history, next_entry, publish
from tests.refusals import refusal


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
    ("body", "fault"),
    [
        ({"kind": "begin", "txn": "t1", "dataset": "photos", "parent": None}, {"what": "txn", "given": "t1"}),
        (
            {"kind": "begin", "txn": "t9", "dataset": "photos", "parent": "v-1"},
            {"what": "parent", "given": "v-1"},
        ),
        (
            {"kind": "begin", "txn": "t9", "dataset": 7, "parent": None},
            {"what": "dataset", "given": 7, "accepted": "text"},
        ),
        ({"kind": "abort", "txn": "t1", "reason": "x"}, {"what": "txn", "given": "t1"}),
        ({"kind": "abort", "txn": "t9", "reason": "x"}, {"what": "txn", "given": "t9"}),
        (
            {"kind": "retire", "dataset": "photos", "number": 1, "id": "v-1", "reason": "x"},
            {"what": "id", "given": "v-1"},
        ),
        (
            {"kind": "retire", "dataset": "photos", "number": 2, "id": "v-1", "reason": "x"},
            {"what": "number", "given": 2},
        ),
        (
            {"kind": "retire", "dataset": "photos", "number": True, "id": "v", "reason": "x"},
            {"what": "number", "given": True},
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tag", "number": 2, "was": None},
            {"what": "number", "given": 2},
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tog", "number": 1, "was": None},
            {"what": "ref_kind", "given": "tog"},
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "a", "ref_kind": "tag", "number": 1, "was": 4},
            {"what": "was", "given": 4, "accepted": None},
        ),
        (
            {"kind": "ref", "dataset": "photos", "name": "one", "ref_kind": "tag", "number": 1, "was": 1},
            {"what": "name", "given": "one"},
        ),
        ({"kind": "deny", "hashes": "aa", "scope": "sample"}, {"what": "hashes", "given": "aa"}),
        ({"kind": "mirror", "url": None, "upto": 7}, {"what": "url", "given": None, "accepted": "text"}),
        ({"kind": "mirror", "url": "az://b/p", "upto": 8}, {"what": "upto", "given": 8}),
        (
            {"kind": "commit", "txn": "t2", "dataset": "photos"},
            {"what": "number", "given": None, "accepted": "an integer >= 0"},
        ),
    ],
)
def test_fold_refuses(store, body, fault):
    state = history(store)
    where = f"log entry log/000000000008.json ({body['kind']})"
    with refusal(Corrupt, where=where, **fault):
        fold(state, next_entry(state, **body))


def test_fold_names_the_hash_that_a_repair_record_gives(store):
    state = history(store)
    entry = next_entry(state, kind="mirror", url="az://b/p", upto=7)
    assert fold(state, replace(entry, prev="a" * 64, prev_means=state.prev)).n == 8
    relinked = replace(entry, prev_means="b" * 64)
    with refusal(Corrupt, what="prev", given="b" * 64, accepted=state.prev):
        fold(state, relinked)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"txn": "t1"}, {"what": "txn", "given": "t1"}),
        ({"txn": "t3"}, {"what": "txn", "given": "t3"}),
        ({"txn": "t9"}, {"what": "txn", "given": "t9"}),
        (
            {"dataset": "other"},
            {"what": "dataset", "given": "other"},
        ),
        ({"number": 3}, {"what": "number", "given": 3, "accepted": 2}),
        ({"denies": 0}, {"what": "denies", "given": 0, "accepted": 4}),
        (
            {"id": None},
            {"what": "id", "accepted": "text"},
        ),
    ],
)
def test_fold_refuses_a_commit(store, change, fault):
    state = history(store)
    one = state.version("photos", 1)
    good = {"kind": "commit", "txn": "t2", "dataset": "photos", "number": 2, "manifest": "m"}
    good |= {"id": f"v-{'0' * 64}", "sha256": "0" * 64, "parent": one.id, "denies": 4}
    assert fold(state, next_entry(state, **good)).version("photos", 2).id == good["id"]
    where = "log entry log/000000000008.json (commit)"
    with refusal(Corrupt, where=where, **fault):
        fold(state, next_entry(state, **(good | change)))
    with refusal(Corrupt, what="parent", where=where, given=None, accepted=one.id):
        fold(state, next_entry(state, **(good | {"parent": None})))
    with refusal(Corrupt, what="id", where=where, given=one.id, accepted=None):
        fold(state, next_entry(state, **(good | {"id": one.id, "sha256": one.sha256})))


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
    assert fold(state, next_entry(state, **body)).txns["t9"].status == "open"
    text = json.loads(next_entry(state, **body).data)
    for change in ({"format": 2}, {"kind": "compact"}):
        (fault,) = change.items()
        with refusal(FormatTooNew, what=fault[0], where="log entry log/000000000008.json", given=fault[1]):
            parse(8, canonical(text | change))
    for change in ({"format": 0}, {"format": "1"}, {"kind": 1}, {"nonce": ""}, {"at_us": None}, {"n": 7}):
        (fault,) = change.items()
        with refusal(Corrupt, what=fault[0], where="log entry log/000000000008.json", given=fault[1]):
            parse(8, canonical(text | change))
    for data, value, accepted in (
        (b"", b"", "JSON"),
        (b"[]", "list", "a JSON object"),
        (b"{", b"{", "JSON"),
        (b"\xff", b"\xff", "JSON"),
        (json.dumps(text).encode(), json.dumps(text).encode()[:80], "canonical JSON"),
        (canonical(text) + b"\n", canonical(text)[:80], "canonical JSON"),
    ):
        where = "log entry log/000000000008.json"
        with refusal(Corrupt, what="entry", where=where, given=value, accepted=accepted):
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
