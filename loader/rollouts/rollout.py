"""Build the sample of a rollout: one token sequence that a policy is trained on."""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidSample
from . import token_arrays
from .further_fields import further_fields, media_rows, turn_lines
from .rollout_fields import (
    COLUMNS,
    LOGPROBS,
    MASK,
    MEDIA,
    NOT_SAMPLED,
    TOKENS,
    TURNS,
    VERSIONS,
)

Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]


def rollout(
    key: str,
    tokens: Any,
    mask: Any,
    *,
    group_id: str,
    prompt_id: str = "",
    trajectory_id: str = "",
    logprobs: Any = None,
    versions: Any = None,
    reward: float | None = None,
    calls: Sequence[int] | None = None,
    fields: Mapping[str, Any] | None = None,
    turns: Iterable[Mapping[str, Any]] | None = None,
    media: Any = None,
    **columns: Any,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return a rollout as (key, fields, metadata), a sample for `root.write` and `loader.write_part`.

    A rollout is one token sequence, with the ids that the policy sampled: text that is encoded again may give others.
    Write rollouts with `groups=loader.ROLLOUT_GROUPS`. `**sequence` takes a result of `loader.join_calls`.

    Args:
        key: Key of the sample, unique in its dataset.
        tokens: Token ids, int [T], T >= 1; stored as int32.
        mask: bool [T], True for tokens that the policy sampled.
        group_id: Rollouts with one `group_id` are compared with each other. A group lies in one transaction.
        prompt_id: Prompt, for example its key in the prompts' dataset.
        trajectory_id: Trajectory, if it has several sequences.
        logprobs: float [T], finite for sampled tokens. Elsewhere None and NaN become 0. None: data without a policy.
        versions: Version of the policy that sampled each token, int [T] or one number. Stored as -1 for other tokens.
        reward: Reward of the whole rollout, finite.
        calls: Numbers of the model calls that it joins; only counted.
        fields: Further `.npy` fields, such as `advantages.npy` (`FIELD_RULES` checks shapes and dtypes).
        turns: Mappings with `role`, and usually start and stop (tokens), text, tool, arguments.
        media: int [m, 3]: ordinal in the dataset version `media_version=`, first token, number of tokens.
        **columns: Further columns, such as env, task, finish, model, step, worker, temperature, top_p.

    Raises: InvalidSample, which names sample, field and value. The writer checks names and types of columns.
    """
    _check_texts(key, group_id, prompt_id, trajectory_id)
    _check_columns(key, columns)
    stored, counts = _token_fields(key, tokens, mask, logprobs, versions)
    n_tokens = counts["n_tokens"]
    stored.update(further_fields(key, fields or {}, n_tokens))
    if turns is not None:
        stored[TURNS] = turn_lines(key, turns, n_tokens)
        counts["n_turns"] = len(stored[TURNS])
    if media is not None:
        stored[MEDIA] = media_rows(key, media, n_tokens, columns.get("media_version"))
    if calls is not None:
        counts["n_calls"] = _n_calls(key, calls)

    metadata = dict.fromkeys(COLUMNS) | counts | columns
    metadata["group_id"] = group_id
    metadata["prompt_id"] = prompt_id
    metadata["trajectory_id"] = trajectory_id
    metadata["reward"] = _reward(key, reward)
    return key, stored, metadata


def _check_texts(
    key: str,
    group_id: object,
    prompt_id: object,
    trajectory_id: object,
) -> None:
    if not isinstance(group_id, str) or not group_id:
        raise InvalidSample(
            f"rollout {key!r} has group_id={group_id!r:.80}; a text that is not empty is needed",
            what="group_id",
            where=f"rollout {key!r}",
            given=group_id,
            accepted="a text that is not empty",
        )
    # The first rollout's type becomes the column's: after a number there, later texts would not fit.
    for name, text in (("prompt_id", prompt_id), ("trajectory_id", trajectory_id)):
        if not isinstance(text, str):
            raise InvalidSample(
                f"rollout {key!r} has {name}={text!r:.80}; a text is needed, which may be empty",
                what=name,
                where=f"rollout {key!r}",
                given=text,
                accepted="a text",
            )


def _check_columns(
    key: str,
    columns: Mapping[str, Any],
) -> None:
    clashing = [name for name in columns if name in COLUMNS]
    if clashing:
        raise InvalidSample(
            f"rollout {key!r} has columns {sorted(clashing)}, which loader.rollout writes itself",
            what="columns",
            where=f"rollout {key!r}",
            given=sorted(clashing),
        )


def _token_fields(
    key: str,
    tokens: Any,
    mask: Any,
    logprobs: Any,
    versions: Any,
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return field -> value per token, and what the columns say about them."""
    token_ids = _tokens(key, tokens)
    is_sampled = _mask(key, mask, len(token_ids))
    stored: dict[str, Any] = {TOKENS: token_ids, MASK: is_sampled}
    counts = {"n_tokens": len(token_ids), "n_sampled": int(is_sampled.sum())}
    if logprobs is not None:
        stored[LOGPROBS] = _logprobs(key, logprobs, is_sampled)
    if versions is not None:
        stored[VERSIONS] = _versions(key, versions, is_sampled)
        sampled_versions = stored[VERSIONS][is_sampled]
        if len(sampled_versions):  # the others have -1, which is not a version
            counts["policy_min"] = int(sampled_versions.min())
            counts["policy_max"] = int(sampled_versions.max())
    return stored, counts


def _tokens(key: str, tokens: Any) -> Int32s:
    where = f"rollout {key!r}: {TOKENS}"
    array = token_arrays.one_dimensional(where, tokens)
    if not len(array):
        raise token_arrays.refused_array(where, "has no token; leave the rollout out", given=0)
    return token_arrays.integers(where, array, np.int32)


def _mask(key: str, mask: Any, n_tokens: int) -> Bools:
    where = f"rollout {key!r}: {MASK}"
    array = token_arrays.one_dimensional(where, mask)
    token_arrays.check_length(where, array, n_tokens)
    return token_arrays.truth_values(where, array)


def _logprobs(key: str, logprobs: Any, is_sampled: Bools) -> NDArray[np.float32]:
    where = f"rollout {key!r}: {LOGPROBS}"
    # Servers return None for tokens without one: NaN as float64.
    array = token_arrays.one_dimensional(where, logprobs, np.float64)
    token_arrays.check_length(where, array, len(is_sampled))
    values = token_arrays.floats(where, array)
    is_finite = np.isfinite(values)
    is_missing = is_sampled & ~is_finite
    if is_missing.any():
        first = int(np.flatnonzero(is_missing)[0])
        raise token_arrays.refused_array(
            where,
            f"has {array[first]} at token {first}, which was sampled; a finite log-probability is needed there. "
            "Ask the server for the log-probabilities of all sampled tokens, or set the mask to False",
            given=f"{array[first]} at token {first}",
            accepted="a finite log-probability",
        )
    # A loss multiplies by the mask, and 0 times NaN is NaN.
    return np.where(is_finite, values, np.float32(0))


def _versions(key: str, versions: Any, is_sampled: Bools) -> Int32s:
    where = f"rollout {key!r}: {VERSIONS}"
    array = token_arrays.any_array(where, versions)
    if array.ndim == 0:
        array = np.full(len(is_sampled), array)
    else:
        array = token_arrays.one_dimensional(where, array)
        token_arrays.check_length(where, array, len(is_sampled))
    # Only of sampled tokens: adapters pass any number for the others, and -1 is stored for them.
    sampled_versions = token_arrays.integers(where, array[is_sampled], np.int32)
    stored = np.full(len(is_sampled), NOT_SAMPLED, np.int32)
    stored[is_sampled] = sampled_versions
    return stored


def _n_calls(key: str, calls: Any) -> int:
    if isinstance(calls, str | bytes) or not isinstance(calls, Sized):
        raise InvalidSample(
            f"rollout {key!r} has calls={calls!r:.80}; the list of the calls' numbers is needed",
            what="calls",
            where=f"rollout {key!r}",
            given=calls,
            accepted="the list of the calls' numbers",
        )
    return len(calls)


def _reward(key: str, reward: Any) -> float | None:
    if reward is None:
        return None
    number = math.nan
    # float() would also take a text such as "1.0".
    if not isinstance(reward, str | bytes):
        try:
            number = float(reward)
        except (
            TypeError,
            ValueError,
            OverflowError,
            RuntimeError,  # from a tensor of several values
        ):
            number = math.nan
    if not math.isfinite(number):
        raise InvalidSample(
            f"rollout {key!r} has reward={reward!r:.80}; a finite number is needed, or None",
            what="reward",
            where=f"rollout {key!r}",
            given=reward,
            accepted="a finite number, or None",
        )
    return number
