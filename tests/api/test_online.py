"""A run over rollouts: each step is decided once, and every rank, restart and replay gets the same batches."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import loader
from loader.dataset.root import root_in_store
from loader.errors import (
    Corrupt,
    FormatTooNew,
    InvalidName,
    InvalidPlan,
    InvalidRuntime,
    InvalidSample,
    PlanMismatch,
    Transient,
)
from loader.rollouts.record import DecisionRecord
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal
from tests.rollouts.online_model import Model, Row
from tests.rollouts.rollout_roots import (
    PACK,
    REF,
    decision_keys,
    digests,
    group,
    live_rows,
    online,
    publish,
    publish_groups,
    sample,
    sum_digests,
)


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    new_root = loader.Root(tmp_path / "root")
    new_root.create()
    return new_root


def publish_drawn(root: loader.Root, draw: random.Random, number: int, policy: int) -> None:
    """Publish a transaction of groups of any size and age, whose members lie in any of its parts."""
    txn = f"t{number}"
    parts: list[list[Any]] = [[] for _ in range(draw.randrange(1, 4))]
    for name in range(draw.randrange(1, 6)):
        for member in group(txn, f"g{name}", draw.randrange(1, 5), max(0, policy - draw.randrange(5))):
            draw.choice(parts).append(member)
    publish(root, txn, [part for part in parts if part])


@pytest.mark.parametrize("stale", ["sequence", "group"])
def test_decisions_agree_with_the_model(root: loader.Root, stale: str) -> None:
    """Publications, exclusions, restarts and decisions in a random order; each group has one fate, or waits."""
    draw = random.Random(stale)
    model = Model(groups=2, max_lag=2, stale=stale, min_size=2)
    arguments = {"groups": 2, "max_lag": 2, "stale": stale, "min_size": 2}
    publish_drawn(root, draw, 0, 0)
    batches = online(root, **arguments)
    state = None
    excluded: set[str] = set()
    for number in range(1, 26):
        version = root.open(REF)
        rows = live_rows(version)
        assert loader.backlog(root, REF, "big") == model.backlog(rows)
        policy = batches.step
        expected = model.decide(rows, policy)
        if expected is not None:
            next(batches)
            state = json.loads(json.dumps(batches.state_dict()))
            assert decision_keys(batches) == expected
            check_counts(version, batches.decision, model)
        if draw.random() < 0.7 or expected is None:
            publish_drawn(root, draw, number, policy)
        waiting = [row.key for row in rows if row.key not in model.fates]
        if waiting and draw.random() < 0.3:
            excluded.add(waiting[0])
            root.exclude(REF, waiting[:1], reason="looks odd")
        if draw.random() < 0.3:
            batches.close()
            batches = online(root, **arguments)
            if state is not None:
                batches.load_state_dict(state)
    batches.close()
    assert batches.step > 8
    assert set(Counter(model.fates.values())) == {"trained", "stale", "small"}
    assert not excluded & model.fates.keys()


def check_counts(version: loader.Version, decision: Any, model: Model) -> None:
    rows = decision.rows()
    keys = version.keys(rows["ordinal"].to_numpy())
    verdicts = dict(zip(keys, rows["verdict"].to_pylist(), strict=True))
    assert verdicts == {key: model.fates[key] for key in keys}
    counted = Counter(verdicts.values())
    assert {name: decision.counts[name] for name in ("trained", "stale", "small")} == {
        name: counted[name] for name in ("trained", "stale", "small")
    }
    assert sum(trained for _, _, trained, _ in decision.counts["by"]) == counted["trained"]
    assert sum(withheld for *_, withheld in decision.counts["by"]) == counted["stale"] + counted["small"]


@pytest.mark.parametrize(("updates", "multiple"), [(1, 4), (2, 4), (3, 1)])
def test_batches_are_the_same_at_any_world_size(root: loader.Root, updates: int, multiple: int) -> None:
    sizes = (1, 2, 3, 4) if multiple == 4 else (1, 2)
    for number in range(3):
        publish_groups(root, f"t{number}", 7, size=4)
    arguments = {"groups": 7, "updates": updates, "multiple": multiple, "max_lag": 9}
    with online(root, **arguments) as batches:
        begin = digests(batches, updates + 1)
        publish_groups(root, "t3", 7, size=4)
        end = digests(batches, batches.decision.record.end)
        whole = begin | end
        n_steps = batches.step
    for world_size in sizes:
        parts = []
        for rank in range(world_size):
            with online(root, world=(rank, world_size), steps=n_steps, **arguments) as batches:
                parts.append(digests(batches))
        assert sum_digests(parts) == whole
    assert len(whole) > updates


def test_restart_repeats_a_step_despite_later_versions(root: loader.Root) -> None:
    arguments = {"groups": 3, "updates": 2, "max_lag": 50}
    for number in range(4):
        publish_groups(root, f"t{number}", 3)
    states = {}
    with online(root, **arguments) as batches:
        whole: dict[int, int] = {}
        for _ in range(7):
            whole |= digests(batches, batches.step + 1)
            states[batches.step] = json.loads(json.dumps(batches.state_dict()))
    publish_groups(root, "t9", 5)
    for step, state in states.items():
        with online(root, steps=7, **arguments) as batches:
            batches.load_state_dict(state)
            assert batches.step == step
            assert digests(batches) == {number: one for number, one in whole.items() if number >= step}
    with online(root, steps=7, **arguments) as batches:
        batches.seek(3)
        assert digests(batches) == {number: one for number, one in whole.items() if number >= 3}
        batches.seek(2)
        assert next(batches).digest == whole[2] == batches.batch_at(2).digest


def test_two_first_ranks_at_once_share_one_record(root: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower rank finds no record, sees a version that the faster one did not, and cannot create its own."""
    publish_groups(root, "t0", 3)
    with online(root) as fast, online(root) as slow:
        at, calls = type(slow._decisions)._decide, []

        def late(self: Any, *arguments: Any) -> Any:
            calls.append(arguments)
            digest = next(fast).digest
            publish_groups(root, "t1", 3)
            calls.append(digest)
            return at(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(slow._decisions, "_decide", late.__get__(slow._decisions))
            assert next(slow).digest == calls[1]
    assert len(list(root.store.list("follows/big/"))) == 1


def test_policy_decides_what_is_stale(root: loader.Root) -> None:
    publish(root, "t0", [group("t0", "old", 2, 3) + group("t0", "new", 2, 4)])
    publish(root, "t1", [group("t1", "newest", 2, 6)])
    with online(root, groups=1, max_lag=2) as batches:
        batches.policy(6)
        next(batches)
        assert [key.split("/")[1] for key in decision_keys(batches)] == ["new", "new"]
        assert (batches.decision.policy, batches.decision.counts["stale"]) == (
            6,
            2 * (first_group(root) == "old"),
        )
        with refusal(InvalidRuntime, what="policy", given=5):
            batches.policy(5)
        state = batches.state_dict()
    with online(root, groups=1, max_lag=2) as batches:
        batches.load_state_dict(state)
        with refusal(InvalidRuntime, what="policy", where="step 1", given=1):
            next(batches)  # the step, by default
        batches.policy(6)
        next(batches)
        assert decision_keys(batches)[0].startswith("t1/newest/")


def test_backlog_of_a_policy_leaves_out_what_is_stale_or_small_for_it(root: loader.Root) -> None:
    """Samplers that pause on stale groups, and a run that waits for fresh ones, would wait for each other."""
    publish_groups(root, "t0", 4, size=2, policy=0)
    publish_groups(root, "t1", 3, size=2, policy=1)
    publish_groups(root, "t2", 1, size=1, policy=9)
    # Before a decision the run's arguments are unknown.
    assert loader.backlog(root, REF, "big", policy=9) == 8
    counts = [loader.backlog(root, REF, "big", policy=policy, max_lag=2) for policy in (2, 3, 4)]
    assert counts == [8, 4, 1]
    with online(root, groups=1, max_lag=2) as batches:
        next(batches)
    assert loader.backlog(root, REF, "big") == 7
    counts = [loader.backlog(root, REF, "big", policy=policy) for policy in (2, 3, 4)]
    assert counts == [6, 3, 0]
    # The run decides by its own lag, whatever a caller gives.
    assert loader.backlog(root, REF, "big", policy=3, max_lag=9) == 3
    with refusal(InvalidRuntime, what="max_lag", given=2):
        loader.backlog(root, REF, "big", max_lag=2)
    with refusal(InvalidRuntime, what="policy", given=1.5):
        loader.backlog(root, REF, "big", policy=1.5)  # type: ignore[arg-type]


def first_group(root: loader.Root) -> str:
    return live_rows(root.open("rl@1"))[0].group


def test_run_waits_for_groups_and_versions(root: loader.Root) -> None:
    """A look without a version, and one with too few groups, find nothing, and store nothing."""
    with online(root, groups=2) as batches:
        decisions = batches._decisions
        assert decisions.at(0, 0, None) is None
        publish_groups(root, "t0", 1)
        assert decisions.at(0, 0, None) is None
        assert loader.backlog(root, REF, "big") == 1
        publish_groups(root, "t1", 1)
        assert next(batches).step == 0
    assert loader.backlog(root, REF, "big") == 0
    assert len(list(root.store.list("follows/"))) == 1


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"seed": 8}, {"what": "seed", "where": "run 'big' began with", "given": 8}),
        ({"groups": 2}, {"what": "groups", "where": "run 'big' began with", "given": 2}),
        ({"max_lag": 3}, {"what": "max_lag", "where": "run 'big' began with", "given": 3}),
        ({"stale": "group"}, {"what": "stale", "where": "run 'big' began with", "given": "group"}),
        ({"min_size": 1}, {"what": "min_size", "where": "run 'big' began with", "given": 1}),
        ({"updates": 2}, {"what": "updates", "where": "run 'big' began with", "given": 2}),
        ({"multiple": 2}, {"what": "multiple", "where": "run 'big' began with", "given": 2}),
        ({"source": "r"}, {"what": "source", "where": "run 'big' began with", "given": "r"}),
        ({"pack": loader.pack("tokens.npy", 64)}, {"what": "pack", "where": "run 'big' began with"}),
    ],
)
def test_other_arguments_under_the_same_name_are_refused(
    root: loader.Root, changed: dict[str, Any], fault: dict[str, object]
) -> None:
    publish_groups(root, "t0", 6)
    with online(root) as batches:
        next(batches)
    with online(root, **changed) as batches, refusal(PlanMismatch, **fault):
        next(batches)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"epochs": 1}, InvalidRuntime),
        ({"groups": 0}, InvalidRuntime),
        ({"max_lag": -1}, InvalidRuntime),
        ({"stale": "none"}, InvalidRuntime),
        ({"min_size": 0}, InvalidRuntime),
        ({"updates": 1.5}, InvalidRuntime),
        ({"multiple": True}, InvalidRuntime),
        ({"pack": "tokens.npy"}, InvalidRuntime),
        ({"run": "a/b"}, InvalidName),
        ({"until": 4}, InvalidRuntime),
        ({"like": "nobody"}, PlanMismatch),
        ({"like": "../x"}, InvalidName),
    ],
)
def test_wrong_arguments_are_refused(
    root: loader.Root, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        online(root, **arguments)


def test_more_ranks_than_sequences_are_refused_before_anything_is_stored(root: loader.Root) -> None:
    publish_groups(root, "t0", 6, size=2)
    with (
        online(root, groups=2, world=(0, 40)) as batches,
        refusal(InvalidRuntime, what="world_size", where="step 0", given=40),
    ):
        next(batches)
    assert not list(root.store.list("follows/"))
    with online(root, groups=2) as batches:
        next(batches)
    with (
        online(root, groups=2, world=(0, 40)) as batches,
        refusal(InvalidRuntime, what="world_size", where="step 0", given=40),
    ):
        next(batches)


def test_rollout_without_a_policy_is_named_and_may_be_skipped(root: loader.Root) -> None:
    key, fields, metadata = sample("t0/g/0", "g", 0)
    publish(root, "t0", [[*group("t0", "h", 2, 0), (key, fields, {**metadata, "policy_min": None})]])
    with online(root, groups=1) as batches:
        with refusal(InvalidSample, what="policy_min", where="rl@1, sample 't0/g/0'", given=1):
            next(batches)
        root.exclude(REF, ["t0/g/0"], reason="no policy")
        next(batches)
        assert {one.split("/")[1] for one in decision_keys(batches)} == {"h"}


def test_dataset_of_other_samples_is_refused(root: loader.Root) -> None:
    with root.write("rl") as writer:
        writer.add("a", {"cls": 1})
    with online(root) as batches, refusal(InvalidSample, what="column group_id", where="rl@1"):
        next(batches)


def test_sequence_that_does_not_fit_is_refused_with_its_key(root: loader.Root) -> None:
    publish_groups(root, "t0", 3)
    pack = loader.pack("tokens.npy", 8, split=False, beside={"mask.npy": 0})
    with online(root, pack=pack) as batches, refusal(InvalidPlan, what="length", where="pack", given=6):
        next(batches)


def test_version_that_does_not_continue_the_decided_one_is_refused(root: loader.Root) -> None:
    """A retired version's parts leave their numbers to others: without a check, rollouts were skipped."""
    publish_groups(root, "t0", 3)
    publish_groups(root, "t1", 3)
    with online(root) as batches:
        next(batches)
        next(batches)
        root.retire("rl@2", reason="a broken sampler")
        publish_groups(root, "t2", 3)
        with refusal(PlanMismatch, what="part 't2-w1'", where="rl@3", given="t1-w1"):
            next(batches)


def follow_record(root: loader.Root, step: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(root.store.get(f"follows/big/{step:019d}.json").data)
    return body


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other"},
        {"step": 1},
        {"step": "0"},
        {"steps": 0},
        {"plan": "p-1"},
        {"policy": 0.5},
        {"asked": []},
        {"counts": {}},
        {"cursor": {}},
        {"format": "2"},
        {"cursor": {"version": "v-1", "parts": 1, "last": "", "left": [[1, [[0, 1]]]]}},
    ],
)
def test_damaged_record_is_refused_by_name(root: loader.Root, change: dict[str, Any]) -> None:
    publish_groups(root, "t0", 3)
    with online(root) as batches:
        next(batches)
    key = f"follows/big/{0:019d}.json"
    root.store.put(key, json.dumps({**follow_record(root), **change}).encode())
    for _ in range(2):
        with online(root) as batches, refusal(Corrupt, what=key, where=root.url):
            next(batches)
    with pytest.raises(Corrupt, match="Restore it from a mirror"):
        loader.backlog(root, REF, "big")


def test_record_with_rows_that_no_part_has_is_refused(root: loader.Root) -> None:
    publish_groups(root, "t0", 4)
    with online(root) as batches:
        next(batches)
    body = follow_record(root)
    body["cursor"]["left"] = [[1, [[0, 2**39]]]]
    root.store.put(f"follows/big/{0:019d}.json", json.dumps(body).encode())
    with refusal(Corrupt, what="part t0-w1", where="rl@1", given=6):
        loader.backlog(root, REF, "big")


def test_record_of_a_newer_release_and_of_follow_are_refused(root: loader.Root) -> None:
    publish_groups(root, "t0", 3)
    with online(root) as batches:
        next(batches)
    key = f"follows/big/{0:019d}.json"
    body = follow_record(root)
    root.store.put(key, json.dumps({**body, "format": 3}).encode())
    with online(root) as batches, refusal(FormatTooNew, what="format", given=3):
        next(batches)
    root.store.put(key, json.dumps({**body, "format": 1}).encode())
    with online(root) as batches, refusal(PlanMismatch, what=key, where="run 'big'"):
        next(batches)


def test_state_of_another_run_is_refused(root: loader.Root) -> None:
    publish_groups(root, "t0", 6)
    with online(root) as batches, online(root, run="other", seed=3) as other:
        next(batches)
        next(other)
        with refusal(PlanMismatch, what="state", where="run 'big', step 0"):
            batches.load_state_dict(other.state_dict())
        for state in ({}, {"step": 1}, {"step": 1, "follow": {"step": 0}}, {"step": -1, "follow": {}}):
            with refusal(PlanMismatch, what="state", accepted="what state_dict() returned"):
                batches.load_state_dict(state)


def test_record_has_the_documented_bytes_and_stays_small(root: loader.Root) -> None:
    publish_groups(root, "t0", 1003, size=2)
    with online(root) as batches:
        next(batches)
        record = batches.decision.record
    data = root.store.get(record.key).data
    assert len(data) < 16 * 2**10
    body = json.loads(data)
    assert sorted(body) == sorted(
        ["format", "run", "step", "steps", "before", "plan", "policy", "asked", "cursor", "counts"]
    )
    assert (body["format"], body["before"], body["plan"]) == (2, batches.plan.hash, batches.plan.hash)
    assert loader.backlog(root, REF, "big") == 1000
    assert DecisionRecord.from_json(body).to_json() == data


def test_run_before_its_first_batch_has_a_position_and_metrics(root: loader.Root) -> None:
    with online(root, steps=5) as batches:
        assert (batches.step, batches.end, len(batches)) == (0, 5, 5)
        assert batches.metrics()["consumed_batches_total"] == 0
        assert batches.status_line() == "step 0"
        assert "penstock_step" in batches.metrics_text()
        state = json.loads(json.dumps(batches.state_dict()))
        for request in (lambda: batches.plan, lambda: batches.decision, lambda: batches.note(x=1)):
            with pytest.raises(InvalidRuntime):
                request()
    with online(root, steps=5) as batches:
        batches.load_state_dict(state)
        publish_groups(root, "t0", 3)
        assert next(batches).step == 0


def test_metrics_go_on_under_the_next_decision(root: loader.Root) -> None:
    publish_groups(root, "t0", 9)
    with online(root, steps=3) as batches:
        assert len(digests(batches)) == 3
        assert batches.metrics()["consumed_batches_total"] == 3


def test_rollout_rows_of_the_model_are_those_of_the_version(root: loader.Root) -> None:
    version = publish(root, "t0", [group("t0", "g", 3, 4)])
    assert sorted(live_rows(version)) == [Row(f"t0/g/{number}", "t0", "g", 4) for number in range(3)]


def test_two_transactions_with_one_group_id_have_two_groups(root: loader.Root) -> None:
    for txn in ("t0", "t1"):
        publish(root, txn, [group(txn, "same", 2, 0)])
    assert loader.backlog(root, REF, "big") == 2
    with online(root, groups=1, pack=PACK) as batches:
        next(batches)
        assert {key.split("/")[0] for key in decision_keys(batches)} == {"t0"}


def observed_root(root: loader.Root, faults: list[str]) -> loader.Root:
    """Return the root over a store whose first request below each prefix of `faults` fails."""

    def fail_once(verb: str, key: str) -> None:
        for prefix in list(faults):
            if key.startswith(prefix):
                faults.remove(prefix)
                raise Transient(f"{verb} {key}: no answer")

    return root_in_store(ObservedStore(root.store, fail_once))


def test_run_goes_on_after_seek_could_not_open_a_plan(root: loader.Root) -> None:
    """In the middle of a decision: no step between its first ones is decided anew."""
    publish_groups(root, "t0", 3)
    with online(root, steps=2, multiple=2, updates=2) as batches:
        whole = digests(batches)
    with online(observed_root(root, ["plans/", "plans/"]), steps=2, multiple=2, updates=2) as batches:
        with pytest.raises(Transient):
            batches.seek(1)
        assert batches._boundary == 0  # else it waits for groups of a decision that begins at step 1
        assert digests(batches) == {1: whole[1]}
    assert len(list(root.store.list("follows/"))) == 1


def test_run_goes_on_after_the_ledger_of_a_decision_was_not_stored(root: loader.Root) -> None:
    publish_groups(root, "t0", 6)
    with online(root, steps=2) as batches:
        next(batches)
        keys = decision_keys(batches)
    for info in list(root.store.list("data/")):
        data = bytearray(root.store.get(info.key).data)
        header = data.find(keys[0].encode())
        if "/tokens-" in info.key and info.key.endswith(".tar") and header >= 0:
            data[header + 522] ^= 1  # in the member's bytes
            root.store.put(info.key, bytes(data))
    faults = ["ledgers/"]
    with online(observed_root(root, faults), steps=2, corrupt_budget=1.0) as batches:
        assert next(batches).step == 0
        with pytest.raises(Transient):
            next(batches)
        assert next(batches).step == 1
    assert faults == []
