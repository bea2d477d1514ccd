"""The way from the executor to a training on a device, by the copy thread."""

from collections import deque
from typing import TYPE_CHECKING

from ...errors import InvalidRuntime
from ...storage.shared.threads import LEAVE_S
from ..batch.batch import Batch
from ..executor import Execution
from ..metrics.metrics import Metrics
from .device_backend import DeviceBackend
from .stage import AHEAD, DeviceStage, OnDevice

if TYPE_CHECKING:
    from ..trail.recorder import Recorder

MAX_WAITS = 64
"""Steps of the training that are kept until the copy thread takes its next batch."""


class Delivery:
    """Takes batches from an `Execution`, which only the copy thread uses from now on, but for `dismiss` and `close`."""

    def __init__(
        self, device: DeviceBackend, execution: Execution, recorder: "Recorder | None", metrics: Metrics
    ) -> None:
        """Begin with no copy thread: the first `take` starts it. recorder: None where no trail is kept."""
        self._backend, self._execution, self._recorder = device, execution, recorder
        self._waits: deque[tuple[float, float, float]] = deque(maxlen=MAX_WAITS)
        self._stage: DeviceStage | None = DeviceStage(device, self._host_batch, self._checksums, metrics)

    def take(self, step: int, end: int | None) -> OnDevice:
        """Return the batch of `step`. Raises: errors of making or copying it; InvalidRuntime after `close`."""
        if self._stage is None:
            raise InvalidRuntime("this Loader was closed while a batch was waited for")
        return self._stage.take(step, end)

    def handed(self, waited_s: float, busy_s: float, computed_s: float) -> None:
        """Note that the training got a batch, as `Execution.batch_delivered` has it."""
        self._waits.append((waited_s, busy_s, computed_s))

    def describe(self) -> str:
        """Return where batches lie ready, in words."""
        return f"the copy thread has up to {AHEAD} of them ready on the device"

    def moved(self, batch: Batch) -> Batch:
        """Return a batch of the host on the device, copied by the caller. Raises: errors of the device."""
        return self._backend.moved(batch)

    def abandon(self) -> None:
        """Let the copy thread end, and with it what it alone holds. Does not wait."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.dismiss()

    def end(self) -> None:
        """End the copy thread after the batch that it makes; the executor goes on."""
        stage = self._stage
        self.abandon()
        if stage is not None:
            stage.join()

    def close(self, *, wait: bool) -> None:
        """End the copy thread, before the executor is closed. wait: False waits a moment at most."""
        stage = self._stage
        self.abandon()
        if stage is not None:
            self._execution.dismiss()  # the copy thread may wait for a batch
            stage.join(None if wait else LEAVE_S / 2)

    def _host_batch(self, step: int, end: int | None) -> Batch:
        """Return a batch of the host. For the copy thread, which also passes on how long the training waited."""
        batch = self._execution.batch(step, end)
        while self._waits:
            self._execution.batch_delivered(*self._waits.popleft())
        return batch

    def _checksums(self, batch: Batch) -> dict[str, int] | None:
        return None if self._recorder is None else self._recorder.checksums(batch)
