"""Holds of versions: placed once, released by who placed them."""

import pytest

from loader.dataset.log.log import Log
from loader.errors import Corrupt, InvalidName, VersionNotFound, VersionRetired
from tests.dataset.log.histories import publish
from tests.refusals import refusal


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
    with refusal(VersionRetired, what="version", where="photos@1", given="bad"):
        log.hold("photos", 1, "bob", "audit")
    assert log.release("photos", 1, "alice")
    with pytest.raises(VersionNotFound):
        log.hold("photos", 2, "bob", "audit")
    with pytest.raises(VersionNotFound):
        log.release("photos", 2, "bob")
    for by, why in (("", "audit"), ("bob", "")):
        what = "reason" if by else "holder's name"
        with refusal(InvalidName, what=what, given=""):
            log.hold("photos", 1, by, why)


def test_readers_refuse_holds_that_break_a_rule(store):
    log = Log(store)
    known = publish(log)
    named = {"kind": "hold", "dataset": "photos", "number": 1, "id": known.id, "by": "alice"}
    for body, fault in (
        ({**named, "action": "place", "number": 2, "why": "x"}, {"what": "number", "given": 2}),
        ({**named, "action": "place", "id": "v-1", "why": "x"}, {"what": "id", "given": "v-1"}),
        ({**named, "action": "place"}, {"what": "why", "given": None}),
        ({**named, "action": "release"}, {"what": "by", "given": "alice"}),
        ({**named, "action": "keep", "why": "x"}, {"what": "action", "given": "keep"}),
    ):
        with refusal(Corrupt, **fault):
            log.append(lambda state, body=body: body)
    log.retire("photos", 1, "bad")
    with refusal(Corrupt, what="number", where="log entry log/000000000004.json (hold)", given=1):
        log.append(lambda state: {**named, "action": "place", "why": "x"})
