"""Runs that repeat another run's steps, and runs whose rollouts are retired or taken down meanwhile."""

import json
from pathlib import Path
from typing import Any

import pytest

import loader
from loader.dataset.log.denies import Target
from loader.errors import Corrupt, Denied, InvalidRuntime, PlanMismatch
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.migrate.promote import promote_alone
from penstock.upkeep.takedown.takedown_run import run_takedown
from tests.refusals import refusal
from tests.rollouts.rollout_roots import (
    OPTIONS,
    PACK,
    REF,
    decision_keys,
    digests,
    group,
    live_rows,
    online,
    publish,
    publish_groups,
    sum_digests,
)

ARGUMENTS: dict[str, Any] = {"groups": 3, "updates": 2, "max_lag": 50, "multiple": 2}


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    new_root = loader.Root(tmp_path / "root")
    new_root.create()
    return new_root


def boundaries(root: loader.Root, run: str = "big") -> list[int]:
    """Return the first step of each decision of a run."""
    keys = [info.key.removeprefix(f"follows/{run}/") for info in root.store.list(f"follows/{run}/")]
    return sorted(int(key.removesuffix(".json")) for key in keys if "/" not in key)


def train_run(root: loader.Root, n_decisions: int) -> dict[int, int]:
    """Return the digests of run big, which publishes a transaction before each decision."""
    whole: dict[int, int] = {}
    with online(root, **ARGUMENTS) as batches:
        for number in range(n_decisions):
            publish_groups(root, f"t{number}", 4)
            whole |= digests(batches, batches.step + 1)
            whole |= digests(batches, batches.decision.record.end)
    return whole


def test_run_repeats_another_one_at_any_world_size(root: loader.Root) -> None:
    whole = train_run(root, 4)
    publish_groups(root, "later", 9)
    for world_size in (1, 2):
        parts = []
        for rank in range(world_size):
            with online(
                root, f"again-{world_size}", (rank, world_size), like="big", steps=len(whole), **ARGUMENTS
            ) as batches:
                parts.append(digests(batches))
        assert sum_digests(parts) == whole
    assert [info.key for info in root.store.list("follows/again-1/")] == ["follows/again-1/like/big.json"]


def test_run_decides_anew_from_the_until_step(root: loader.Root) -> None:
    """No group of the shared steps is trained again, and none is lost."""
    whole = train_run(root, 4)
    until = boundaries(root)[2]
    with online(root, "fork", like="big", until=until, **{**ARGUMENTS, "max_lag": 40}) as batches:
        shared = digests(batches, until)
        assert shared == {step: digest for step, digest in whole.items() if step < until}
        n_groups = loader.backlog(root, REF, "fork")
        assert n_groups == 4 * 4 - 2 * 3
        state = json.loads(json.dumps(batches.state_dict()))
        own = digests(batches, batches.step + 1)
        assert (
            batches.decision.record.before
            == batches._decisions.matching_decision(boundaries(root)[1], batches.decision.record.before).plan
        )  # type: ignore[union-attr]
        own |= digests(batches, batches.decision.record.end)
        assert loader.backlog(root, REF, "fork") == n_groups - 3
    with online(root, "fork", like="big", **{**ARGUMENTS, "max_lag": 40}, steps=max(own) + 1) as batches:
        batches.load_state_dict(state)
        assert digests(batches) == own
    with online(root, "third", like="fork", steps=max(own) + 1, **{**ARGUMENTS, "max_lag": 40}) as batches:
        assert digests(batches) == shared | own


def test_checkpoint_of_a_run_goes_on_under_another_name(root: loader.Root) -> None:
    train_run(root, 3)
    until = boundaries(root)[2]
    with online(root, **ARGUMENTS) as batches:
        digests(batches, until)
        state = json.loads(json.dumps(batches.state_dict()))
    with online(root, "fork", like="big", until=until, **ARGUMENTS) as batches:
        batches.load_state_dict(state)
        assert next(batches).step == until
    with (
        online(root, "other", **ARGUMENTS) as batches,
        refusal(PlanMismatch, what="state", where="run 'other', step 2"),
    ):
        batches.load_state_dict(state)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"seed": 8}, {"what": "seed", "where": "run 'big', which like= names, has", "given": 8}),
        ({"groups": 2}, {"what": "groups", "where": "run 'big', which like= names, has", "given": 2}),
        ({"updates": 1}, {"what": "updates", "where": "run 'big', which like= names, has", "given": 1}),
        ({"multiple": 1}, {"what": "multiple", "where": "run 'big', which like= names, has", "given": 1}),
        (
            {"pack": loader.pack("tokens.npy", 64)},
            {"what": "pack", "where": "run 'big', which like= names, has"},
        ),
    ],
)
def test_repeated_run_has_the_same_arguments(
    root: loader.Root, changed: dict[str, Any], fault: dict[str, object]
) -> None:
    train_run(root, 1)
    with refusal(PlanMismatch, **fault):
        online(root, "again", like="big", **{**ARGUMENTS, **changed})


def test_until_is_a_boundary_of_decisions(root: loader.Root) -> None:
    n_steps = len(train_run(root, 2))
    inside = next(step for step in range(n_steps) if step not in boundaries(root))
    with refusal(PlanMismatch, what="until", where="run 'big'", given=1):
        online(root, "again", like="big", until=inside, **ARGUMENTS)
    with refusal(PlanMismatch, what="until", where="run 'big'", given=5):
        online(root, "again", like="big", until=n_steps + 1, **ARGUMENTS)
    assert not list(root.store.list("follows/again/"))
    with online(root, "again", like="big", until=n_steps, **ARGUMENTS):
        pass
    with refusal(PlanMismatch, what="like", where="run 'again'", given=["big", 0]):
        online(root, "again", like="big", until=0, **ARGUMENTS)
    with refusal(PlanMismatch, what="like", where="run 'again'"):
        online(root, "again", **ARGUMENTS)
    with refusal(PlanMismatch, what="like", where="run 'big'", given=0):
        online(root, "big", like="big", **ARGUMENTS)


def test_damaged_record_of_a_repeated_run_is_refused(root: loader.Root) -> None:
    train_run(root, 1)
    with online(root, "again", like="big", **ARGUMENTS):
        pass
    key = "follows/again/like/big.json"
    for body in (b"{", b"[]", b'{"format":2,"run":"again","like":"other","until":1}'):
        root.store.put(key, body)
        with refusal(Corrupt, what=key, where=root.url):
            online(root, "again", like="big", **ARGUMENTS)


def test_runs_that_repeat_each_other_are_refused(root: loader.Root) -> None:
    for run, like in (("a", "b"), ("b", "a")):
        body = {"format": 2, "run": run, "like": like, "until": 3}
        root.store.put(f"follows/{run}/like/{like}.json", json.dumps(body).encode())
    with refusal(Corrupt, what="like", where="follows/b/like/"):
        loader.backlog(root, REF, "a")


def test_retired_versions_are_repeated_while_their_bytes_exist(root: loader.Root) -> None:
    whole = train_run(root, 3)
    publish_groups(root, "later", 3)
    for number in (1, 2, 3):
        root.retire(f"rl@{number}", reason="old")
    with online(root, "again", like="big", steps=len(whole), **ARGUMENTS) as batches:
        assert digests(batches) == whole
        assert batches.decision.rows().num_rows == 9


def take_key(root: loader.Root, key: str) -> None:
    number = root.log.deny([Target(kind="sample", value=key, dataset="rl")], reason="asked", by="desk").n
    run_takedown(root, number, apply=True)


def test_takedown_leaves_a_run_that_goes_on_without_the_rollout(root: loader.Root) -> None:
    """The next decisions of the process, and of a restart behind the last step, pass it by."""
    train_run(root, 2)
    publish_groups(root, "t9", 12)
    end = boundaries(root)[-1] + 2
    with online(root, **ARGUMENTS) as batches:
        batches.seek(end)
        waiting = [row.key for row in live_rows(root.open(REF))]
        first = digests(batches, end + 1)
        poisoned = next(
            key for key in waiting if key.startswith("t9/") and key not in set(decision_keys(batches))
        )
        take_key(root, poisoned)
        first |= digests(batches, batches.decision.record.end)
        state = json.loads(json.dumps(batches.state_dict()))
        keys = []
        for _ in range(3):
            next(batches)
            keys += decision_keys(batches)
            digests(batches, batches.decision.record.end)
        assert poisoned not in keys
        n_steps = batches.step
    with online(root, **ARGUMENTS) as batches:
        batches.load_state_dict(state)
        again = digests(batches, n_steps)
    assert min(again) == max(first) + 1
    key = poisoned.encode()
    for folder in ("lists/", "packs/", "plans/", "follows/"):
        assert not [info.key for info in root.store.list(folder) if key in root.store.get(info.key).data]


def test_restart_in_a_step_that_a_takedown_removed_decides_its_rest_again(root: loader.Root) -> None:
    """The rollouts of the decision that are left are trained at its steps, which may be fewer; each restart alike."""
    whole = train_run(root, 3)
    steps = boundaries(root)
    with online(root, **ARGUMENTS) as batches:
        digests(batches, steps[1])
        state = json.loads(json.dumps(batches.state_dict()))
        next(batches)
        keys = decision_keys(batches)
        later = json.loads(json.dumps(batches.state_dict()))
    take_key(root, keys[0])
    runs = []
    for number in range(3):
        with online(root, steps=len(whole), **ARGUMENTS) as batches:
            batches.load_state_dict(state if number < 2 else later)
            first = next(batches)
            if number < 2:
                assert sorted(decision_keys(batches)) == sorted(keys[1:])
                assert batches.decision.counts["trained"] == len(keys) - 1
                verdicts = batches.decision.rows()["verdict"].to_pylist()
                assert verdicts.count("trained") == len(keys) - 1
            runs.append({first.step: first.digest} | digests(batches))
    assert runs[0] == runs[1]
    assert runs[2].items() <= runs[0].items()
    assert min(runs[0]) == steps[1]
    assert max(runs[0]) == max(whole)
    with (
        online(root, "again", like="big", **ARGUMENTS) as batches,
        refusal(Denied, what="until", where="run 'big'"),
    ):
        next(batches)  # the first decision's version had the rollout, too, and no restart has replaced it


def test_decision_without_a_rollout_is_skipped(root: loader.Root) -> None:
    arguments = {"groups": 1, "min_size": 1, "max_lag": 50, "pack": PACK, **OPTIONS}
    for number in range(3):
        publish(root, f"t{number}", [group(f"t{number}", "g", 1, 0)])
    with online(root, **arguments) as batches:
        state = batches.state_dict()
        assert list(digests(batches, 3)) == [0, 1, 2]
    take_key(root, "t1/g/0")
    with online(root, **arguments, steps=3) as batches:
        batches.load_state_dict(state)
        assert list(digests(batches)) == [0, 2]
        assert batches.step == 3
        next_state = json.loads(json.dumps(batches.state_dict()))
    with online(root, **arguments, steps=3) as batches:
        batches.load_state_dict(next_state)
        assert digests(batches) == {}


def test_mirror_taken_in_the_middle_of_a_run_trains_its_steps_again(
    root: loader.Root, tmp_path: Path
) -> None:
    for number in range(4):
        publish_groups(root, f"t{number}", 3)
    place = open_store(str(tmp_path / "mirror"))
    with online(root, **ARGUMENTS) as batches:
        first = digests(batches, 4)
        assert not migrate(root, place, Pace()).failures
        digests(batches, 8)
    (tmp_path / "root").rename(tmp_path / "gone")
    mirror = loader.Root(tmp_path / "mirror")
    promote_alone(place)
    with online(mirror, "again", like="big", steps=4, **ARGUMENTS) as batches:
        assert digests(batches) == first


def test_like_and_until_are_checked(root: loader.Root) -> None:
    with refusal(InvalidRuntime, what="until", given=3):
        online(root, until=3, **ARGUMENTS)
    with refusal(InvalidRuntime, what="until", given=-1):
        online(root, like="big", until=-1, **ARGUMENTS)
