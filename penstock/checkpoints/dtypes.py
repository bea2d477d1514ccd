"""Element types of torch and safetensors, and tensor bytes without copying."""

import re
from typing import Any

import numpy as np
import torch

from loader.errors import InvalidField, MissingDependency

# `weights_only=True` could run code before 2.6 (CVE-2025-32434) and overwrite memory before 2.10 (CVE-2026-24747).
LEAST = (2, 10)


def check_torch() -> None:
    """Raise MissingDependency for a torch that is too old, which pip does not exclude."""
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if match is None or (int(match[1]), int(match[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise MissingDependency(
            f"torch {torch.__version__} is installed, and a forged checkpoint can run code in it when "
            f"it is loaded (CVE-2025-32434, CVE-2026-24747); accepted: {least} or newer: pip install 'torch>={least}'",
            what="torch",
            given=torch.__version__,
            accepted=f"{least} or newer",
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
    """Return safetensors' name. Raises: InvalidField if there is none."""
    if dtype not in _NAMES:
        accepted = ", ".join(str(known).removeprefix("torch.") for known in _NAMES)
        message = f"{name} has elements of {dtype}; a checkpoint holds {accepted}: save it as one of these"
        raise InvalidField(message, what=name, given=dtype, accepted=accepted)
    return _NAMES[dtype]


def content(tensor: torch.Tensor) -> memoryview:
    """Return bytes in row-major order, copied only if necessary."""
    # torch keeps conjugation and negation as a flag; the bytes would lack them.
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def fill(target: torch.Tensor, dtype: torch.dtype, source: "np.ndarray[Any, Any]") -> None:
    """Copy raw elements into a tensor, converting from `dtype` if necessary.

    source: array of the target's shape that holds the bits of `dtype` elements as integers of equal width.
    """
    if is_plain(target, dtype):
        np.copyto(words(target), source)
        return
    # numpy cannot write into a GPU or another element type: torch converts the second copy.
    buffer = torch.empty(target.shape, dtype=dtype)
    np.copyto(words(buffer), source)
    target.copy_(buffer)


def is_plain(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a tensor is on the CPU with plain `dtype` elements."""
    return target.device.type == "cpu" and target.dtype == dtype and not (target.is_conj() or target.is_neg())


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return a contiguous CPU tensor's writable memory."""
    return words(tensor).reshape(-1).view(np.uint8).data


def words(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """Return memory as integers of the element width, because numpy has no bfloat16."""
    return tensor.detach().view(_WORDS[tensor.element_size()]).numpy()
