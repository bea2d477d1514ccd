"""Let all ranks leave after the same step.

An all-reduce carries each rank's stop request. It begins after step n and is read after step n + 1, so no rank waits.
It uses the default process group; another gloo group would connect every rank to every other.

An exchange costs a gloo rank 0.2 to 0.5 ms of processor time. Short steps therefore skip some exchanges, for at most
0.5 s. The ranks exchange that number too: the smallest counts.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from .launched import Launched


class Collective:
    """One collective of the default group at a time, beside the training. Every rank begins as many as the others.

    device: the group's device, "cpu" for gloo.
    """

    def __init__(self, device: Any) -> None:
        self._device: Any = device
        self._begun: Any = None
        """(torch's work, tensor of the result on the host, event of its copy or None for gloo); None without one."""
        self._stream: Any = None
        """Stream of the copies; None for gloo, and before the first collective."""

    def reduce(self, values: Sequence[int]) -> None:
        """Start an all-reduce of each value's maximum over the ranks."""
        import torch

        self._begin(torch.tensor(values, dtype=torch.int32), gathers=False)

    def gather(self, data: bytes) -> None:
        """Begin to gather every rank's bytes, of one length, in the order of ranks."""
        import torch

        self._begin(torch.frombuffer(bytearray(data), dtype=torch.uint8), gathers=True)

    def is_done(self) -> bool:
        """Return whether `result` would not wait."""
        if self._begun is None:
            return True
        work, _, copied = self._begun
        if copied is None:
            return bool(work.is_completed())
        return bool(copied.query())

    def result(self) -> Any:
        """Return the result as a tensor of the host, and forget it; None without a collective."""
        if self._begun is None:
            return None
        work, tensor, copied = self._begun
        self._begun = None
        if copied is None:
            work.wait()
        else:
            copied.synchronize()
        return tensor

    def _begin(self, tensor: Any, *, gathers: bool) -> None:
        import torch

        if self._device.type != "cuda":
            work, result = _start_collective(tensor, gathers)
            self._begun = work, result, None
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # On a stream of its own: read from the training's stream, the host would wait for all kernels of a step.
        with torch.cuda.stream(self._stream):
            work, result = _start_collective(tensor.pin_memory().to(self._device, non_blocking=True), gathers)
            work.wait()  # the stream waits, not the host
            host = torch.empty_like(result, device="cpu", pin_memory=True)
            host.copy_(result, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._begun = work, host, copied


def _start_collective(tensor: Any, gathers: bool) -> tuple[Any, Any]:
    """Return the collective and the tensor of its result."""
    from torch import distributed

    if not gathers:
        return distributed.all_reduce(tensor, distributed.ReduceOp.MAX, async_op=True), tensor
    result = tensor.new_empty(len(tensor) * distributed.get_world_size())
    # torch 2.13 names it anew
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    return gather(result, tensor, async_op=True), result


EVERY_S = 0.5
"""Most seconds of median steps from one exchange to the next, unless a step is longer."""
MOST_STEPS = 10
"""Most steps from one exchange to the next: they may become long."""


def begin_group(launched: Launched, device: Any) -> bool:
    """Begin the default process group. Return False without one to begin: the script has, or there is one process."""
    from torch import distributed

    if not launched.grouped or distributed.is_initialized():
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend,
        init_method=launched.meeting,
        rank=launched.world.rank,
        world_size=launched.world.world_size,
    )
    return True


def default_group() -> Any | None:
    """Return the default process group; None without one."""
    from torch import distributed

    if not distributed.is_initialized():
        return None
    return distributed.group.WORLD


def leave_group() -> None:
    """Leave the default process group."""
    from torch import distributed

    distributed.destroy_process_group()


def collective_device(device: Any) -> Any | None:
    """Return where the values of a collective are: on this rank's device for nccl, else in memory.

    None without a default process group.
    """
    import torch
    from torch import distributed

    if not distributed.is_initialized():
        return None
    if "nccl" in str(distributed.get_backend()):
        return device
    return torch.device("cpu")


class Agreement:
    """The greatest values that any rank gave, one call behind. Every rank calls it as often as the others.

    device: the default group's device, "cpu" for gloo; None for a single process, whose values come back at once.
    """

    def __init__(self, device: Any | None) -> None:
        self._collective = None if device is None else Collective(device)
        self._every = 1
        """Calls from one exchange to the next, alike on all ranks."""
        self._calls = 0
        """Calls since the last exchange began."""
        self._step_s = 0.0
        """Median seconds of a step; 0 while it is not known."""
        self._begun_s = perf_counter()
        """Clock at which the last exchange began."""

    def exchange(self, values: Callable[[], Sequence[int]], step_s: float | None = None) -> list[int] | None:
        """Begin to exchange values, unless a short step skips it; return the greatest values of the last exchange.

        None if they were returned already, or no exchange has begun.

        step_s: Median seconds of a step, after a step; 0 while it is not known. None elsewhere: it exchanges always.
        """
        if self._collective is None:
            return [*values()]
        greatest: list[int] | None = None
        if (result := self._collective.result()) is not None:
            *greatest, every = result.tolist()
            self._every = max(1, -every)
        self._calls += 1
        self._step_s = self._step_s if step_s is None else step_s
        # Ranks count calls alike and have one `_every`, so all of them begin the same exchange.
        if step_s is None or self._calls >= self._every:
            now_s = perf_counter()
            # The median follows steps that become long after half of its steps only.
            pace_s = 0.0
            if self._step_s:
                pace_s = max(self._step_s, (now_s - self._begun_s) / self._calls)
            self._calls = 0
            self._begun_s = now_s
            # Negative, so that the maximum over the ranks is the smallest interval.
            self._collective.reduce([*values(), -_exchange_interval(pace_s)])
        return greatest

    def close(self) -> None:
        """Wait for the exchange on its way: a group may not end before."""
        if self._collective is not None:
            self._collective.result()


def _exchange_interval(step_s: float) -> int:
    """Return the steps from one exchange to the next that suit a rank."""
    if step_s:
        return max(1, min(MOST_STEPS, int(EVERY_S / step_s)))
    return 1
