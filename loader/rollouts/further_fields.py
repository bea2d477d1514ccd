"""The fields of a rollout beside its tokens: credit, routing, kept tokens, turns and media."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidSample
from . import token_arrays
from .rollout_fields import FIELD_RULES, KEPT, KEPT_N, MEDIA, WRITTEN_BY_ROLLOUT, FieldRule, RowCount


def further_fields(
    key: str,
    fields: Mapping[str, Any],
    n_tokens: int,
) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for field, value in fields.items():
        where = f"rollout {key!r}: {field}"
        if field in WRITTEN_BY_ROLLOUT:
            raise InvalidSample(f"{where} has a parameter of its own; fields= takes other fields")
        if not isinstance(field, str) or not field.endswith(".npy"):
            raise InvalidSample(f"{where} in fields=: names that end in .npy are needed")
        array = token_arrays.any_array(where, value)
        rule = FIELD_RULES.get(field)
        if rule is not None:
            array = _converted(where, array, rule)
            if rule.row_count is RowCount.PER_TOKEN:
                token_arrays.check_length(where, array, n_tokens)
            if rule.is_finite:
                _check_finite(where, array)
        arrays[field] = array

    if KEPT in arrays:
        if KEPT_N not in arrays:
            raise InvalidSample(
                f"rollout {key!r} has {KEPT} without {KEPT_N}, the number of kept tokens per token"
            )
        n_kept = int(arrays[KEPT_N].sum(dtype=np.int64))
        if len(arrays[KEPT]) != n_kept:
            raise InvalidSample(
                f"rollout {key!r}: {KEPT} has {len(arrays[KEPT])} values, the sum of {KEPT_N} is {n_kept}"
            )
    return arrays


def _converted(
    where: str,
    array: NDArray[Any],
    rule: FieldRule,
) -> NDArray[Any]:
    has_wrong_dimensions = rule.n_dimensions is not None and array.ndim != rule.n_dimensions
    if array.ndim == 0 or has_wrong_dimensions:
        needed = rule.n_dimensions or "1 or more"
        raise InvalidSample(f"{where} has shape {list(array.shape)}; {needed} dimensions are needed")
    if np.dtype(rule.dtype).kind == "u":
        return token_arrays.integers(where, array, rule.dtype)
    return token_arrays.floats(where, array)


def _check_finite(where: str, array: NDArray[Any]) -> None:
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise InvalidSample(f"{where} has {array[wrong[0]]} at token {wrong[0]}; finite numbers are needed")


def turn_lines(
    key: str,
    turns: Iterable[Mapping[str, Any]],
    n_tokens: int,
) -> list[dict[str, Any]]:
    lines = []
    for number, turn in enumerate(turns):
        where = f"rollout {key!r}: turn {number}"
        if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
            raise InvalidSample(f"{where} is {turn!r:.80}; a mapping with a role is needed")
        bounds = [turn.get("start", 0), turn.get("stop", n_tokens)]
        if not all(isinstance(bound, int) for bound in bounds):
            raise InvalidSample(f"{where} has start and stop {bounds}; numbers of tokens are needed")
        start, stop = bounds
        if not 0 <= start <= stop <= n_tokens:
            raise InvalidSample(f"{where} is [{start}, {stop}) of {n_tokens} tokens")
        lines.append(dict(turn))
    return lines


def media_rows(
    key: str,
    media: Any,
    n_tokens: int,
    media_version: object,
) -> NDArray[np.int64]:
    """Return int64 [m, 3]: ordinal in `media_version`, first token and number of tokens of each image or clip."""
    where = f"rollout {key!r}: {MEDIA}"
    if not media_version:
        raise InvalidSample(f"{where} has no version; name the one that holds its ordinals: media_version=")
    array = token_arrays.any_array(where, media)
    if not array.size:
        array = np.empty((0, 3), np.int64)
    if array.ndim != 2 or array.shape[1] != 3:
        raise InvalidSample(
            f"{where} has shape {list(array.shape)}; [m, 3] is needed: ordinal, first token, tokens"
        )
    rows: NDArray[np.int64] = token_arrays.integers(where, array, np.int64)
    first_tokens = rows[:, 1]
    counts = rows[:, 2]
    # Compared by subtraction: the sum of two int64 could overflow.
    is_outside = (first_tokens > n_tokens) | (counts > n_tokens - first_tokens)
    wrong = np.flatnonzero(is_outside)
    if len(wrong):
        raise InvalidSample(
            f"{where} has row {rows[wrong[0]].tolist()}, beyond the {n_tokens} tokens of the rollout"
        )
    return rows
