"""Devices that a model runs on; settings that give the same bits twice."""

import ctypes
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from loader.errors import ModelFailed
from penstock.compute.pool.environment import visible_gpus

T = TypeVar("T")

DTYPES = ("float32", "bfloat16", "float16")

_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")


def check_device_name(device: str) -> None:
    """Check that a device is "auto", "cpu", "cuda" or "cuda:1". Raises: ValueError."""
    if device != "auto" and not _DEVICE.fullmatch(device):
        raise ValueError(f"device={device!r}; accepted: 'auto', 'cpu', 'cuda', 'cuda:<number>'")


def device_at(device: str, place: str) -> str:
    """Return "cpu" or "cuda:<number>": where a model of that `device` runs in this process.

    place: "cpu" or "cuda:0" of a worker, "" for a process that is bound to nothing.
    """
    if device == "cpu":
        return device
    if device == "auto":
        import torch

        return (place or "cuda:0") if torch.cuda.is_available() else "cpu"
    if place == "cpu":
        raise ModelFailed(
            f"device={device!r}, and no GPU is given here: set `gpus` in the slot of the cluster's file, or take "
            "device='cpu' (that makes other bits, so everything is computed again)"
        )
    return place or (device if ":" in device else "cuda:0")


def gpus_for(device: str) -> tuple[str, ...]:
    """Return the GPUs of this machine that a model of that `device` takes, as CUDA_VISIBLE_DEVICES names them."""
    if device == "cpu":
        return ()
    _, _, number = device.partition(":")
    return visible_gpus()[int(number) :][:1] if number else visible_gpus()


def check_device(place: str) -> None:
    """Check that torch can use a device here. Raises: ModelFailed."""
    import torch

    if place.startswith("cuda"):
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if torch.device(place).index >= there:
            raise ModelFailed(
                f"no device {place} here: torch {torch.__version__} sees {there} GPUs. Run where there is one, or "
                "with device='cpu' (that makes other bits, so everything is computed again)"
            )


_settings = threading.RLock()  # they are the whole process's


@contextmanager
def repeatable() -> Iterator[None]:
    """Set torch to give the same bits for the same batch, until the end; in one thread at a time.

    One thread per operation: how a sum is split depends on their number, and workers already fill the cores.
    Deterministic kernels or an error, full float32 precision, no kernel chosen by a stopwatch, no gradients.
    """
    import torch

    # Read by cuBLAS when it starts: without it torch refuses matrix products in deterministic mode. Set for this
    # process in any case: another value from outside would be another choice of kernels.
    os.putenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with _settings:
        before = (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_float32_matmul_precision(),
        )
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("highest")
        flags = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        try:
            with torch.inference_mode(), flags:
                yield
        finally:
            torch.set_num_threads(before[0])
            torch.use_deterministic_algorithms(before[1], warn_only=before[2])
            torch.set_float32_matmul_precision(before[3])


def measured_bytes(place: str, work: Callable[[], T]) -> tuple[T, int]:
    """Return (result of the work, most bytes that it held beyond those held before).

    A GPU's bytes are by torch's own account. A CPU's are by the kernel's high-water mark of resident memory, 0 where
    the kernel keeps none that can be reset.
    """
    import torch

    if place.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        value = work()
        return value, torch.cuda.max_memory_allocated(place) - before
    _trim()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return work(), 0
    before = _resident_bytes("VmRSS")
    value = work()
    return value, max(0, _resident_bytes("VmHWM") - before)


def _trim() -> None:
    """Give garbage, and freed memory that the allocator keeps, back to the kernel.

    Used again, or freed in the midst of the work, it would hide the bytes that the work takes.
    """
    gc.collect()
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes(line: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{line}:\s*(\d+) kB", status, re.M)[1]) * 1024  # type: ignore[index]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device, or the allocator of the CPU, had no more."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def free_memory(place: str) -> None:
    """Give cached blocks back to the device."""
    import torch

    if place.startswith("cuda"):
        torch.cuda.empty_cache()


def budget_bytes(place: str) -> int:
    """Return the bytes for batches where none are stated: 0.8 of the free ones of a GPU; 1 GiB of a CPU, per worker."""
    import torch

    if place.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(place)
        return int(free * 0.8)
    return 1 << 30
