"""SkyRL's `GeneratorOutput`: lists with an entry per trajectory, or per turn in step-wise training."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.errors import InvalidSample

from .records import Sample, StoredRollout, array, behind_prompt, check_length, member, refuse_images
from .routed_experts import padded_experts, server_experts

_LISTS = (
    "prompt_token_ids",
    "loss_masks",
    "rewards",
    "stop_reasons",
    "rollout_logprobs",
    "trajectory_ids",
    "rollout_expert_indices",
    "rollout_sample_support",
    "is_last_step",
    "pixel_values",
)
NO_TOKEN = -1
"""Entry of a token's sampler support behind its last one."""


def from_generator_output(
    output: Any,
    *,
    prefix: str,
    versions: int | None = None,
    **columns: Any,
) -> list[Sample]:
    """Return the rollouts of a `GeneratorOutput`. A group is an instance, `trajectory_ids[i].instance_id`.

    The metrics and times of the batch are not stored.

    Args:
        output: `GeneratorOutput`, or a mapping of its fields.
        prefix: Beginning of the keys, such as "run-7/120/". The trajectory follows, and in step-wise training its turn.
        versions: Version of the policy that sampled the batch, such as `global_step`.
        **columns: Further columns of every rollout.

    Raises: InvalidSample.
    """
    n_rollouts = len(member(output, "response_ids"))
    lists: dict[str, Any] = {"response_ids": member(output, "response_ids")}
    for name in _LISTS:
        values = member(output, name)
        if values is not None:
            check_length(name, values, n_rollouts, "response_ids")
            lists[name] = values
    if "trajectory_ids" not in lists:
        raise InvalidSample("trajectory_ids is missing; they name group and trajectory of each rollout")

    n_turns: Counter[str] = Counter()
    samples = []
    for number in range(n_rollouts):
        row: dict[str, Any] = {name: values[number] for name, values in lists.items()}
        instance = str(member(row["trajectory_ids"], "instance_id"))
        repetition = member(row["trajectory_ids"], "repetition_id")
        trajectory = f"{instance}_{repetition}"
        key = f"{prefix}{trajectory}"
        if "is_last_step" in row:
            key += f"/{n_turns[trajectory]}"
            columns["is_last_step"] = bool(row["is_last_step"])
        elif n_turns[trajectory]:
            raise InvalidSample(f"trajectory_ids holds {trajectory!r} twice, and is_last_step is missing")
        n_turns[trajectory] += 1
        names = {
            "group_id": instance,
            "prompt_id": instance,
            "trajectory_id": trajectory,
            "repetition_id": repetition,
        }
        samples.append(_rollout(key, row, versions, {**columns, **names}))
    return samples


def _rollout(
    key: str,
    row: dict[str, Any],
    versions: int | None,
    columns: dict[str, Any],
) -> Sample:
    where = f"rollout {key!r}"
    refuse_images(f"{where}: pixel_values", row.get("pixel_values"), columns)
    prompt = array(f"{where}: prompt_token_ids", row.get("prompt_token_ids"))
    response = array(f"{where}: response_ids", row["response_ids"])
    n_prompt = len(prompt)
    n_response = len(response)
    mask = behind_prompt(f"{where}: loss_masks", row.get("loss_masks"), n_prompt, n_response, 0)
    logprobs = row.get("rollout_logprobs")
    if logprobs is not None:
        logprobs = behind_prompt(f"{where}: rollout_logprobs", logprobs, n_prompt, n_response, 0)

    fields = {}
    reward: Any = row.get("rewards")
    if np.ndim(reward):  # a reward per token
        rewards = behind_prompt(f"{where}: rewards", reward, n_prompt, n_response, 0)
        fields["rewards.npy"] = rewards
        reward = float(rewards.sum())
    if row.get("rollout_expert_indices") is not None:
        experts_place = f"{where}: rollout_expert_indices"
        experts = padded_experts(experts_place, row["rollout_expert_indices"], mask.astype(bool))
        fields["experts.npy"] = experts
    if row.get("rollout_sample_support") is not None:
        support = array(f"{where}: rollout_sample_support", row["rollout_sample_support"], 2)
        check_length(f"{where}: rollout_sample_support", support, n_response, "response_ids")
        fields.update(_kept_tokens(support, n_prompt))
    return loader.rollout(
        key,
        np.concatenate([prompt, response]),
        mask,
        logprobs=logprobs,
        versions=versions,
        reward=reward,
        fields=fields,
        finish=row.get("stop_reasons"),
        n_prompt_tokens=n_prompt,
        **columns,
    )


def _kept_tokens(
    support: NDArray[Any],
    n_prompt: int,
) -> dict[str, NDArray[Any]]:
    """Return the kept tokens of each token from [R, k], whose rows end with NO_TOKEN."""
    is_kept = support != NO_TOKEN
    n_kept = np.zeros(n_prompt + len(support), np.int64)
    n_kept[n_prompt:] = is_kept.sum(axis=1)
    return {"kept_n.npy": n_kept, "kept.npy": support[is_kept]}


def to_generator_output(samples: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a `GeneratorOutput` of rollouts.

    Entries of `trajectory_ids` are mappings, for `TrajectoryID(**entry)`. A rollout without the column repetition_id
    gets its trajectory's number in the group.

    Args:
        samples: Results of `loader.rollout`, or samples of a view with the columns group_id, trajectory_id and reward.

    Raises: InvalidSample.
    """
    rollouts = [StoredRollout(sample) for sample in samples]
    for rollout in rollouts:
        rollout.refuse_media(None)
    response_ids = []
    loss_masks = []
    prompts = []
    for rollout in rollouts:
        prompts.append(rollout.tokens[: rollout.n_prompt].tolist())
        response_ids.append(rollout.tokens[rollout.n_prompt :].tolist())
        loss_masks.append(rollout.mask[rollout.n_prompt :].astype(int).tolist())
    return {
        "prompt_token_ids": prompts,
        "response_ids": response_ids,
        "rewards": _rewards(rollouts),
        "loss_masks": loss_masks,
        "stop_reasons": _all_or_none("finish", rollouts, [rollout.column("finish") for rollout in rollouts]),
        "rollout_metrics": None,
        "rollout_logprobs": _response_lists("logprobs.npy", rollouts),
        "trajectory_ids": _trajectories(rollouts),
        "rollout_expert_indices": _all_or_none(
            "experts.npy", rollouts, [server_experts(rollout) for rollout in rollouts]
        ),
        "rollout_sample_support": _all_or_none(
            "kept.npy", rollouts, [_support(rollout) for rollout in rollouts]
        ),
        "is_last_step": _all_or_none(
            "is_last_step", rollouts, [rollout.column("is_last_step") for rollout in rollouts]
        ),
        # What a rollout does not hold: a TypedDict may lack no name.
        "trajectory_generation_times": None,
        "trajectory_time_splits": None,
        "env_metrics": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }


def _rewards(rollouts: list[StoredRollout]) -> list[Any]:
    by_token = _response_lists("rewards.npy", rollouts)
    if by_token is not None:
        return by_token
    rewards = _all_or_none("reward", rollouts, [rollout.column("reward") for rollout in rollouts])
    if rewards is None:
        raise InvalidSample("no rollout has a reward; SkyRL needs one for each")
    return rewards


def _response_lists(
    field: str,
    rollouts: list[StoredRollout],
) -> list[Any] | None:
    lists: list[Any] = []
    for rollout in rollouts:
        values = rollout.per_token(field)
        if values is None:
            lists.append(None)
        else:
            lists.append(values[rollout.n_prompt :].tolist())
    return _all_or_none(field, rollouts, lists)


def _support(rollout: StoredRollout) -> NDArray[np.int32] | None:
    n_kept = rollout.per_token("kept_n.npy")
    kept = rollout.rows("kept.npy")
    if n_kept is None or kept is None:
        return None
    n_kept = n_kept.astype(np.int64)
    check_length(f"{rollout.where}: kept.npy", kept, int(n_kept.sum()), "the sum of kept_n.npy")
    columns = np.arange(n_kept.max(initial=0))
    support = np.full((len(n_kept), len(columns)), NO_TOKEN, np.int32)
    support[columns < n_kept[:, None]] = kept
    return support[rollout.n_prompt :]


def _trajectories(rollouts: list[StoredRollout]) -> list[dict[str, Any]]:
    numbers: dict[str, dict[str, int]] = {}
    entries = []
    for rollout in rollouts:
        group = rollout.column("group_id")
        if not group:
            raise InvalidSample(f"{rollout.where} has no group_id; select it in the view")
        in_group = numbers.setdefault(group, {})
        trajectory = rollout.column("trajectory_id") or rollout.key
        number = in_group.setdefault(trajectory, len(in_group))
        repetition = rollout.column("repetition_id")
        if repetition is None:
            repetition = number
        entries.append({"instance_id": group, "repetition_id": repetition})
    return entries


def _all_or_none(
    name: str,
    rollouts: list[StoredRollout],
    values: list[Any],
) -> list[Any] | None:
    """Return `values`, or None if all are None. Raises: InvalidSample if only some are."""
    lacking = [rollout.where for rollout, value in zip(rollouts, values, strict=True) if value is None]
    if len(lacking) == len(values):
        return None
    if lacking:
        raise InvalidSample(f"{lacking[0]} has no {name}, others of the batch have; SkyRL takes all or none")
    return values
