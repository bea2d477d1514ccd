"""Torch tensors of items as the arrays of another framework."""

import sys
from collections.abc import Mapping
from typing import Any

from ..batch.nested_values import leaves, with_changed_leaves


def with_arrays(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with numpy arrays instead of torch tensors, also within lists, tuples and mappings.

    A tensor of a dtype that numpy lacks, such as bfloat16, stays a tensor.
    """
    tensor_type = _tensor_type()
    if tensor_type is None:
        return dict(fields)

    def changed(value: Any) -> Any:
        if isinstance(value, tensor_type):
            return _array(value)
        return value

    return {name: with_changed_leaves(value, changed) for name, value in fields.items()}


def column_with_arrays(values: list[Any]) -> list[Any]:
    """Return one field's values in several samples as `with_arrays` does; the list itself if no value may change."""
    tensor_type = _tensor_type()
    if tensor_type is None:
        return values
    kinds = set(map(type, values))
    if kinds == {tensor_type}:
        return [_array(value) for value in values]
    for kind in kinds:
        if issubclass(kind, tensor_type | list | tuple | Mapping):
            return [with_arrays({"": value})[""] for value in values]
    return values


def device_beyond_memory(value: Any) -> str | None:
    """Return the device of the first tensor in a value that is not in this machine's memory; None without one."""
    tensor_type = _tensor_type()
    if tensor_type is None:
        return None
    for leaf in leaves(value):
        if isinstance(leaf, tensor_type) and leaf.device.type != "cpu":
            return str(leaf.device)
    return None


def _tensor_type() -> Any:
    # Only a dataset that imported torch returns its tensors. The attribute is missing while torch is being imported.
    return getattr(sys.modules.get("torch"), "Tensor", None)


def _array(tensor: Any) -> Any:
    try:
        return tensor.numpy()
    except (RuntimeError, TypeError):
        pass  # a gradient, a lazy conjugate, a device or a dtype that numpy lacks
    if tensor.is_sparse or tensor.is_quantized:
        return tensor
    on_host = tensor.detach().cpu()
    plain = on_host.resolve_conj().resolve_neg()
    try:
        return plain.numpy()
    except TypeError:  # bfloat16 and the float8 dtypes
        return tensor
