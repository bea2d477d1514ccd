"""The choice of a step's rollouts, against a second implementation in plain Python."""

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from loader.errors import Corrupt
from loader.rollouts.cursor import START, Cursor, range_rows, ranges_by_part
from loader.rollouts.decide import (
    MOST_ENVS,
    OTHER_ENVS,
    DecisionRule,
    Verdict,
    choose,
    choose_all,
    count_choice,
)
from loader.rollouts.record import DecisionRecord
from tests.rollouts.online_model import Model, Row


def table(rows: list[Row]) -> pa.Table:
    transactions = list(dict.fromkeys(row.txn for row in rows))
    return pa.table(
        {
            "transaction": pa.array([transactions.index(row.txn) for row in rows], pa.int64()),
            "group_id": pa.array([row.group for row in rows], pa.string()),
            "policy_min": pa.array([row.policy for row in rows], pa.int64()),
        }
    )


def draw_rows(draw: random.Random) -> list[Row]:
    rows = []
    for number in range(draw.randrange(60)):
        txn = f"t{number // draw.choice([7, 12])}"
        rows.append(Row(f"k{number}", txn, f"g{draw.randrange(4)}", draw.randrange(6)))
    return sorted(rows, key=lambda row: row.txn)


@pytest.mark.parametrize("stale", ["sequence", "group"])
def test_choice_agrees_with_the_model(stale: str) -> None:
    draw = random.Random(stale)
    n_decisions = 0
    for _ in range(400):
        rows = draw_rows(draw)
        model = Model(draw.randrange(1, 4), draw.randrange(4), stale, draw.randrange(1, 4))
        rule = DecisionRule(
            groups=model.groups,
            max_lag=model.max_lag,
            stale=stale,
            min_size=model.min_size,  # type: ignore[arg-type]
        )
        for policy in range(8):
            undecided = [row for row in rows if row.key not in model.fates]
            choice = choose(table(undecided), rule, policy)
            expected = model.decide(rows, policy)
            if choice is None:
                assert expected is None
                continue
            n_decisions += 1
            assert [undecided[number].key for number in choice.trained] == expected
            assert choice.n_groups == model.groups
            for row, verdict in zip(undecided, choice.verdicts.tolist(), strict=True):
                assert model.fates.get(row.key, "undecided") == Verdict(verdict).name.lower()
    assert n_decisions > 300


def test_choice_of_all_rows_decides_each() -> None:
    rows = [Row("a", "t", "g", 5), Row("b", "t", "g", 5), Row("c", "t", "h", 5), Row("d", "t", "i", 1)]
    rule = DecisionRule(groups=9, max_lag=1, stale="sequence", min_size=2)
    choice = choose_all(table(rows), rule, 6)
    assert choice.verdicts.tolist() == [Verdict.TRAINED, Verdict.TRAINED, Verdict.SMALL, Verdict.STALE]
    assert choice.trained.tolist() == [0, 1]


def test_counts_name_the_frequent_environments() -> None:
    n_envs = MOST_ENVS + 10
    rows = [Row(f"k{number}", "t", f"g{number}", 0) for number in range(3 * n_envs)]
    columns = table(rows)
    columns = columns.append_column(
        "env", pa.array([f"e{number % n_envs:03d}" for number in range(3 * n_envs)])
    )
    columns = columns.append_column("n_tokens", pa.array(range(3 * n_envs), pa.int64()))
    rule = DecisionRule(groups=n_envs, max_lag=0, stale="sequence", min_size=1)
    choice = choose(columns, rule, 0)
    assert choice is not None
    counts = count_choice(columns, choice, 5)
    assert (counts["trained"], counts["stale"], counts["small"]) == (n_envs, 0, 0)
    assert sum(trained for _, _, trained, _ in counts["by"]) == n_envs
    names = {env for env, _, _, _ in counts["by"]}
    assert len(names) == MOST_ENVS + 1
    assert OTHER_ENVS in names
    by_quartile = [sum(entry[2] for entry in counts["by"] if entry[1] == quartile) for quartile in range(4)]
    assert max(by_quartile) - min(by_quartile) <= 1


def test_cursor_comes_back_from_json_however_its_rows_lie() -> None:
    draw = np.random.default_rng(3)
    for density in (0.02, 0.5, 0.98):
        is_undecided = draw.random((3, 700)) < density
        parts, rows = np.nonzero(is_undecided)
        cursor = Cursor(version="v-1", parts=9, last="t-w0", ranges=ranges_by_part(parts, rows))
        again = Cursor.from_json(cursor.to_json())
        assert (again.version, again.parts, again.last) == ("v-1", 9, "t-w0")
        restored = np.zeros_like(is_undecided)
        for part, ranges in again.ranges.items():
            restored[part, range_rows(ranges)] = True
        assert (restored == is_undecided).all()
    assert not Cursor.from_json(START.to_json()).ranges


@pytest.mark.parametrize(
    "entries",
    [
        [[2, [[5, 5]]]],
        [[2, [[5, 9], [8, 12]]]],
        [[2, [[7, 9], [1, 3]]]],
        [[2, []]],
        [[2, "AAAA"]],
        [[2, "not base64"]],
        [[9, [[0, 1]]]],
        [[3, [[0, 1]]], [2, [[0, 1]]]],
        [[2, [[0, 2**60]]]],
        [[2, [[0.0, 1.0]]]],
        [["2", [[0, 1]]]],
        [[-1, [[0, 1]]]],
        [[2, [[0, 1, 2]]]],
    ],
)
def test_damaged_cursor_is_refused(entries: object) -> None:
    body = {"version": "v-1", "parts": 9, "last": "t-w0", "left": entries}
    with pytest.raises((ValueError, TypeError)):
        Cursor.from_json(body)


@pytest.mark.parametrize("stale", ["grup", 7, None, ["group"]])
def test_record_with_another_unit_of_staleness_is_corrupt(stale):
    asked = {"groups": 4, "max_lag": 1, "min_size": 2}
    record = DecisionRecord(
        run="big",
        step=0,
        steps=1,
        before="",
        plan="",
        policy=0,
        asked={**asked, "stale": "group"},
        cursor=START,
        counts={},
    )
    assert record.rule == DecisionRule(**asked, stale="group")
    damaged = replace(record, asked={**asked, "stale": stale})
    with pytest.raises(Corrupt):
        _ = damaged.rule
