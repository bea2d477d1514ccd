"""The thread that asks for a batch makes it: an executor without threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from .making.prefetch import Made


class _Asked(Future[Made]):
    """Made when it is asked for."""

    def __init__(self, make: Callable[[], Made]) -> None:
        super().__init__()
        self._make = make

    def result(self, timeout: float | None = None) -> Made:
        """Raises: what is no error of the batch, such as KeyboardInterrupt, at once."""
        if not self.done():
            made = self._make()
            if made.error is not None and not isinstance(made.error, Exception):
                raise made.error
            if self.set_running_or_notify_cancel():
                self.set_result(made)
        return super().result(timeout)


class InlineExecutor:
    """Makes what it is asked for in the thread that takes it, and nothing ahead."""

    size = 0

    def __init__(self, make: Callable[[range], Made]) -> None:
        self._make = make

    def submit(self, steps: range) -> Future[Made]:
        """What will become of the steps, once somebody asks."""
        return _Asked(lambda: self._make(steps))

    def cancel(self, futures: Iterable[Future[Made]]) -> None:
        """What is not asked for is not made anyway."""
        for future in futures:
            future.cancel()

    def retire(self) -> None:
        """Nobody is there."""

    dismiss = abandon = retire

    def join(self, timeout_s: float | None = None) -> None:
        """Nobody is there."""
