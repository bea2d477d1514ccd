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
    """Return checked arrays in their stored dtypes. Raises: InvalidSample."""
    if not isinstance(fields, Mapping):
        # `.80` cuts the text of a value: it may be the array of a whole batch.
        raise InvalidSample(
            f"rollout {key!r} has fields={fields!r:.80}; a mapping of field to array is needed",
            what="fields",
            where=f"rollout {key!r}",
            given=fields,
            accepted="a mapping of field to array",
        )
    arrays: dict[str, NDArray[Any]] = {}
    for field, value in fields.items():
        where = f"rollout {key!r}: {field}"
        if field in WRITTEN_BY_ROLLOUT:
            raise InvalidSample(
                f"{where} has a parameter of its own; fields= takes other fields",
                what="fields",
                where=f"rollout {key!r}",
                given=field,
                accepted="fields without a parameter of their own",
            )
        is_array_field = isinstance(field, str) and field.endswith(".npy")
        if not is_array_field:
            raise InvalidSample(
                f"{where} in fields=: names that end in .npy are needed",
                what="fields",
                where=f"rollout {key!r}",
                given=field,
                accepted="names that end in .npy",
            )
        array = token_arrays.any_array(where, value)
        rule = FIELD_RULES.get(field)
        if rule is not None:
            array = _check_array(
                where,
                array,
                rule,
                n_tokens,
            )
        arrays[field] = array
    if KEPT in arrays:
        _check_kept(key, arrays)
    return arrays


def _check_array(
    where: str,
    array: NDArray[Any],
    rule: FieldRule,
    n_tokens: int,
) -> NDArray[Any]:
    converted = _convert_array(where, array, rule)
    if rule.row_count is RowCount.PER_TOKEN:
        token_arrays.check_length(where, converted, n_tokens)
    if rule.is_finite:
        _check_finite(where, converted)
    return converted


def _check_kept(
    key: str,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    if KEPT_N not in arrays:
        raise InvalidSample(
            f"rollout {key!r} has {KEPT} without {KEPT_N}, the number of kept tokens per token",
            what=KEPT_N,
            where=f"rollout {key!r}",
        )
    n_values = len(arrays[KEPT])
    kept_by_token = arrays[KEPT_N]
    n_kept = int(kept_by_token.sum(dtype=np.int64))  # in uint16 the sum would overflow
    if n_values != n_kept:
        raise InvalidSample(
            f"rollout {key!r}: {KEPT} has {n_values} values, the sum of {KEPT_N} is {n_kept}",
            what=KEPT,
            where=f"rollout {key!r}",
            given=n_values,
            accepted=n_kept,
        )


def _convert_array(
    where: str,
    array: NDArray[Any],
    rule: FieldRule,
) -> NDArray[Any]:
    shape = list(array.shape)
    has_wrong_dimensions = rule.n_dimensions not in (None, len(shape))
    if not shape or has_wrong_dimensions:
        needed = rule.n_dimensions or "1 or more"
        raise token_arrays.refused_array(
            where,
            f"has shape {shape}; {needed} dimensions are needed",
            given=shape,
            accepted=f"{needed} dimensions",
        )
    dtype = np.dtype(rule.dtype)
    if dtype == np.float32:
        return token_arrays.floats(where, array)
    return token_arrays.integers(where, array, dtype)


def _check_finite(
    where: str,
    array: NDArray[Any],
) -> None:
    wrong = np.flatnonzero(~np.isfinite(array))
    if not len(wrong):
        return
    token = wrong[0]
    value = array[token]
    raise token_arrays.refused_array(
        where,
        f"has {value} at token {token}; finite numbers are needed",
        given=f"{value} at token {token}",
        accepted="finite numbers",
    )


def turn_lines(
    key: str,
    turns: Iterable[Mapping[str, Any]],
    n_tokens: int,
) -> list[dict[str, Any]]:
    """Return the turns as dicts. Raises: InvalidSample."""
    if not isinstance(turns, Iterable):
        raise InvalidSample(
            f"rollout {key!r} has turns={turns!r:.80}; a list of mappings is needed",
            what="turns",
            where=f"rollout {key!r}",
            given=turns,
            accepted="a list of mappings",
        )
    lines: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        where = f"rollout {key!r}: turn {number}"
        role = None
        if isinstance(turn, Mapping):
            role = turn.get("role")
        if not isinstance(role, str):
            raise InvalidSample(
                f"{where} is {turn!r:.80}; a mapping with a role is needed",
                what="role",
                where=where,
                given=f"{turn!r:.80}",
                accepted="a mapping with a role",
            )
        # A turn without bounds is text from outside the tokens, such as a judge's. These bounds pass the check below.
        start = turn.get("start", 0)
        stop = turn.get("stop", n_tokens)
        for bound in (start, stop):
            is_number = isinstance(bound, int) and not isinstance(bound, bool)
            if not is_number:
                raise InvalidSample(
                    f"{where} has the bound {bound!r:.80}; numbers of tokens are needed",
                    what="bound",
                    where=where,
                    given=bound,
                    accepted="numbers of tokens",
                )
        is_inside = 0 <= start <= stop <= n_tokens
        if not is_inside:
            raise InvalidSample(
                f"{where} is [{start}, {stop}) of {n_tokens} tokens",
                what="bound",
                where=where,
                given=(start, stop),
                accepted=n_tokens,
            )
        lines.append(dict(turn))
    return lines


# The ordinals themselves are not compared: the media's dataset may be in another root.
def media_rows(
    key: str,
    media: Any,
    n_tokens: int,
    media_version: object,
) -> NDArray[np.int64]:
    """Return int64 [m, 3]: ordinal in `media_version`, first token and number of tokens of each image or clip."""
    where = f"rollout {key!r}: {MEDIA}"
    if not isinstance(media_version, str) or not media_version:
        raise InvalidSample(
            f"{where} has media_version={media_version!r:.80}; name the version that holds its ordinals, such as "
            "'images@1'",
            what="media_version",
            where=f"rollout {key!r}",
            given=media_version,
            accepted="a version, such as 'images@1'",
        )
    array = token_arrays.any_array(where, media)
    if not array.size:
        array = np.empty((0, 3), np.int64)  # an empty list has one dimension
    shape = list(array.shape)
    if len(shape) != 2 or shape[1] != 3:
        raise token_arrays.refused_array(
            where,
            f"has shape {shape}; [m, 3] is needed: ordinal, first token, tokens",
            given=shape,
            accepted="[m, 3]",
        )
    rows: NDArray[np.int64] = token_arrays.integers(where, array, np.int64)
    first_tokens = rows[:, 1]
    counts = rows[:, 2]
    # By subtraction: the sum of two int64 could overflow.
    available = n_tokens - first_tokens
    is_outside = (available < 0) | (counts > available)
    wrong_rows = rows[is_outside].tolist()
    if wrong_rows:
        raise token_arrays.refused_array(
            where,
            f"has row {wrong_rows[0]}, beyond the {n_tokens} tokens of the rollout",
            given=wrong_rows[0],
            accepted=n_tokens,
        )
    return rows
