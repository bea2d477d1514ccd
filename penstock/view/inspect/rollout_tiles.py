"""The first line of a rollout in a grid: its environment, reward and length."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import loader
from loader.dataset.tables.parquet import Int64s
from loader.dataset.versions.sample_rows import columns_of_rows
from loader.errors import Corrupt
from loader.rollouts.rollout_fields import MASK, TOKENS

from ...text import clean
from ..marks import count_text

COLUMNS = ("env", "reward", "n_tokens")
MOST_CHARACTERS = 60
"""Characters of an environment's name."""


def rollout_lines(
    version: "loader.Version", ordinals: Int64s, fields: Sequence[Sequence[str]]
) -> dict[int, str]:
    """Return ordinal -> line, for the rollouts among a page's samples.

    fields: names of each sample's fields. Reads the rollouts' row groups of three columns; nothing without a rollout.
    """
    is_rollout = [TOKENS in names and MASK in names for names in fields]
    rollouts = np.unique(ordinals[is_rollout])  # ascending, as the tables are read
    known = version.manifest["columns"]
    names = [name for name in COLUMNS if name in known]
    groups = {known[name]["group"] for name in names}
    if not len(rollouts) or len(groups) != 1:  # also columns of an annotation
        return {}
    positions, rows = version.parts.locate(rollouts)
    try:
        table = columns_of_rows(version, positions, rows, names)
    except Corrupt:  # the facets of the same page show the error
        return {}
    lines: dict[int, str] = {}
    table_rows = table.to_pylist()
    for ordinal, row in zip(rollouts.tolist(), table_rows, strict=True):
        lines[ordinal] = _line(row)
    return lines


def _line(row: dict[str, Any]) -> str:
    words = []
    env = row.get("env")
    if env:
        name = clean(env, MOST_CHARACTERS)
        words.append(name)
    reward = row.get("reward")
    if isinstance(reward, int | float):
        words.append(f"reward {reward:.4g}")
    n_tokens = row.get("n_tokens")
    if isinstance(n_tokens, int):
        words.append(count_text(n_tokens, "token"))
    return ", ".join(words)
