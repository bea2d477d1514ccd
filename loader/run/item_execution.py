"""Run the maker of a dataset's batches: the training's thread or worker processes, never a thread beside it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..keywords import check_word
from .contention import Contention, Measurement
from .executor import EXECUTORS, Execution
from .items.first_maker import first_maker, processes_instead
from .maker_choice import Maker
from .maker_text import TRAINING_THREAD

if TYPE_CHECKING:
    from .workers.pool import WorkerPool
    from .workers.startup_message import SentValue


class ItemExecution(Execution):
    """`Execution` of a recipe with datasets.

    Two threads in one dataset give wrong items, and items in a thread beside the training draw from its generators.
    `auto` begins with the training's thread, and moves to processes if the training loses time by making items.
    """

    _fallback_maker = "caller"
    _fallback_phrase = f"{TRAINING_THREAD} makes"
    _fallback_option = "workers=0"
    _user_code = "the datasets and the transform run"

    def __init__(self, *arguments: Any, executor: object, **options: Any) -> None:
        self._executor_option = executor
        super().__init__(*arguments, executor=executor, **options)
        from multiprocessing import current_process  # 10 ms, only for datasets

        is_worker = current_process().daemon  # of torch's DataLoader: it starts no processes
        if self.name == "caller" and self._workers_option == "auto" and not is_worker:
            self._may_start_processes = True
            self._contention = Contention(probed=False)

    def begin_copy_thread(self) -> None:
        """Let processes make the items from now on. Raises: InvalidRuntime with workers=0; Unpicklable."""
        if self.name == "processes":
            return
        # Choose as at the start, but with a copy thread. Processes that `auto` has started may not be ready yet.
        _, why = self._prepare_first_maker(self._executor_option, has_copy_thread=True)
        self._may_start_processes = False
        self._end_measuring()
        if self._starting is not None:
            pool, _ = self._starting
            pool.abandon()
            self._starting = None
        workers = self._count("processes")
        self._move("processes", workers, why)

    def _prepare_first_maker(self, executor: object, *, has_copy_thread: bool) -> tuple[str, str]:
        check_word("executor", executor, EXECUTORS)
        if executor == "processes":
            return super()._prepare_first_maker(executor, has_copy_thread=has_copy_thread)
        name, why = first_maker(executor, self._workers_option, has_copy_thread)
        if name == "processes":
            from .workers.early_check import bytes_sent

            self._sent_bytes = bytes_sent(self._assembler.recipe)
        return name, why

    def _better_maker(self, measurement: Measurement, now: Maker) -> tuple[Maker, str] | None:
        return processes_instead(self._room(), measurement.stages, now)

    def _expects_processes(self, metrics: Mapping[str, float]) -> bool:
        return True  # all that the training would wait for is made in its own thread

    def _processes(self, workers: int, values: "tuple[SentValue, ...]" = ()) -> "WorkerPool":
        # A dataset that nothing here refers to lies in the workers' memory only.
        self._assembler.close_datasets()
        return super()._processes(workers, values)
