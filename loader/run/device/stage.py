"""Backends of devices, and the copy thread: it takes batches in order, and keeps two on the device for the training.

It keeps each host batch until its copy has ended; the memory may hold a later batch after that.
"""

import os
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import InvalidRuntime, MissingDependency
from ...storage.threads import LEAVE_S, AwaitedThread, ends_with_the_process
from ..batch.batch import Batch
from ..batch.frameworks import import_framework
from ..executor import Execution
from ..making.prefetch import WAKE_UP_S
from ..metrics import Metrics
from .device_backend import Copy, DeviceBackend

if TYPE_CHECKING:
    from ..trail.recorder import Recorder

AHEAD = 2
"""Batches ready on the device: while training uses one, a second is ready and a third is being copied."""

Checksums = dict[str, int] | None


class OnDevice(NamedTuple):
    step: int
    """Global step."""
    batch: Batch
    crcs: Checksums
    """Field -> CRC-32C of its values on the host; None unless the run log records the step."""
    copy: Copy
    """Copy of the batch, possibly still running."""
    copied_s: float
    """`perf_counter` when the copy had started."""


class _Position(NamedTuple):
    step: int
    end: int | None
    run: int


class DeviceStage:
    """Delivers batches on the device, in order. Any thread may call `dismiss`; one at a time calls `take`."""

    def __init__(
        self,
        backend: DeviceBackend,
        host_batch: Callable[[int, int | None], Batch],
        checksums: Callable[[Batch], Checksums] = lambda batch: None,
        metrics: Metrics | None = None,
        *,
        starts_at_second_request: bool = False,
    ) -> None:
        """host_batch: (step, end) -> batch, called by the copy thread. checksums: batch -> checksums."""
        self._backend = backend
        self._host_batch = host_batch
        self._checksums = checksums
        self._metrics = metrics or Metrics()
        self._pid = os.getpid()
        self._changed = Condition()
        self._ready: deque[OnDevice] = deque()
        self._position: _Position | None = None
        self._runs = 0
        self._error: BaseException | None = None  # error of the step in `_position`
        self._stopped = False
        self._first = -1  # step of the first `take`
        self._starts_at_second_request = starts_at_second_request  # as for `Prefetch`
        self._thread: Thread | None = None

    def take(self, step: int, end: int | None) -> OnDevice:
        """Return the batch of `step`; the next ones (below `end`) are copied meanwhile.

        Raises: errors from making or copying it, after the batches before it; InvalidRuntime after `dismiss`.
        """
        requested_s = perf_counter()
        with self._changed:
            if self._starts_at_second_request and self._first >= 0:
                self._starts_at_second_request = False
                self._changed.notify_all()
            self._first = step
            self._seek(step, end)
            while not self._ready:
                if self._stopped:
                    raise InvalidRuntime("this Loader was closed while a batch was waited for")
                if self._error is not None:
                    self._position = None
                    try:
                        raise self._error  # never a local variable: its traceback holds this frame
                    finally:
                        self._error = None
                self._changed.wait(WAKE_UP_S)
            staged = self._ready.popleft()
            self._changed.notify_all()
        staged.copy.hand_over()
        stats = staged.batch.stats
        # The batch was ready and waited for the training: on the host, and then on the device.
        device_wait_s = max(0.0, requested_s - staged.copied_s)
        stats["handover_wait_seconds"] = stats.get("handover_wait_seconds", 0.0) + device_wait_s
        return staged

    def dismiss(self) -> None:
        """End the copy thread after its current batch, without waiting. Does nothing in a forked child."""
        if os.getpid() == self._pid:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the copy thread to end, at most `timeout_s`, and drop ready batches."""
        if os.getpid() == self._pid:
            if self._thread is not None:
                self._thread.join(timeout_s)
            self._ready.clear()

    def _seek(self, step: int, end: int | None) -> None:
        """Let the copy thread go on at a step, unless that comes next anyway. The caller has the lock."""
        if self._thread is None:
            self._thread = AwaitedThread(self._work, name="penstock-device")
            ends_with_the_process(self)
            self._thread.start()
        position = self._position
        if self._ready:
            next_step = self._ready[0].step
        elif position is None:
            next_step = None
        else:
            next_step = position.step
        if next_step != step:
            self._ready.clear()
            self._error = None
            self._runs += 1
            self._position = _Position(step, end, self._runs)
            self._changed.notify_all()

    def _work(self) -> None:
        """Copy batches until the stage is dismissed; the copy thread's body."""
        try:
            with self._backend.entered():
                try:
                    while (position := self._next_to_copy()) is not None:
                        self._wait_copy(position)
                finally:
                    self._backend.close()
        except BaseException as error:  # noqa: BLE001 - `take` raises it
            while (position := self._next_to_copy()) is not None:
                self._fail(position, error)

    def _next_to_copy(self) -> _Position | None:
        """Wait until a batch may be copied; return its position, None once the stage is dismissed."""
        with self._changed:
            while not self._stopped:
                position = self._position
                if (
                    position is not None
                    and self._error is None
                    and len(self._ready) < AHEAD
                    and not (self._starts_at_second_request and position.step != self._first)
                    and (position.end is None or position.step < position.end)
                ):
                    return position
                self._changed.wait(WAKE_UP_S)  # a finalizer may dismiss the stage as the wait begins
        return None

    def _wait_copy(self, position: _Position) -> None:
        """Copy a batch, and wait for the copy to end. The batch is ready before: the training may take it."""
        try:
            host = self._host_batch(position.step, position.end)
            start = perf_counter()
            moved, copy = self._backend.copy(host)
            following = position._replace(step=position.step + 1)
            try:
                crcs = self._checksums(self._backend.checksum_source(host, moved))
                with self._changed:
                    if self._position == position:  # else a seek came meanwhile
                        self._ready.append(OnDevice(position.step, moved, crcs, copy, perf_counter()))
                        self._position = following
                        self._changed.notify_all()
            finally:
                copy.wait()  # only then may the memory of `host` be reused
            self._metrics.copied(copy.nbytes, perf_counter() - start)
        except BaseException as error:  # noqa: BLE001 - `take` of the step raises it
            self._fail(position, error)

    def _fail(self, position: _Position, error: BaseException) -> None:
        """Let `take` raise an error, unless a seek came meanwhile."""
        with self._changed:
            now = self._position
            if now is not None and now.run == position.run:
                self._error = error
                self._changed.notify_all()


MAX_WAITS = 64
"""Steps whose waits are remembered until the copy thread takes its next batch."""


class Delivery:
    """Takes batches from an `Execution`, which from now on only the copy thread uses, except `dismiss` and `close`."""

    def __init__(
        self, device: DeviceBackend, execution: Execution, recorder: "Recorder | None", metrics: Metrics
    ) -> None:
        self._backend = device
        self._execution = execution
        self._recorder = recorder
        self._waits: deque[tuple[float, float, float]] = deque(maxlen=MAX_WAITS)
        self._stage: DeviceStage | None = DeviceStage(
            device,
            self._host_batch,
            self._checksums,
            metrics,
            starts_at_second_request=execution.starts_at_second_request,
        )

    def take(self, step: int, end: int | None) -> OnDevice:
        if self._stage is None:
            raise InvalidRuntime("this Loader was closed while a batch was waited for")
        return self._stage.take(step, end)

    def batch_delivered(self, waited_s: float, busy_s: float, computed_s: float) -> None:
        self._waits.append((waited_s, busy_s, computed_s))

    def describe(self) -> str:
        return f"the copy thread has up to {AHEAD} of them ready on the device"

    def moved(self, batch: Batch) -> Batch:
        return self._backend.moved(batch)

    def abandon(self) -> None:
        stage = self._stage
        self._stage = None
        if stage is not None:
            stage.dismiss()

    def end(self) -> None:
        stage = self._stage
        self.abandon()
        if stage is not None:
            stage.join()

    def close(self, *, wait: bool) -> None:
        """End the copy thread before the executor closes. wait: False waits only a moment."""
        stage = self._stage
        self.abandon()
        if stage is not None:
            self._execution.dismiss()  # the copy thread may wait for a batch
            stage.join(None if wait else LEAVE_S / 2)

    def _host_batch(self, step: int, end: int | None) -> Batch:
        batch = self._execution.batch(step, end)
        while self._waits:
            self._execution.batch_delivered(*self._waits.popleft())
        return batch

    def _checksums(self, batch: Batch) -> dict[str, int] | None:
        if self._recorder is None:
            return None
        return self._recorder.checksums(batch)


def device_backend(device: Any, framework: str, *, default: bool = False) -> DeviceBackend | None:
    """Return the backend that copies batches to a device; None if they stay on the host.

    default: True takes None as JAX's default device. Raises: InvalidRuntime if there is no such device;
    MissingDependency if the framework is missing.
    """
    if isinstance(device, DeviceBackend) or (device is None and not default):
        return device
    if framework == "numpy":
        raise InvalidRuntime(
            f"device = {device!r} with framework = 'numpy', whose arrays lie on the host; accepted: framework='torch' "
            "or 'jax'",
            what="device",
            where="framework = 'numpy'",
            given=device,
            accepted="framework='torch' or 'jax'",
        )
    import_framework(framework)
    try:
        if framework == "jax":
            from .jax_copies import JaxCopies, jax_backend

            if device is None:
                return JaxCopies(None)
            return jax_backend(device)
        return _torch_backend(device)
    except ImportError as error:
        raise MissingDependency(f"device = {device!r}: {error}", what="device", given=device) from error


def _torch_backend(device: Any) -> DeviceBackend | None:
    import torch

    try:
        requested = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidRuntime(
            f"device = {device!r}; accepted: None, a torch.device, or its name, such as 'cuda' or 'cuda:1' ({error})",
            what="device",
            given=device,
            accepted="None, a torch.device, or its name",
        ) from None
    if requested.type == "cpu":
        return None
    # Without the check torch names the accelerator that it was built for, present or not.
    present = torch.accelerator.current_accelerator(check_available=True)
    if present is None or present.type != requested.type:
        if present is None:
            has = "no accelerator"
        else:
            has = f"only {present.type!r}"
        raise InvalidRuntime(
            f"device = {str(requested)!r}, but torch {torch.__version__} finds {has} in this process; leave device out "
            f"to keep batches on the host, or install torch's build for {requested.type!r} and check its driver",
            what="device",
            where="this process",
            given=str(requested),
            accepted=has,
        )
    count = torch.accelerator.device_count()
    if requested.index is not None and requested.index >= count:
        raise InvalidRuntime(
            f"device = {str(requested)!r}; this process sees {count} of them, 0 to {count - 1}",
            what="device",
            given=str(requested),
            accepted=f"0 to {count - 1}",
        )
    index = requested.index if requested.index is not None else torch.accelerator.current_device_index()
    chosen = torch.device(requested.type, index)
    if chosen.type == "cuda":
        from .torch_copies import CudaCopies

        return CudaCopies(chosen)
    from .torch_copies import PlainCopies

    return PlainCopies(chosen)
