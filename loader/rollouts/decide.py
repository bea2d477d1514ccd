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
    last_group = int(trainable[rule.groups - 1])
    return _choice(judged, last_group + 1)


def choose_all(rows: pa.Table, rule: DecisionRule, policy: int) -> GroupChoice:
    """Return the choice that decides every row. Arguments are as for `choose`."""
    judged = _judge(rows, rule, policy)
    return _choice(judged, len(judged.is_trainable))


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedRows:
    group: Int64s
    """int64 [rows]: number of the row's group, by its first row."""
    is_fresh: Bools
    """bool [rows]: whether no stale sequence withholds the row."""
    is_trainable: Bools
    """bool [groups]: whether enough of its rows are fresh."""


def _judge(rows: pa.Table, rule: DecisionRule, policy: int) -> _JudgedRows:
    group = group_numbers(rows)
    n_groups = int(group.max(initial=-1)) + 1
    lag = policy - integers(rows["policy_min"])
    is_fresh = lag <= rule.max_lag
    if rule.stale == "group":
        n_stale = np.bincount(group[~is_fresh], minlength=n_groups)  # [groups]
        is_fresh = n_stale[group] == 0
    n_fresh = np.bincount(group[is_fresh], minlength=n_groups)  # [groups]
    return _JudgedRows(group=group, is_fresh=is_fresh, is_trainable=n_fresh >= rule.min_size)


def _choice(judged: _JudgedRows, n_decided: int) -> GroupChoice:
    """Return the choice that decides the first `n_decided` groups."""
    is_decided = judged.group < n_decided
    is_in_trainable_group = judged.is_trainable[judged.group]
    is_trained = is_decided & judged.is_fresh & is_in_trainable_group

    verdicts = np.zeros(len(judged.group), np.int8)
    verdicts[is_decided & ~judged.is_fresh] = Verdict.STALE
    verdicts[is_decided & judged.is_fresh & ~is_in_trainable_group] = Verdict.SMALL
    verdicts[is_trained] = Verdict.TRAINED

    numbers = np.flatnonzero(is_trained)
    by_group = np.argsort(judged.group[numbers], kind="stable")
    n_groups = int(judged.is_trainable[:n_decided].sum())
    return GroupChoice(verdicts=verdicts, trained=numbers[by_group], n_groups=n_groups)


def group_numbers(rows: pa.Table) -> Int64s:
    """Return int64 [rows]: each row's group, numbered from 0 by first rows. rows: as for `choose`."""
    if not rows.num_rows:
        return np.zeros(0, np.int64)
    distinct_ids, id_codes = codes(rows["group_id"])
    # [rows]: equal for rows of one group. A transaction's code is the position of a part, so the product stays small.
    code = integers(rows["transaction"]) * len(distinct_ids) + id_codes
    _, first_rows, index = np.unique(code, return_index=True, return_inverse=True)
    by_first_row = np.argsort(first_rows)  # [groups]
    number = np.empty(len(first_rows), np.int64)
    number[by_first_row] = np.arange(len(first_rows))
    return number[index]


def count_choice(rows: pa.Table, choice: GroupChoice, n_sequences: int) -> dict[str, Any]:
    """Return the counts of a stored decision. All but groups and sequences count rollouts.

    rows: as for `choose`, with the columns env and n_tokens, without nulls. n_sequences: packed sequences.
    """
    verdicts = choice.verdicts
    return {
        "groups": choice.n_groups,
        "sequences": n_sequences,
        "trained": int((verdicts == Verdict.TRAINED).sum()),
        "stale": int((verdicts == Verdict.STALE).sum()),
        "small": int((verdicts == Verdict.SMALL).sum()),
        "by": _counts_by_env(rows, verdicts),
    }


def _counts_by_env(rows: pa.Table, verdicts: Int8s) -> list[list[Any]]:
    """Return [env, quartile of length, trained, withheld] entries, sorted. They show whether long ones are withheld."""
    is_decided = verdicts != Verdict.UNDECIDED
    decided = np.flatnonzero(is_decided)
    tokens = integers(rows["n_tokens"])[decided]
    # By rank: rows of one length are in one quartile.
    rank = np.searchsorted(np.sort(tokens), tokens, side="left")
    quartile = rank * 4 // max(1, len(tokens))

    all_envs = rows["env"].to_pylist()
    envs = [all_envs[number] for number in decided.tolist()]
    frequent = {env for env, _ in Counter(envs).most_common(MOST_ENVS)}
    trained: Counter[tuple[str, int]] = Counter()
    withheld: Counter[tuple[str, int]] = Counter()
    is_trained = verdicts[decided] == Verdict.TRAINED
    for env, number, trains in zip(envs, quartile.tolist(), is_trained.tolist(), strict=True):
        name = env[:128] if env in frequent else OTHER_ENVS
        count = trained if trains else withheld
        count[name, number] += 1
    entries = sorted(trained.keys() | withheld.keys())
    return [[env, number, trained[env, number], withheld[env, number]] for env, number in entries]
