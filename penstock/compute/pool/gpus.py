"""Count GPUs without importing torch, and bind a worker to some of them until it ends."""

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
PLACE = "PENSTOCK_PLACE"
"""Variable of a bound worker: its device."""
_CUDA_BUILD = re.compile(r"^cuda\b[^=]*=\s*['\"]", re.M)


def visible_gpus() -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES, or the numbers of all GPUs that torch would use."""
    variable = os.environ.get(VISIBLE)
    if variable is None:
        return tuple(map(str, range(n_gpus())))
    entries = []
    for entry in map(str.strip, variable.split(",")):
        if not entry or entry.startswith("-") or entry == "NoDevFiles":  # CUDA reads no further
            break
        entries.append(entry)
    return tuple(entries)


def shares(gpus: Sequence[str], each: int) -> tuple[str, ...]:
    """Return the GPUs in groups of `each`, as values of CUDA_VISIBLE_DEVICES. A smaller rest is dropped."""
    return tuple(",".join(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each))


def bound_to(share: str) -> Mapping[str, str]:
    """Return the variables of a worker bound to a share."""
    return {VISIBLE: share, PLACE: "cuda:0"}


def place_here() -> str:
    """Return "cuda:0" in a worker that is bound to a GPU, else ""."""
    return os.environ.get(PLACE, "")


@cache
def n_gpus() -> int:
    """Return the number of GPUs that a CUDA build of torch would use, from the driver."""
    if not _built_for_cuda():
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no driver
        return 0
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def _built_for_cuda() -> bool:
    spec = find_spec("torch")  # imports nothing
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.exists() and _CUDA_BUILD.search(version.read_text()) is not None
