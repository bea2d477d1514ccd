"""The fields and columns of a rollout: names, groups, dtypes, and how many rows each has."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

TOKENS = "tokens.npy"
MASK = "mask.npy"
LOGPROBS = "logprobs.npy"
VERSIONS = "versions.npy"
KEPT_N = "kept_n.npy"
KEPT = "kept.npy"
TURNS = "turns.jsonl"
MEDIA = "media.npy"

NOT_SAMPLED = -1
"""Policy version of a token that the policy did not sample."""

ROLLOUT_GROUPS = MappingProxyType(
    {
        TOKENS: "tokens",
        MASK: "tokens",
        LOGPROBS: "policy",
        VERSIONS: "policy",
        "experts.npy": "routing",
        KEPT_N: "kept",
        KEPT: "kept",
        "advantages.npy": "credit",
        "rewards.npy": "credit",
        "ref_logprobs.npy": "credit",
        "teacher_logprobs.npy": "credit",
        TURNS: "turns",
        MEDIA: "media",
    }
)
"""Field of a rollout -> its group, for `groups=` of `loader.write_part` and `root.write`.

A reader of tokens reads no byte of the other groups.
"""

COLUMNS = (
    "group_id",
    "prompt_id",
    "trajectory_id",
    "reward",
    "n_tokens",
    "n_sampled",
    "n_turns",
    "n_calls",
    "policy_min",
    "policy_max",
)
"""Columns that `rollout` writes itself."""

WRITTEN_BY_ROLLOUT = frozenset((TOKENS, MASK, LOGPROBS, VERSIONS, TURNS, MEDIA))
"""Fields with parameters of their own, which `fields=` may not name."""


class RowCount(Enum):
    """Number of rows that a field must have."""

    PER_TOKEN = "one per token"
    PER_KEPT = "one per kept token: the sum of kept_n.npy"


class FieldRule(NamedTuple):
    dtype: DTypeLike
    """Dtype of the stored array."""
    row_count: RowCount
    n_dimensions: int | None
    """None for any number, 1 or more."""
    is_finite: bool = False
    """True if no value may be infinite or NaN: a loss takes them as they are."""


FIELD_RULES: Mapping[str, FieldRule] = MappingProxyType(
    {
        "experts.npy": FieldRule(np.uint16, RowCount.PER_TOKEN, 3),
        KEPT_N: FieldRule(np.uint16, RowCount.PER_TOKEN, 1),
        KEPT: FieldRule(np.uint32, RowCount.PER_KEPT, 1),
        "advantages.npy": FieldRule(np.float32, RowCount.PER_TOKEN, 1, is_finite=True),
        "rewards.npy": FieldRule(np.float32, RowCount.PER_TOKEN, 1, is_finite=True),
        "ref_logprobs.npy": FieldRule(np.float32, RowCount.PER_TOKEN, 1),
        "teacher_logprobs.npy": FieldRule(np.float32, RowCount.PER_TOKEN, None),
    }
)
"""Further fields that `rollout` checks. It stores other `.npy` fields as they are."""
