"""Holds of versions: placed once, released by who placed them."""

import pytest

from loader.dataset.log.log import Log
from loader.errors import Corrupt, InvalidName, VersionNotFound, VersionRetired
from tests.dataset.log.histories import publish


def test_hold_is_placed_once_and_released(store):
    log = Log(store)
    publish(log)
    publish(log)
    log.hold("photos", 1, "alice", "audit 2026")
    n = log.state.n
    log.hold("photos", 1, "alice", "another reason")
    assert log.state.n == n
    log.hold("photos", 1, "bob", "appeal")
    assert [(one.by, one.why, one.n) for one in log.state.version_holds("photos", 1)] == [
        ("alice", "audit 2026", n),
        ("bob", "appeal", n + 1),
    ]
    assert log.state.version_holds("photos", 2) == ()
    assert not log.release("photos", 1, "carol")
    assert log.release("photos", 1, "alice")
    assert not log.release("photos", 1, "alice")
    assert [one.by for one in log.state.holds] == ["bob"]
    assert Log(store).verify() == log.state == Log(store).state


def test_what_is_retired_is_not_held_any_more_but_may_be_released(store):
    log = Log(store)
    publish(log)
    log.hold("photos", 1, "alice", "audit")
    log.retire("photos", 1, "bad")
    assert [one.by for one in log.state.version_holds("photos", 1)] == ["alice"]
    with pytest.raises(VersionRetired, match="bad"):
        log.hold("photos", 1, "bob", "audit")
    assert log.release("photos", 1, "alice")
    with pytest.raises(VersionNotFound):
        log.hold("photos", 2, "bob", "audit")
    with pytest.raises(VersionNotFound):
        log.release("photos", 2, "bob")
    for by, why in (("", "audit"), ("bob", "")):
        with pytest.raises(InvalidName, match="pass text"):
            log.hold("photos", 1, by, why)


def test_readers_refuse_holds_that_break_a_rule(store):
    log = Log(store)
    known = publish(log)
    named = {"kind": "hold", "dataset": "photos", "number": 1, "id": known.id, "by": "alice"}
    for body, why in (
        ({**named, "action": "place", "number": 2, "why": "x"}, "no version 2 with that id"),
        ({**named, "action": "place", "id": "v-1", "why": "x"}, "no version 1 with that id"),
        ({**named, "action": "place"}, "why None, expected text"),
        ({**named, "action": "release"}, "'alice' does not hold photos@1"),
        ({**named, "action": "keep", "why": "x"}, "action 'keep', expected 'place' or 'release'"),
    ):
        with pytest.raises(Corrupt, match=why):
            log.append(lambda state, body=body: body)
    log.retire("photos", 1, "bad")
    with pytest.raises(Corrupt, match="photos@1 was retired"):
        log.append(lambda state: {**named, "action": "place", "why": "x"})
