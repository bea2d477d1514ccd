"""Log entries that were edited or deleted by hand are named."""

import json

import pytest

from loader.dataset.log.entries import canonical, entry_checksum, entry_key, find_edited, parse
from loader.dataset.log.fold import fold_all
from loader.dataset.log.log import Log
from loader.dataset.log.state import State
from loader.errors import Corrupt
from tests.dataset.log.histories import all_entries, history
from tests.refusals import refusal


def rewritten(entry, **change):
    """The entry edited by somebody who knows the format: its checksum is right."""
    value = json.loads(entry.data) | change
    return canonical(value | {"checksum": entry_checksum(value)})


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("change", [{"at_us": 1}, {"nonce": "ee"}, {"at_us": 1, "prev": "0" * 64}])
def test_edited_entry_is_named_exactly(store, k, change):
    history(store)
    store.put(entry_key(k), rewritten(all_entries(store)[k - 1], **change))
    with pytest.raises(Corrupt):
        Log(store).refresh()
    with pytest.raises(Corrupt) as caught:
        Log(store).verify()
    assert f"chain of hashes: {entry_key(k)}" in caught.value.__notes__[0]


def test_edited_entry_is_told_with_the_root_and_what_to_do(store):
    """Whoever opens the root meets it: a commit by another number, an entry that is not JSON, one that is gone."""
    history(store)
    entries = all_entries(store)
    commit = next(one for one in entries if one.kind == "commit")
    to_do = (
        f"; run penstock verify --root {store.url}, which names what was edited or is missing; restore that"
    )
    damages = [
        (commit, rewritten(commit, number=7), {"what": "number", "given": 7, "accepted": 1}),
        (entries[2], b"{", {"what": "entry", "given": b"{", "accepted": "JSON"}),
        (entries[3], rewritten(entries[3], at_us=1), {"what": "prev", "given": entries[3].sha256}),
        (entries[3], None, {"what": "entry", "given": "missing"}),
    ]
    for entry, damaged, fault in damages:
        one_open = Log(store)
        one_open._known = fold_all(State(), entries[: entry.n - 1])  # read when all was well
        if damaged is None:
            store.delete_many([entry_key(entry.n)])
        else:
            store.put(entry_key(entry.n), damaged)
        # (a reader that knows the entries before one that is gone takes its place for the end of the log)
        for log in (Log(store), one_open) if damaged else (Log(store),):
            with refusal(Corrupt, **fault) as caught:
                log.refresh()
            assert str(caught.value).startswith(f"{store.url}: log entry log/0000000000")
            assert to_do in str(caught.value)
        store.put(entry_key(entry.n), entry.data)
    assert Log(store).refresh().n == len(entries)


def test_several_edits_are_told_apart(store):
    history(store)
    entries = all_entries(store)
    for k in (2, 5):
        entries[k - 1] = parse(k, rewritten(entries[k - 1], at_us=1))
    assert find_edited(entries) == [2, 5]
    assert find_edited(all_entries(store)) == []


def test_edit_with_an_editor_is_noticed_in_the_last_entry_too(store):
    state = history(store)
    pretty = json.dumps(json.loads(store.get(entry_key(state.n)).data), indent=2).encode()
    store.put(entry_key(state.n), pretty)
    where = "log entry log/000000000007.json"
    with refusal(Corrupt, what="entry", where=where, given=pretty[:80], accepted="canonical JSON"):
        Log(store).verify()


@pytest.mark.parametrize("k", [2, 3, 5, 6])
def test_deleted_entry_is_missed(store, k):
    history(store)
    store.delete_many([entry_key(k)])
    with refusal(Corrupt, what="entry", where=f"log entry {entry_key(k)}", given="missing"):
        Log(store).refresh()
