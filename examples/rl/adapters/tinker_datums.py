"""tinker's `Datum`: the tokens but the last as input, and rows of the loss for the tokens but the first."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.errors import InvalidSample

from .records import Sample, StoredRollout, array, check_length, member

_MASKS = ("mask", "weights", "sequence_ratio_mask")
"""Inputs that mark sampled tokens: of the cookbook's RL, of cross-entropy, of GSPO."""


def from_datum(
    key: str,
    datum: Any,
    *,
    group_id: str,
    mask: Any = None,
    **rollout_arguments: Any,
) -> Sample:
    """Return the rollout of a `Datum`. Its provenance spans are not stored.

    Args:
        key: Key of the sample.
        datum: `Datum`, or a mapping of its fields.
        group_id: Rollouts of one prompt.
        mask: [T - 1], 1 for a sampled target; None takes the input mask, weights or sequence_ratio_mask.
        **rollout_arguments: Further arguments of `loader.rollout`, such as reward and versions.

    Raises: InvalidSample.
    """
    where = f"rollout {key!r}"
    inputs = member(datum, "loss_fn_inputs") or {}
    begin = _input_tokens(where, member(datum, "model_input"))
    targets = _loss_input(where, inputs, "target_tokens", len(begin))
    if targets is None:
        raise InvalidSample(f"{where}: target_tokens is missing; it holds the last token")
    if not len(targets):
        raise InvalidSample(f"{where}: model_input has no token")
    if mask is None:
        mask = _stored_mask(where, inputs, len(begin))
    is_target = array(f"{where}: mask", mask)
    check_length(f"{where}: mask", is_target, len(begin), "target_tokens")
    tokens = np.concatenate([begin, targets[-1:]])
    # A target that is not trained may hold any token: some loops write 0.
    is_trained = is_target != 0
    differs = is_trained & (targets != tokens[1:])
    if differs.any():
        position = int(differs.argmax())
        raise InvalidSample(
            f"{where}: target_tokens has {targets[position]} at {position}, model_input {tokens[position + 1]} after it"
        )

    fields = dict(rollout_arguments.pop("fields", {}))
    advantages = _loss_input(where, inputs, "advantages", len(begin))
    if advantages is not None:
        fields["advantages.npy"] = _behind_first(advantages)
    logprobs = _loss_input(where, inputs, "logprobs", len(begin))
    if logprobs is not None:
        logprobs = _behind_first(logprobs)
    return loader.rollout(
        key,
        tokens,
        _behind_first(_truth_values(where, is_target)),
        group_id=group_id,
        logprobs=logprobs,
        fields=fields,
        **rollout_arguments,
    )


def _input_tokens(
    where: str,
    model_input: Any,
) -> NDArray[Any]:
    pieces = [np.zeros(0, np.int64)]
    chunks = member(model_input, "chunks") or []
    for number, chunk in enumerate(chunks):
        tokens = member(chunk, "tokens")
        if tokens is None:
            raise InvalidSample(
                f"{where}: chunk {number} of model_input is {member(chunk, 'type')!r}; encoded_text is needed. Write "
                "images to a dataset of their own"
            )
        pieces.append(array(f"{where}: chunk {number}", tokens))
    return np.concatenate(pieces)


def _loss_input(
    where: str,
    inputs: Any,
    name: str,
    n_targets: int,
) -> NDArray[Any] | None:
    """Return an input of the loss, [T - 1]: a `TensorData`, its mapping, an array or a list."""
    value = member(inputs, name)
    if value is None:
        return None
    is_tensor_data = isinstance(value, Mapping) or hasattr(value, "sparse_crow_indices")
    if is_tensor_data:
        if member(value, "sparse_crow_indices") is not None:
            raise InvalidSample(f"{where}: {name} is sparse, several targets per token; one is needed")
        shape = member(value, "shape")
        value = member(value, "data")
        is_flat = shape is None or list(shape) == [len(value)]
        if not is_flat:
            raise InvalidSample(f"{where}: {name} has shape {list(shape)}; one target per token is needed")
    values = array(f"{where}: {name}", value)
    check_length(f"{where}: {name}", values, n_targets, "model_input")
    return values


def _stored_mask(
    where: str,
    inputs: Any,
    n_targets: int,
) -> NDArray[Any]:
    for name in _MASKS:
        values = _loss_input(where, inputs, name, n_targets)
        if values is not None:
            return values
    raise InvalidSample(f"{where}: loss_fn_inputs has none of {', '.join(_MASKS)}; pass mask=")


def _truth_values(
    where: str,
    values: NDArray[Any],
) -> NDArray[np.bool_]:
    is_truth_value = (values == 0) | (values == 1)
    wrong = values[~is_truth_value]
    if len(wrong):
        raise InvalidSample(f"{where}: the mask has the value {wrong[0]}; accepted: 0 and 1")
    return values.astype(bool)


def _behind_first(values: NDArray[Any]) -> NDArray[Any]:
    """Return [T]: 0 for the first token, which nothing predicts, then the rows of the others."""
    first = np.zeros(1, values.dtype)
    return np.concatenate([first, values])


def to_datum(
    sample: Any,
    *,
    mask_name: str = "mask",
) -> dict[str, Any]:
    """Return the fields of a `Datum` of a rollout, with a mapping for each `TensorData`.

    Args:
        sample: Result of `loader.rollout`, or `view[i]`.
        mask_name: Input that marks sampled tokens. The cookbook removes "mask" before it sends; cross_entropy takes
            "weights".

    Raises: InvalidSample.
    """
    rollout = StoredRollout(sample)
    rollout.refuse_media(None)
    rollout.refuse_sampled_beginning("loss_fn_inputs")
    if len(rollout.tokens) < 2:
        raise InvalidSample(f"{rollout.where} has one token; a Datum needs an input and a target")
    inputs = {
        "target_tokens": _tensor_data(rollout.tokens[1:], "int64"),
        mask_name: _tensor_data(rollout.mask[1:], "float32"),
    }
    for name, field in {"logprobs": "logprobs.npy", "advantages": "advantages.npy"}.items():
        values = rollout.per_token(field)
        if values is not None:
            inputs[name] = _tensor_data(values[1:], "float32")
    chunk = {"type": "encoded_text", "tokens": rollout.tokens[:-1].tolist()}
    return {"model_input": {"chunks": [chunk]}, "loss_fn_inputs": inputs}


def _tensor_data(
    values: NDArray[Any],
    dtype: str,
) -> dict[str, Any]:
    return {"data": values.astype(dtype).tolist(), "dtype": dtype, "shape": [len(values)]}
