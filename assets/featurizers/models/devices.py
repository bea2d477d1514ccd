"""Choose a model's device, and make torch repeatable."""

import ctypes
import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from assets import invalid_option
from loader.errors import ModelFailed
from penstock.compute.pool.environment import visible_gpus

T = TypeVar("T")

DTYPES = ("float32", "bfloat16", "float16")

_DEVICE = re.compile(r"cpu|cuda(:[0-9]+)?")


def check_device_name(device: str) -> None:
    """Check that a device is "auto", "cpu", "cuda" or "cuda:<number>". Raises: InvalidSpec."""
    if device != "auto" and not _DEVICE.fullmatch(device):
        raise invalid_option("device", device, "'auto', 'cpu', 'cuda', 'cuda:<number>'")


def process_device(device: str, place: str) -> str:
    """Return where a model with this `device` setting runs in this process: "cpu" or "cuda:<number>".

    place: a worker's torch device; "" if none is assigned.
    """
    if device == "cpu":
        return device
    if device == "auto":
        import torch

        if torch.cuda.is_available():
            return place or "cuda:0"
        return "cpu"
    if place == "cpu":
        raise ModelFailed(
            f"device={device!r}, but this worker has no GPU: set `gpus` in the slot of the cluster's file, or use "
            "device='cpu' (the bits change, so all features are computed again)",
            what="device",
            where="this worker",
            given=device,
            accepted="cpu",
        )
    return place or (device if ":" in device else "cuda:0")


def device_gpus(device: str) -> tuple[str, ...]:
    """Return this machine's GPUs for a model with this `device` setting, as in CUDA_VISIBLE_DEVICES."""
    if device == "cpu":
        return ()
    _, _, number = device.partition(":")
    if number:
        return visible_gpus()[int(number) :][:1]
    return visible_gpus()


def check_device(place: str) -> None:
    """Check that torch can use the device `place` here. Raises: ModelFailed."""
    import torch

    if place.startswith("cuda"):
        there = 0
        if torch.cuda.is_available():
            there = torch.cuda.device_count()
        if torch.device(place).index >= there:
            raise ModelFailed(
                f"no device {place} here: torch {torch.__version__} finds {there} GPUs. Run on a machine with one, or "
                "with device='cpu' (the bits change, so all features are computed again)",
                what="device",
                given=place,
                accepted=there,
            )


_settings_lock = threading.RLock()  # torch's settings are process-wide


@contextmanager
def repeatable() -> Iterator[None]:
    """Make torch return the same bits for the same batch within the block; one thread at a time.

    Sets deterministic kernels (or an error), full float32 precision, no autotuning, no gradients, and one thread,
    because their number decides how sums are split.
    """
    import torch

    # cuBLAS reads this at start; otherwise torch refuses matrix products in deterministic mode. Always set: another
    # value would choose other kernels.
    os.putenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with _settings_lock:
        n_threads = torch.get_num_threads()
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        precision = torch.get_float32_matmul_precision()
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("highest")
        flags = torch.backends.cudnn.flags(
            enabled=True,
            benchmark=False,
            deterministic=True,
            allow_tf32=False,
        )
        try:
            with torch.inference_mode(), flags:
                yield
        finally:
            torch.set_num_threads(n_threads)
            torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
            torch.set_float32_matmul_precision(precision)


def measure_bytes(place: str, work: Callable[[], T]) -> tuple[T, int]:
    """Return (result of `work`, peak bytes that it added; 0 if not measurable)."""
    import torch

    if place.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(place)
        before = torch.cuda.memory_allocated(place)
        value = work()
        return value, torch.cuda.max_memory_allocated(place) - before
    _trim()  # reused free memory would hide what `work` takes
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return work(), 0
    before = _resident_bytes("VmRSS")
    value = work()
    return value, max(0, _resident_bytes("VmHWM") - before)


def _trim() -> None:
    gc.collect()
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes(line: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{line}:\s*(\d+) kB", status, re.M)[1]) * 1024  # type: ignore[index]


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device, or the CPU's allocator, ran out of memory."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def free_memory(place: str) -> None:
    """Release torch's cached blocks to the device."""
    import torch

    if place.startswith("cuda"):
        torch.cuda.empty_cache()


def budget_bytes(place: str) -> int:
    """Return the default bytes for batches: 0.8 of a GPU's free memory; 1 GiB per worker on a CPU."""
    import torch

    if place.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(place)
        return int(free * 0.8)
    return 1 << 30
