"""verl's `AgentLoopOutput`: one trajectory, its prompt apart from its response."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader

from .records import Sample, StoredRollout, array, behind_prompt, member, refuse_images
from .routed_experts import padded_experts, server_experts

_TEACHER_FIELDS = {"teacher_logprobs": "teacher_logprobs.npy", "teacher_ids": "teacher_ids.npy"}
"""Name in `extra_fields` -> field."""


def from_agent_loop_output(
    key: str,
    output: Any,
    *,
    group_id: str,
    **rollout_arguments: Any,
) -> Sample:
    """Return the rollout of an `AgentLoopOutput`, a sample for `root.write` and `loader.write_part`.

    verl states the policy versions of a response as one range. Unless you pass `versions=` (int [T], or one number),
    each sampled token gets the oldest of the range, so that no lag is understated. The column max_global_steps holds
    the newest. `metrics` and other extra fields are not stored: pass what you need as a column.

    Args:
        key: Key of the sample.
        output: `AgentLoopOutput`, or a mapping of its fields.
        group_id: Rollouts of one prompt, such as verl's uid.
        **rollout_arguments: Further arguments of `loader.rollout`, such as env, prompt_id, media.

    Raises: InvalidSample.
    """
    where = f"rollout {key!r}"
    for name in ("multi_modal_data", "mm_processor_output"):
        refuse_images(f"{where}: {name}", member(output, name), rollout_arguments)
    prompt = array(f"{where}: prompt_ids", member(output, "prompt_ids"))
    response = array(f"{where}: response_ids", member(output, "response_ids"))
    n_prompt = len(prompt)
    n_response = len(response)
    mask = behind_prompt(
        f"{where}: response_mask",
        member(output, "response_mask"),
        n_prompt,
        n_response,
        0,
    )
    logprobs = member(output, "response_logprobs")
    if logprobs is not None:
        logprobs = behind_prompt(f"{where}: response_logprobs", logprobs, n_prompt, n_response, 0)

    extra = member(output, "extra_fields") or {}
    fields = _fields(where, output, extra, mask)
    fields.update(rollout_arguments.pop("fields", {}))
    columns = {"n_prompt_tokens": n_prompt, "num_turns": member(output, "num_turns"), **rollout_arguments}
    oldest = extra.get("min_global_steps", extra.get("global_steps"))
    newest = extra.get("max_global_steps", oldest)
    if "versions" not in columns and oldest is not None:
        columns["versions"] = oldest
        columns["max_global_steps"] = newest
    return loader.rollout(
        key,
        np.concatenate([prompt, response]),
        mask,
        group_id=group_id,
        logprobs=logprobs,
        reward=member(output, "reward_score"),
        fields=fields,
        **columns,
    )


def _fields(
    where: str,
    output: Any,
    extra: Mapping[str, Any],
    mask: NDArray[Any],
) -> dict[str, Any]:
    fields = {}
    experts = member(output, "routed_experts")
    if experts is not None:
        is_sampled = mask.astype(bool)
        fields["experts.npy"] = padded_experts(f"{where}: routed_experts", experts, is_sampled)
    for name, field in _TEACHER_FIELDS.items():
        if extra.get(name) is not None:
            fields[field] = array(f"{where}: {name}", extra[name], 2)
    return fields


def to_agent_loop_output(
    sample: Any,
    *,
    multi_modal_data: Any = None,
) -> dict[str, Any]:
    """Return the fields of an `AgentLoopOutput` of a rollout.

    Args:
        sample: Result of `loader.rollout`, or `view[i]` of a view with the columns that you need.
        multi_modal_data: Images of the prompt, if the rollout has `media.npy`.

    Raises: InvalidSample.
    """
    rollout = StoredRollout(sample)
    rollout.refuse_media(multi_modal_data)
    n_prompt = rollout.n_prompt
    logprobs = rollout.per_token("logprobs.npy")
    response_logprobs = None
    if logprobs is not None:
        response_logprobs = logprobs[n_prompt:].tolist()
    num_turns = rollout.column("num_turns")
    if num_turns is None:
        num_turns = rollout.column("n_turns") or 0
    return {
        "prompt_ids": rollout.tokens[:n_prompt].tolist(),
        "response_ids": rollout.tokens[n_prompt:].tolist(),
        "response_mask": rollout.mask[n_prompt:].astype(int).tolist(),
        "response_logprobs": response_logprobs,
        "routed_experts": server_experts(rollout),
        "multi_modal_data": multi_modal_data,
        "reward_score": rollout.column("reward"),
        "num_turns": num_turns,
        "metrics": {},
        "extra_fields": _extra_fields(rollout),
    }


def _extra_fields(rollout: StoredRollout) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    for name, field in _TEACHER_FIELDS.items():
        rows = rollout.per_token(field)
        if rows is not None:
            extra[name] = rows
    versions = rollout.per_token("versions.npy")
    if versions is None or not rollout.mask.any():
        return extra
    sampled_versions = versions[rollout.mask]
    newest = rollout.column("max_global_steps")
    if newest is None:
        newest = sampled_versions.max()
    extra["min_global_steps"] = int(sampled_versions.min())
    extra["max_global_steps"] = int(newest)
    return extra
