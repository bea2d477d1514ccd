"""Save and load one run's checkpoints, optionally saving in the background."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import loader
from loader.errors import CorruptCheckpoint, InvalidRuntime, MissingDependency, ObjectNotFound
from loader.keywords import check_whole_number
from loader.run.recipe.recipe import stored_view
from loader.storage.mirror import primary_store
from loader.storage.requests import patient

from . import marker, set_aside
from .marker import Checkpoint
from .near.session import NearSession
from .parts import PART_BYTES, Index, decode_index
from .ranks import first_error, from_first_rank
from .retention import CheckpointRetention
from .set_aside import SetAside
from .state_names import names_apart

if TYPE_CHECKING:
    from loader.storage import RangeReader

    from .near.choice import NearRejection
    from .near.save import NearCounts
    from .reader import CheckpointReader
    from .writer import CheckpointWriter

_log = logging.getLogger(__name__)


class BatchPosition(Protocol):
    """A `Loader`, or what stands for one, whose position is saved."""

    @property
    def plan(self) -> "loader.Plan": ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Checkpoints:
    """One run's checkpoints, stored in `checkpoints/<run>/`. A context manager, not thread-safe.

    root: a loader.Root, path or URL. It may differ from the data's root. With mirrors, only the primary is used.

    run: run name. Its steps only increase: a run that returns to an earlier step needs a new name.

    keep_last, keep_every: each save keeps the `keep_last` newest checkpoints and the steps divisible by `keep_every`.
    If `keep_last` is None, it deletes only leftovers of killed saves.

    part_bytes: size of a part; four are in memory at a time.

    cache: node cache that `load` reads parts through, such as `run.node_cache(...)`. Replicas read each part once.

    near: node cache with peers, whose nodes keep near checkpoints, such as `run.node_cache(...)`.

    near_every: steps from one near checkpoint to the next; None saves none.

    Every rank must call `save`, `load`, `wait` and `close`. Under torch.distributed they use their own gloo group.

    Raises: InvalidName; InvalidRuntime.
    """

    def __init__(
        self,
        root: "loader.Root | str | os.PathLike[str]",
        run: str,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        part_bytes: int = PART_BYTES,
        cache: "loader.NodeCache | None" = None,
        near: "loader.NodeCache | None" = None,
        near_every: int | None = None,
    ) -> None:
        if cache is not None and not isinstance(cache, loader.NodeCache):
            raise InvalidRuntime(f"cache = {cache!r}; accepted: loader.NodeCache(path=...), or None")
        self._cache = cache
        self._near = near
        self.near_rejections: Sequence[NearRejection] = ()
        """On the first rank, near steps that the last `load` passed over."""
        self._root = root if isinstance(root, loader.Root) else loader.Root(root)
        self._store = primary_store(self._root.store)
        self._keep = CheckpointRetention(keep_last=keep_last, keep_every=keep_every)
        self._part_bytes = check_whole_number("part_bytes", part_bytes, 1)
        self.run = marker.check_run(run)
        self._near_session = NearSession(near, near_every, run, part_bytes)
        self._group: Any = None
        self._pending: tuple[int, Future[Any]] | None = None

    def __repr__(self) -> str:
        return f"Checkpoints({self._root.url!r}, {self.run!r})"

    # Steps, which do not need torch

    def steps(self) -> list[int]:
        """Return the finished steps, ascending."""
        return marker.steps(self._store, self.run)

    def at(self, step: int) -> Checkpoint:
        """Return a step's checkpoint. Raises: CheckpointNotFound; Corrupt; FormatTooNew; StoreError."""
        return marker.read(self._store, self.run, step)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None. Raises: Corrupt; FormatTooNew; StoreError."""
        steps = self.steps()
        return self.at(steps[-1]) if steps else None

    def create_root(self) -> None:
        """Make an empty location a root now, so that an unfit one fails before the first step.

        Raises: NotARoot if it holds other things; Conflict if it is a mirror; StoreError.
        """
        self._root.create()

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        batches: BatchPosition | None = None,
        *,
        wait: bool = True,
        on_committed: Callable[[], object] | None = None,
    ) -> None:
        """Save a state after `step` completed steps.

        state: tensors, plain values, nested dicts and lists, or objects with a state_dict().

        batches: the loader, whose position, plan and versions are saved too.

        wait: False uploads a copy in the background, one save at a time. If that fails, the next call raises its error.

        on_committed: called on the first rank as soon as the checkpoint is whole, with `wait=False` in another thread.

        Raises: Conflict if `step` is not above the newest step; InvalidField; MissingDependency; StoreError; another
        rank's error.
        """
        self._wait_for_save()
        _check_torch_is_installed()
        from torch.distributed.checkpoint.state_dict_saver import async_save, save

        writer = self.writer(step, batches)
        begun = Event()
        writer.on_committed = partial(self._near_session.committed, step, on_committed)
        how: dict[str, Any] = {"storage_writer": writer, **self._collective()}
        with _quiet(how), names_apart(state):
            if wait:
                first_error(lambda: save(dict(state), **how))
                return
            writer.on_set_up = begun.set
            going = first_error(lambda: async_save(dict(state), **how))
            assert isinstance(going, Future)
            going.add_done_callback(lambda _: begun.set())
            begun.wait()  # torch warns in its thread until then, and all threads share the warning filters
        going.add_done_callback(lambda done: _log_failure(done, step, self))
        self._pending = step, going

    def save_near(
        self,
        step: int,
        state: Mapping[str, Any],
        batches: BatchPosition | None = None,
        *,
        on_failed: Callable[..., object] | None = None,
    ) -> None:
        """Save a near checkpoint in the background if `near_every` divides `step`. Every rank calls it after each step.

        Copies the state as `save(wait=False)` does. A failure costs this checkpoint, and is logged. So does a near save
        that is still running. Saves nothing without `near_every`. `Run.steps` calls it.

        on_failed: called with the step and `reason=` by the first failure after a success, in another thread.

        Raises: InvalidRuntime, by the first call, if a node cannot hold three steps; InvalidField.
        """
        if not self._near_session.saves:
            return
        _check_torch_is_installed()
        with names_apart(state), _quiet(self._collective()):
            self._near_session.check(state)
            if self._near_session.is_due(step):
                facts = _facts(batches) if batches is not None else {}
                self._near_session.save(step, state, facts, on_failed)

    def near_counts(self) -> "NearCounts | None":
        """Return the counts of this start's near saves; None before `load` and `save_near`."""
        return self._near_session.counts()

    def describe(self) -> str:
        """Return lines about where this rank saves, and about its near saves."""
        return f"checkpoints: {self.run} in {self._root.url}\n{self._near_session.describe()}".rstrip()

    def wait(self) -> None:
        """Wait for the background saves, near ones too. Raises: the error of the one in the root."""
        self._wait_for_save()
        self._near_session.wait()

    def _wait_for_save(self) -> None:
        pending = self._pending
        self._pending = None
        if pending is not None:
            first_error(pending[1].result)

    def writer(self, step: int, batches: BatchPosition | None = None) -> "CheckpointWriter":
        """Return a writer for torch.distributed.checkpoint.save. Raises: MissingDependency; InvalidRuntime."""
        check_whole_number("step", step, 0, 10**12 - 1)
        _check_torch_is_installed()
        from .writer import CheckpointWriter

        facts = _facts(batches) if batches is not None else {}
        return CheckpointWriter(
            self._root, self.run, step, facts=facts, keep=self._keep, part_bytes=self._part_bytes
        )

    def load(
        self,
        state: dict[str, Any],
        batches: BatchPosition | None = None,
        *,
        step: int | Literal["latest"] = "latest",
        partial: bool = False,
    ) -> Checkpoint | None:
        """Load a checkpoint into a state, and move the loader to its position.

        If there is no checkpoint, returns None and changes nothing. With `near` the newest is a near step if one above
        the root's newest is whole; a near step whose bytes are wrong is passed over, with a warning. With `near_every`
        it sets near saves up, so that no step waits for that.

        state: dict with the saved structure. Its tensors may be sharded differently, and are filled in place.

        partial: True ignores stored entries that the state lacks.

        Raises: PlanMismatch if the loader has another plan, before anything is filled; CheckpointMismatch;
        CheckpointNotFound if `step` has none; CorruptCheckpoint, on every rank; Corrupt; StoreError; InvalidRuntime if
        a node cannot hold three near steps; another rank's error.
        """
        self.wait()
        _check_torch_is_installed()
        how = self._collective()
        if self._near is not None and step == "latest":
            return self._load_near_or_stored(self._near, state, batches, partial, how)
        return self._load_stored(step, state, batches, partial, how)

    def _load_near_or_stored(
        self,
        cache: "loader.NodeCache",
        state: dict[str, Any],
        batches: BatchPosition | None,
        partial: bool,
        how: Mapping[str, Any],
    ) -> Checkpoint | None:
        """Load the newest near step that is above the root's newest and whole, else the root's newest."""
        from .near.start import open_near_steps

        with closing(open_near_steps(self._near_session, cache, self.run, how.get("process_group"))) as near:
            self.near_rejections = near.rejections
            while True:
                near.gather()
                start = from_first_rank(lambda: near.choose(self._store), how.get("process_group"))
                checkpoint = start.checkpoint
                if checkpoint is None:
                    if start.root_step >= 0:
                        checkpoint = self._load_stored(start.root_step, state, batches, partial, how)
                    break
                try:
                    self._fill(checkpoint, start.index, state, batches, partial, how, near.reads(start))
                    break
                except CorruptCheckpoint as error:  # the same on every rank
                    near.reject(checkpoint, error)
            if self._near_session.saves:
                near.delete(start)
                with names_apart(state), _quiet(how):
                    self._near_session.open(state)
        return checkpoint

    def _load_stored(
        self,
        step: int | Literal["latest"],
        state: dict[str, Any],
        batches: BatchPosition | None,
        partial: bool,
        how: Mapping[str, Any],
    ) -> Checkpoint | None:
        newest = from_first_rank(lambda: self._choose(step), how.get("process_group"))
        if newest is None:
            return None
        checkpoint, contents = newest
        from .cached_reads import cache_reads

        with cache_reads(self._store, checkpoint, self._cache) as reads:
            self._fill(checkpoint, contents, state, batches, partial, how, reads)
        return checkpoint

    def _fill(
        self,
        checkpoint: Checkpoint,
        contents: Index,
        state: dict[str, Any],
        batches: BatchPosition | None,
        partial: bool,
        how: Mapping[str, Any],
        reads: "RangeReader | None",
    ) -> None:
        """Move the loader to a checkpoint's position, and fill the state."""
        from torch.distributed.checkpoint.state_dict_loader import load

        if batches is not None:
            if checkpoint.loader is None:
                message = f"{self!r}: step {checkpoint.step} was saved without a loader; leave batches out"
                raise InvalidRuntime(message, what="batches", given=checkpoint.step, accepted="None")
            batches.load_state_dict(checkpoint.loader)
        reader = self._reader(checkpoint, contents, partial, reads)
        with patient(), _quiet(how), names_apart(state):  # every rank of a fleet loads at once
            first_error(lambda: load(state, storage_reader=reader, **how))

    def set_damaged_aside(self, damage: CorruptCheckpoint, *, by: str) -> SetAside:
        """Set a checkpoint aside that `load` found damaged; its bytes stay. Call it on one rank.

        Raises: CorruptCheckpoint without an earlier checkpoint; Corrupt if it is intact, or if a start set a checkpoint
        of this step aside before; StoreError.
        """
        return set_aside.set_damaged_aside(self._store, damage, by)

    def reader(self, step: int, *, partial: bool = False) -> "CheckpointReader":
        """Return a reader for torch.distributed.checkpoint.load.

        Raises: MissingDependency; CheckpointNotFound; Corrupt.
        """
        checkpoint = self.at(step)
        return self._reader(checkpoint, self._index(checkpoint), partial)

    def close(self) -> None:
        """Wait for the background save, and destroy the process group. Raises: that save's error."""
        try:
            self.wait()
        finally:
            self._near_session.close()
            group, self._group = self._group, None
            if group is not None:
                from torch import distributed

                if distributed.is_initialized():
                    distributed.destroy_process_group(group)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise
            _log.exception("a save of %r failed too", self)

    def _collective(self) -> dict[str, Any]:
        """Return torch's arguments for the ranks: a gloo group of their own, or none without torch.distributed."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return {"no_dist": True}
        if self._group is None:
            self._group = distributed.new_group(backend="gloo")
        return {"process_group": self._group}

    def _choose(self, step: int | Literal["latest"]) -> tuple[Checkpoint, Index] | None:
        checkpoint = self.latest() if step == "latest" else self.at(step)
        return None if checkpoint is None else (checkpoint, self._index(checkpoint))

    def _index(self, checkpoint: Checkpoint) -> Index:
        key = checkpoint.key(checkpoint.index)
        where = f"{self._root.url}/{key}"
        try:
            data = self._store.get(key).data
        except ObjectNotFound as error:
            # The run may have deleted the checkpoint meanwhile, marker first.
            marker.read(self._store, self.run, checkpoint.step)
            problem = f"{where} is missing; {checkpoint.index.nbytes:,} bytes were written"
            raise marker.damaged(
                self._store, self.run, checkpoint.step, checkpoint.index.name, problem
            ) from error
        if marker.sha256(data) != checkpoint.index.sha256:
            problem = (
                f"{where} has {len(data):,} bytes, and is not the index of {checkpoint.index.nbytes:,} bytes that was "
                "written"
            )
            raise marker.damaged(self._store, self.run, checkpoint.step, checkpoint.index.name, problem)
        return decode_index(data, checkpoint.parts, where)

    def _reader(
        self,
        checkpoint: Checkpoint,
        contents: Index,
        partial: bool,
        reads: "RangeReader | None" = None,
    ) -> "CheckpointReader":
        from .reader import CheckpointReader

        return CheckpointReader(self._store, checkpoint, contents, partial=partial, reads=reads)


def _check_torch_is_installed() -> None:
    if find_spec("torch") is None:
        raise MissingDependency("checkpoints are torch's: pip install 'penstock-data[torch]'")


@contextmanager
def _quiet(how: Mapping[str, Any]) -> Iterator[None]:
    if not how.get("no_dist"):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def plan_versions(plan: "loader.Plan") -> list[dict[str, str]]:
    """Return a plan's versions, each {"source", "id", "name"}, sorted."""
    versions: set[tuple[str, str, str]] = set()
    for planned in plan.sources.values():
        view = stored_view(planned.view)
        if view is not None:  # a synthetic source has no version
            versions.add((planned.source, view.version.id, view.version.name))
    return [{"source": source, "id": id, "name": name} for source, id, name in sorted(versions)]


def _facts(batches: BatchPosition) -> dict[str, Any]:
    return {
        "plan": batches.plan.hash,
        "versions": tuple(plan_versions(batches.plan)),
        "loader": batches.state_dict(),
    }


def _log_failure(done: "Future[Any]", step: int, run: Checkpoints) -> None:
    if (error := done.exception()) is not None:
        _log.error("%r: step %d was not saved; the next call raises it: %s", run, step, error)
