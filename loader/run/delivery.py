"""The way from the executor to the training: straight, or through the copy thread of a device."""

from collections import deque
from typing import TYPE_CHECKING, Any

from ..storage.shared.threads import LEAVE_S
from .batch.batch import Batch
from .executor import Execution
from .metrics.metrics import Metrics

if TYPE_CHECKING:
    from .device.device_backend import DeviceBackend
    from .device.stage import DeviceStage
    from .trail.recorder import Recorder

MAX_WAITS = 64
"""Steps of the training that are kept until the copy thread takes its next batch."""


class Delivery:
    """Takes batches from an `Execution`, which one thread alone uses: the training's, or the copy thread."""

    def __init__(self, execution: Execution, metrics: Metrics) -> None:
        self._execution, self._metrics = execution, metrics
        self._recorder: Recorder | None = None
        self._backend: DeviceBackend | None = None
        self._stage: DeviceStage | None = None
        self._waits: deque[tuple[float, float]] = deque(maxlen=MAX_WAITS)

    @property
    def is_ahead(self) -> bool:
        """True where batches are made while the training works."""
        return self._stage is not None or self._execution.name != "caller"

    def begin(self, backend: "DeviceBackend | None", recorder: "Recorder | None") -> None:
        """Deliver to a device from now on; None: on the host. recorder: None where no trail is kept."""
        self._end_stage(None)
        self._backend, self._recorder = backend, recorder
        if backend is not None:
            from .device.stage import DeviceStage  # which a training on the host does without

            self._stage = DeviceStage(backend, self._host_batch, self._checksums, self._metrics)

    def take(self, step: int, end: int | None) -> tuple[Batch, dict[str, int] | None]:
        """Return the batch of `step`, and the checksums that a trail records of it. Raises: errors of making it."""
        if self._stage is not None:
            taken = self._stage.take(step, end)
            return taken.batch, taken.crcs
        self._execution.batch_requested()
        batch = self._execution.batch(step, end)
        return batch, self._checksums(batch)

    def handed(self, waited_s: float, busy_s: float) -> None:
        """Note that the training got a batch that it waited for, after it had worked."""
        if self._stage is None:
            self._execution.batch_delivered(waited_s, busy_s)
        else:
            self._waits.append((waited_s, busy_s))

    def moved(self, batch: Batch) -> Batch:
        """Return a batch of the host where this delivers, copied by the caller. Raises: errors of the device."""
        return batch if self._backend is None else self._backend.moved(batch)

    def abandon(self) -> None:
        """Let the copy thread end, and with it what it alone holds. Does not wait."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.dismiss()

    def close(self, *, wait: bool) -> None:
        """End the copy thread, then the executor. wait: as for `Execution.close`."""
        if self._stage is not None:
            self._stage.dismiss()
            self._execution.dismiss()  # the copy thread may wait for a batch
            self._end_stage(None if wait else LEAVE_S / 2)
        self._execution.close(wait=wait)

    def _end_stage(self, timeout_s: float | None) -> None:
        if self._stage is not None:
            self._stage.dismiss()
            self._stage.join(timeout_s)
            self._stage = None

    def _host_batch(self, step: int, end: int | None) -> Batch:
        """Return a batch of the host, for the copy thread, which also says what the training did since the last one."""
        self._execution.batch_requested()
        batch = self._execution.batch(step, end)
        while self._waits:
            self._execution.batch_delivered(*self._waits.popleft())
        return batch

    def _checksums(self, batch: Batch) -> dict[str, int] | None:
        return None if self._recorder is None else self._recorder.checksums(batch)


def backend_for(device: Any, framework: str) -> "DeviceBackend | None":
    """Return the backend of a device; None for the host. Raises: InvalidRuntime; MissingDependency."""
    if device is None:
        return None
    from .device.choose import backend_of

    return backend_of(device, framework)
