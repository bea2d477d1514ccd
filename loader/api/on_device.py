"""`on`: copy batches from a DataLoader to a device, for training code built around one."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from ..errors import InvalidRuntime
from ..run.batch.batch import Batch
from ..run.device.stage import DeviceStage, backend_of
from ..storage.shared.threads import LEAVE_S


class BatchesOnDevice:
    """An iterable over another iterable's batches, copied to a device by a thread."""

    def __init__(self, batches: Iterable[Batch], device: Any) -> None:
        self._batches, self._backend = batches, backend_of(device, "torch")

    def __len__(self) -> int:
        """Return the number of batches. Raises: TypeError if the batches have no length."""
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Batch]:
        iterator = iter(self._batches)
        if self._backend is None:
            yield from iterator
            return

        def host_batch(number: int, end: int | None) -> Batch:
            batch = next(iterator)
            if not isinstance(batch, Batch):
                raise InvalidRuntime(
                    f"loader.on got a {type(batch).__name__}; accepted: an iterable of penstock's batches, such as "
                    "DataLoader(loader.torch_dataset(plan), batch_size=None)"
                )
            return batch

        stage = DeviceStage(self._backend, host_batch)
        try:
            for number in count():
                try:
                    batch = stage.take(number, None).batch
                except StopIteration:
                    return
                yield batch
                del batch  # the next one needs the memory
        finally:
            stage.dismiss()
            stage.join(LEAVE_S)


def on(batches: Iterable[Batch], device: Any) -> Iterable[Batch]:
    """Return an iterable over the same batches on a device, with two ready there.

        for batch in loader.on(DataLoader(dataset, batch_size=None, num_workers=8), "cuda"): ...

    batches: A DataLoader over `loader.torch_dataset`, whose workers cannot copy to a device. For a `Loader` or a
        `torch_dataset` this calls `batches.on(device)`.
    device: As for `Loader`.

    A DataLoader's own position includes unused batches; save `plan.state(batch.step + 1)` instead.

    Raises: InvalidRuntime if there is no such device.
    """
    own = getattr(batches, "on", None)
    if own is not None:
        moved: Iterable[Batch] = own(device)
        return moved
    return BatchesOnDevice(batches, device)
