"""torch's types of elements by the names that safetensors has for them, and bytes of tensors without a copy.

`weights_only=True` did not hold in every release of torch. Before 2.6 a file could run code (CVE-2025-32434). Before
2.10 it could overwrite memory (CVE-2026-24747). pyproject.toml has the same bound; `check_torch` finds an older torch
that was installed in spite of it.
"""

import re
from typing import Any

import numpy as np
import torch

from loader.errors import InvalidField, MissingDependency

LEAST = (2, 10)


def check_torch() -> None:
    """Check torch's release. Raises: MissingDependency for one that is too old, or does not say how old it is."""
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None or (int(match[1]), int(match[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise MissingDependency(
            f"torch {torch.__version__} is installed, and a forged checkpoint can run code in it when "
            f"it is loaded (CVE-2025-32434, CVE-2026-24747); accepted: {least} or newer: pip install 'torch>={least}'"
        )


DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "BOOL": torch.bool,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """Return safetensors' name of a tensor's type. Raises: InvalidField for a type that it has no name for."""
    if dtype not in _NAMES:
        accepted = ", ".join(str(known).removeprefix("torch.") for known in _NAMES)
        raise InvalidField(
            f"{name} has elements of {dtype}; a checkpoint holds {accepted}: save it as one of these"
        )
    return _NAMES[dtype]


def content(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's bytes in row-major order, copied only where they do not lie so in this machine's memory."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def fill(target: torch.Tensor, dtype: torch.dtype, source: "np.ndarray[Any, Any]") -> None:
    """Copy words of memory into a tensor as elements of `dtype`, converted where it has others.

    source: an array of the target's shape whose elements are as wide as `dtype`'s, of any type.
    """
    if is_plain(target, dtype):
        np.copyto(words(target), source)
        return
    buffer = torch.empty(target.shape, dtype=dtype)
    np.copyto(words(buffer), source)
    target.copy_(buffer)


def is_plain(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a tensor's memory holds elements of `dtype` as they are stored."""
    return target.device.type == "cpu" and target.dtype == dtype and not (target.is_conj() or target.is_neg())


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, to write into."""
    return words(tensor).reshape(-1).view(np.uint8).data


def words(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """Return a CPU tensor's memory as whole numbers as wide as its elements; numpy has no bfloat16."""
    return tensor.detach().view(_WORDS[tensor.element_size()]).numpy()
