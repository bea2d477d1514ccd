"""OpenRLHF's `Experience`: a batch [B, T] that is padded on the right, with rows [B, T - 1] for the tokens behind the
first: row t is of token t + 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.errors import InvalidSample

from .records import Sample, StoredRollout, array, check_length, member, refuse_images

_STEP_FIELDS = {
    "action_log_probs": "action_logprobs.npy",
    "base_action_log_probs": "ref_logprobs.npy",
    "values": "values.npy",
    "returns": "returns.npy",
    "advantages": "advantages.npy",
    "kl": "kl.npy",
}
"""Name in `Experience`, [B, T - 1] -> field."""
_EPISODE_COLUMNS = {"scores": "score", "truncated": "truncated"}
_TEXT_COLUMNS = {"prompts": "prompt", "labels": "label"}


def from_experience(
    experience: Any,
    *,
    keys: Sequence[str],
    group_ids: Sequence[str],
    versions: int | None = None,
    **columns: Any,
) -> list[Sample]:
    """Return the rollouts of an `Experience` without their padding. `index` and `info` are not stored.

    Args:
        experience: `Experience` of B sequences, or a mapping of its fields.
        keys: Key of each rollout.
        group_ids: Group of each rollout, one per prompt.
        versions: Version of the policy that sampled the batch.
        **columns: Further columns of every rollout.

    Raises: InvalidSample.
    """
    sequences = array("sequences", member(experience, "sequences"), 2)  # [B, T]
    n_rollouts, n_padded = sequences.shape
    check_length("keys", keys, n_rollouts, "sequences")
    check_length("group_ids", group_ids, n_rollouts, "sequences")
    for name in ("images", "mm_train_inputs"):
        entries = member(experience, name) or []
        images = [image for image in entries if image is not None]
        refuse_images(name, images, columns)
    lengths = _lengths(experience, sequences)
    steps = _step_arrays(experience, n_rollouts, n_padded)
    episodes = _episode_values(experience, n_rollouts)

    samples = []
    for number, (key, group_id) in enumerate(zip(keys, group_ids, strict=True)):
        n_tokens = int(lengths[number])
        rows = {}
        for name, values in steps.items():
            rows[name] = _behind_first(values[number], n_tokens)
        fields = {field: rows[name] for name, field in _STEP_FIELDS.items() if name in rows}
        episode = {name: values[number] for name, values in episodes.items()}
        sample = loader.rollout(
            key,
            sequences[number, :n_tokens],
            rows["action_mask"],
            group_id=group_id,
            logprobs=rows.get("rollout_log_probs"),
            versions=versions,
            fields=fields,
            **columns,
            **episode,
        )
        samples.append(sample)
    return samples


def _lengths(
    experience: Any,
    sequences: NDArray[Any],
) -> NDArray[np.int64]:
    """Return int64 [B]: tokens of each sequence before its padding."""
    stored_mask = member(experience, "attention_mask")
    attention = array("attention_mask", stored_mask, 2).astype(bool)
    if attention.shape != sequences.shape:
        raise InvalidSample(
            f"attention_mask has shape {list(attention.shape)}, sequences {list(sequences.shape)}"
        )
    lengths: NDArray[np.int64] = attention.sum(axis=1)
    n_padded = sequences.shape[1]
    positions = np.arange(n_padded)
    is_token = positions < lengths[:, None]  # [B, T]
    has_gap = (attention != is_token).any(axis=1)  # [B]
    if has_gap.any():
        row = int(has_gap.argmax())
        raise InvalidSample(f"attention_mask of row {row} has a gap; padding behind the tokens is needed")
    return lengths


def _step_arrays(
    experience: Any,
    n_rollouts: int,
    n_padded: int,
) -> dict[str, NDArray[Any]]:
    """Return name -> [B, T - 1]."""
    arrays = {}
    for name in ("action_mask", "rollout_log_probs", *_STEP_FIELDS):
        value = member(experience, name)
        if value is None:
            continue
        rows = array(name, value, 2)
        if rows.shape != (n_rollouts, n_padded - 1):
            raise InvalidSample(
                f"{name} has shape {list(rows.shape)}; [{n_rollouts}, {n_padded - 1}] is needed, a row less than "
                "sequences: the first token was not sampled"
            )
        arrays[name] = rows
    if "action_mask" not in arrays:
        raise InvalidSample("action_mask is missing; it marks the sampled tokens")
    return arrays


def _behind_first(
    values: NDArray[Any],
    n_tokens: int,
) -> NDArray[Any]:
    """Return [T]: 0 for the first token, then the rows of the others."""
    first = np.zeros(1, values.dtype)
    return np.concatenate([first, values[: n_tokens - 1]])


def _episode_values(
    experience: Any,
    n_rollouts: int,
) -> dict[str, Any]:
    """Return argument or column of `loader.rollout` -> a value for each of the B rollouts."""
    values: dict[str, Any] = {}
    for name, column in {"rewards": "reward", **_EPISODE_COLUMNS}.items():
        value = member(experience, name)
        if value is not None:
            episodes = array(name, value)
            check_length(name, episodes, n_rollouts, "sequences")
            values[column] = episodes.tolist()
    for name, column in _TEXT_COLUMNS.items():
        texts = member(experience, name)
        if texts:
            check_length(name, texts, n_rollouts, "sequences")
            values[column] = texts
    return values


def to_experience(
    samples: Sequence[Any],
    *,
    pad_id: int,
) -> dict[str, Any]:
    """Return the fields of an `Experience` of rollouts, as numpy arrays: `torch.from_numpy` takes them.

    A field that no rollout has is None, one that only some have is InvalidSample.

    Args:
        samples: Results of `loader.rollout`, or samples of a view with the columns that you need.
        pad_id: Token id behind the sequences.

    Raises: InvalidSample.
    """
    rollouts = [StoredRollout(sample) for sample in samples]
    for rollout in rollouts:
        rollout.refuse_media(None)
        rollout.refuse_sampled_beginning("action_mask")
    tokens = [rollout.tokens for rollout in rollouts]
    action_rows = [rollout.mask[1:] for rollout in rollouts]
    lengths = np.array([len(sequence) for sequence in tokens])  # [B]
    n_padded = int(lengths.max(initial=1))
    positions = np.arange(n_padded)
    is_token = positions < lengths[:, None]  # [B, T]
    action_mask = _padded(action_rows, n_padded - 1, False, np.bool_)
    experience: dict[str, Any] = {
        "sequences": _padded(tokens, n_padded, pad_id, np.int64),
        "attention_mask": is_token.astype(np.int64),
        "action_mask": action_mask,
    }
    for name, field in {"rollout_log_probs": "logprobs.npy", **_STEP_FIELDS}.items():
        values = [rollout.per_token(field) for rollout in rollouts]
        experience[name] = None
        if _have_all(field, rollouts, values):
            rows = [value[1:] for value in values if value is not None]
            experience[name] = _padded(rows, n_padded - 1, 0, np.float32)
    for name, column in {"rewards": "reward", **_EPISODE_COLUMNS}.items():
        episodes = [rollout.column(column) for rollout in rollouts]
        experience[name] = None
        if _have_all(column, rollouts, episodes):
            experience[name] = np.array(episodes)
    for name, column in _TEXT_COLUMNS.items():
        texts = [rollout.column(column) for rollout in rollouts]
        experience[name] = []
        if _have_all(column, rollouts, texts):
            experience[name] = texts
    experience["response_length"] = _response_lengths(action_mask)
    experience["total_length"] = lengths
    return experience


def _padded(
    rows: list[NDArray[Any]],
    n_columns: int,
    fill: float,
    dtype: Any,
) -> NDArray[Any]:
    table = np.full((len(rows), n_columns), fill, dtype)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def _have_all(
    name: str,
    rollouts: list[StoredRollout],
    values: list[Any],
) -> bool:
    lacking = [rollout.where for rollout, value in zip(rollouts, values, strict=True) if value is None]
    if 0 < len(lacking) < len(values):
        raise InvalidSample(f"{lacking[0]} has no {name}, others of the batch have")
    return not lacking


def _response_lengths(action_mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64 [B], as OpenRLHF counts: from the first sampled token to the last."""
    first = action_mask.argmax(axis=1)
    from_end = action_mask[:, ::-1].argmax(axis=1)
    n_actions = action_mask.shape[1]
    lengths = n_actions - from_end - first
    has_action = action_mask.any(axis=1)
    response_lengths: NDArray[np.int64] = np.where(has_action, lengths, 0)
    return response_lengths
