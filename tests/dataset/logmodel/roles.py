"""Who takes part in the model: publishers of parts and of groups, takedown, collector, and smaller ones.

A modelled manifest is its list of items, kept in its path: a part is 'p', group g of part p is 'p.g'. So
the log alone says what every version contains.
"""

import hashlib
from collections.abc import Callable
from functools import partial

from loader.dataset.log.entries import canonical
from loader.dataset.log.rules import CommitBody, Done, decide_abort, decide_begin, decide_ref, decide_retire
from loader.dataset.log.state import State
from loader.errors import Conflict

from .world import Append, Role, Rules

DATASET = "photos"
Build = Callable[[State], CommitBody]


def manifest_items(manifest: str) -> frozenset[str]:
    """What the version with this modelled manifest path contains."""
    return frozenset(filter(None, manifest.partition("=")[2].split(",")))


def live_items(items: frozenset[str], denied: frozenset[str]) -> frozenset[str]:
    """The items that are left when the denied parts are taken down, with all of their groups."""
    return frozenset(i for i in items if i.partition(".")[0] not in denied)


def _build_commit(state: State, txn: str, items: frozenset[str]) -> CommitBody:
    newest = state.newest(DATASET)
    parent = newest.id if newest else None
    left = sorted(live_items(items, frozenset(h for d in state.denies for h in d.hashes)))
    sha256 = hashlib.sha256(canonical([txn, parent, left, state.last_deny])).hexdigest()
    return CommitBody(
        id=f"v-{sha256}",
        manifest=f"data/{txn}/m={','.join(left)}",
        sha256=sha256,
        parent=parent,
        denies=state.last_deny,
    )


def _base(state: State) -> frozenset[str]:
    newest = state.newest(DATASET)
    return manifest_items(newest.manifest) if newest else frozenset()


def _build_parts(txn: str, parts: frozenset[str], state: State) -> CommitBody:
    return _build_commit(state, txn, _base(state) | parts)


def _build_group(txn: str, group: str, state: State) -> CommitBody:
    pinned = state.by_id(state.txns[txn].parent or "")
    denied = frozenset(h for d in state.denies for h in d.hashes)
    wanted = live_items(manifest_items(pinned.manifest) if pinned else frozenset(), denied)
    parts = frozenset(i for i in wanted if "." not in i)
    base = _base(state)
    added = frozenset(f"{part}.{group}" for part in parts)
    if not parts <= base or added & base:
        raise Conflict(f"group {group} of {sorted(parts)} does not go with {sorted(base)}")
    return _build_commit(state, txn, base | added)


def _begin(txn: str, state: State, body: CommitBody | None):
    newest = state.newest(DATASET)
    return decide_begin(state, txn, DATASET, newest.id if newest else None), body


def _commit(rules: Rules, txn: str, build: Build, state: State, body: CommitBody | None):
    return rules.commit_or_build(state, txn, body, build)


def _publisher(rules: Rules, name: str, txn: str, build: Build, adds: frozenset[str]) -> Role:
    appends: tuple[Append, ...] = (partial(_begin, txn), partial(_commit, rules, txn, build))
    return Role(name, appends, txn, adds)


def adds_parts(rules: Rules, name: str, txn: str, *parts: str) -> Role:
    """A publisher of parts. Two of them with one txn are an attempt and its zombie."""
    return _publisher(rules, name, txn, partial(_build_parts, txn, frozenset(parts)), frozenset(parts))


def adds_group(rules: Rules, name: str, txn: str, group: str) -> Role:
    """A publisher of one more group for every part of the version it pinned."""
    return _publisher(rules, name, txn, partial(_build_group, txn, group), frozenset())


def takedown_role(name: str, part: str) -> Role:
    """A takedown of one part."""

    def decide(state: State, body: CommitBody | None):
        if any(part in d.hashes for d in state.denies):
            return Done(None), body
        return {"kind": "deny", "hashes": [part], "scope": "sample"}, body

    return Role(name, (decide,))


def collects(name: str, txn: str) -> Role:
    """A collector that takes a working publisher for a dead one, at any moment."""

    def decide(state: State, body: CommitBody | None):
        known = state.txns.get(txn)
        if known is None or known.status != "open":
            return Done(None), body
        return decide_abort(state, txn, "no heartbeat"), body

    return Role(name, (decide,))


def holds(name: str) -> Role:
    """An append that is not idempotent by its content: only the nonce keeps it from happening twice."""

    def decide(state: State, body: CommitBody | None):
        version = state.versions(DATASET)[0]
        named = {"dataset": DATASET, "number": version.number, "id": version.id}
        return {"kind": "hold", "action": "place", **named, "by": name, "why": "audit"}, body

    return Role(name, (decide,))


def moves(name: str, alias: str, was: int | None, number: int) -> Role:
    """A move of an alias. Two that undo each other show whether a lost answer is repeated."""
    return Role(name, (lambda s, b: (decide_ref(s, DATASET, alias, "alias", number, was), b),))


def retires(name: str, number: int) -> Role:
    """A retirement of one version."""
    return Role(name, (lambda state, body: (decide_retire(state, DATASET, number, "bad"), body),))
