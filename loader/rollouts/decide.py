"""Choose the rollouts of a step, from the columns of the rows that no step has decided. Pure.

A group is a `group_id` within a transaction. Groups come in the order of their first rows, so the oldest come first. A
step decides every group up to the last one that it trains: a group that it passes is withheld for good.
"""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ..dataset.tables.parquet import codes, integers

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Int8s = np.ndarray[Any, np.dtype[np.int8]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MOST_ENVS = 32
"""Environments that counts name; `OTHER_ENVS` has the rest, so a record stays small."""
MOST_ENV_CHARS = 128
"""Characters of a longer environment's name that counts keep."""
OTHER_ENVS = "(others)"


class Verdict(IntEnum):
    """Fate of a rollout in a decision."""

    UNDECIDED = 0
    TRAINED = 1
    STALE = 2
    """Withheld: sampled by a policy that is too old."""
    SMALL = 3
    """Withheld: too few rollouts of its group are fresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """The arguments of `loader.online` that decide."""

    groups: int
    """Groups to train."""
    max_lag: int
    """Policy versions that a sampled token may be behind."""
    stale: Literal["sequence", "group"]
    """Unit that a stale sequence withholds."""
    min_size: int
    """Fresh sequences that a group needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """Fate of the rows that a decision read."""

    verdicts: Int8s
    """int8 [rows]: a `Verdict` per row."""
    trained: Int64s
    """int64 [trained rows]: their numbers, group by group, each in the order of the rows."""
    n_groups: int
    """Number of groups that are trained."""


def choose(rows: pa.Table, rule: DecisionRule, policy: int) -> GroupChoice | None:
    """Return the rule's choice, or None if fewer than `rule.groups` groups can be trained.

    rows: columns transaction (int64), group_id and policy_min (int64), without nulls, in the order of part and row.
    policy: version of the policy that is trained.
    """
    judged = _judge(rows, rule, policy)
    trainable = np.flatnonzero(judged.is_trainable)
    if len(trainable) < rule.groups:
        return None
    last = rule.groups - 1
    last_group = int(trainable[last])
    return _choice(judged, last_group + 1)


def choose_all(rows: pa.Table, rule: DecisionRule, policy: int) -> GroupChoice:
    """Return the choice that decides every row. Arguments are as for `choose`."""
    judged = _judge(rows, rule, policy)
    n_groups = len(judged.is_trainable)
    return _choice(judged, n_groups)


def n_trainable(rows: pa.Table, rule: DecisionRule, policy: int) -> int:
    """Return the number of groups that can be trained. Arguments are as for `choose`."""
    judged = _judge(rows, rule, policy)
    return int(judged.is_trainable.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedRows:
    group: Int64s
    """int64 [rows]: number of the row's group, by its first row."""
    is_fresh: Bools
    """bool [rows]: whether no stale sequence withholds the row."""
    is_trainable: Bools
    """bool [groups]: whether enough of its rows are fresh."""


def _judge(rows: pa.Table, rule: DecisionRule, policy: int) -> _JudgedRows:
    """Judge each row and each group by the rule. Arguments are as for `choose`."""
    group = group_numbers(rows)
    policy_min = integers(rows["policy_min"])
    lag = policy - policy_min  # [rows]; below 0 for rollouts of a newer policy
    is_fresh = lag <= rule.max_lag
    if rule.stale == "group":
        n_stale = _group_sizes(group, ~is_fresh)
        is_fresh = n_stale[group] == 0
    n_fresh = _group_sizes(group, is_fresh)
    return _JudgedRows(
        group=group,
        is_fresh=is_fresh,
        is_trainable=n_fresh >= rule.min_size,
    )


def _group_sizes(group: Int64s, is_counted: Bools) -> Int64s:
    """Return int64 [groups]: counted rows of each group."""
    n_groups = int(group.max(initial=-1)) + 1
    counted = group[is_counted]
    return np.bincount(
        counted,
        minlength=n_groups,
    )


def _choice(judged: _JudgedRows, n_decided: int) -> GroupChoice:
    """Return the choice that decides the first `n_decided` groups."""
    group = judged.group
    is_decided = group < n_decided
    is_fresh = is_decided & judged.is_fresh
    is_stale = is_decided & ~judged.is_fresh
    is_in_trainable_group = judged.is_trainable[group]
    is_trained = is_fresh & is_in_trainable_group
    is_small = is_fresh & ~is_in_trainable_group

    n_rows = len(group)
    verdicts = np.full(
        n_rows,
        Verdict.UNDECIDED,
        np.int8,
    )
    verdicts[is_stale] = Verdict.STALE
    verdicts[is_small] = Verdict.SMALL
    verdicts[is_trained] = Verdict.TRAINED

    numbers = np.flatnonzero(is_trained)
    by_group = np.argsort(
        group[numbers],
        kind="stable",
    )
    decided_groups = judged.is_trainable[:n_decided]
    n_trained_groups = decided_groups.sum()
    return GroupChoice(
        verdicts=verdicts,
        trained=numbers[by_group],
        n_groups=int(n_trained_groups),
    )


def group_numbers(rows: pa.Table) -> Int64s:
    """Return int64 [rows]: each row's group, numbered from 0 by first rows. rows: as for `choose`."""
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    distinct_ids, id_codes = codes(rows["group_id"])
    n_ids = len(distinct_ids)
    transaction = integers(rows["transaction"])
    # [rows]: equal for rows of one group. A transaction's number is a part's position, so the product stays small.
    code = transaction * n_ids + id_codes
    # In the order of the codes: first_rows [groups], and index [rows], the position of each row's code.
    _, first_rows, index = np.unique(
        code,
        return_index=True,
        return_inverse=True,
    )
    n_groups = len(first_rows)
    by_first_row = np.argsort(first_rows)  # [groups]
    number = np.empty(n_groups, np.int64)  # [groups]: the number of each code's group
    number[by_first_row] = np.arange(n_groups)
    return number[index]


def count_choice(rows: pa.Table, choice: GroupChoice, n_sequences: int) -> dict[str, Any]:
    """Return the counts of a stored decision. All but groups and sequences count rollouts.

    rows: as for `choose`, with the columns env and n_tokens, without nulls. n_sequences: packed sequences.
    """
    counts: dict[str, Any] = {
        "groups": choice.n_groups,
        "sequences": n_sequences,
    }
    for verdict in (Verdict.TRAINED, Verdict.STALE, Verdict.SMALL):
        is_counted = choice.verdicts == verdict
        name = verdict.name.lower()
        counts[name] = int(is_counted.sum())
    counts["by"] = _counts_by_env(rows, choice.verdicts)
    return counts


def _counts_by_env(rows: pa.Table, verdicts: Int8s) -> list[list[Any]]:
    """Return [env, quartile of length, trained, withheld] entries, sorted. They show whether long ones are withheld."""
    is_decided = verdicts != Verdict.UNDECIDED
    decided = np.flatnonzero(is_decided)
    n_decided = len(decided)
    tokens = integers(rows["n_tokens"])[decided]
    sorted_tokens = np.sort(tokens)
    # By rank: rollouts of one length are in one quartile.
    rank = np.searchsorted(
        sorted_tokens,
        tokens,
        side="left",
    )
    quartile = 4 * rank // max(1, n_decided)  # [decided]: 0 for the shortest rollouts, 3 for the longest
    is_trained = verdicts[decided] == Verdict.TRAINED

    stored_envs = rows["env"].to_pylist()
    envs = [stored_envs[number] for number in decided.tolist()]
    most_common = Counter(envs).most_common(MOST_ENVS)
    frequent = {env for env, _ in most_common}
    trained: Counter[tuple[str, int]] = Counter()
    withheld: Counter[tuple[str, int]] = Counter()
    facts = zip(
        envs,
        quartile.tolist(),
        is_trained.tolist(),
        strict=True,
    )
    for env, quarter, trains in facts:
        name = OTHER_ENVS
        if env in frequent:
            name = env[:MOST_ENV_CHARS]
        count = withheld
        if trains:
            count = trained
        count[name, quarter] += 1

    entries = []
    for name, quarter in sorted(trained.keys() | withheld.keys()):
        pair = (name, quarter)
        entry = [
            name,
            quarter,
            trained[pair],
            withheld[pair],
        ]
        entries.append(entry)
    return entries
