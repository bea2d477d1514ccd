"""Work: a function over units, and all that a runner needs to know of it.

    def read_shard(unit: ShardUnit, node: Node) -> ShardProblems: ...

    READ_SHARDS = Work(
        name="verify-shards", version="1", function=read_shard, unit=ShardUnit, result=ShardProblems, timeout_s=3600
    )

Units and results lie in the store as JSON, so both are frozen dataclasses of plain values: who may write to a
bucket cannot run code on a node. The work stands at the top level of its function's module, by which a node finds it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar

from loader.errors import InvalidRuntime, StoreError
from loader.storage import Store, StoreSpec
from loader.storage.disk.scratch import HeldFolder

from .pool import Outcome
from .pool.gpus import place_here

U = TypeVar("U")
R = TypeVar("R")


class Fault(StoreError):
    """A store or a disk at fault, not the unit's: its block begins again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlace:
    """A store by URL and options, without secrets: nodes find credentials in their own environment."""

    url: str
    """URL."""
    options: dict[str, Any]
    """Options that are no secrets."""

    @classmethod
    def of(cls, store: Store) -> "StoredPlace":
        """Return the place of a store. Raises: InvalidRuntime for a store that no other process can open."""
        spec = getattr(store, "spec", None)
        if not isinstance(spec, StoreSpec) or spec.url.startswith("memory:"):
            raise InvalidRuntime(
                f"{store.url} cannot be opened by a node; a job's stores are folders or buckets by their own URL"
            )
        return cls(url=spec.url, options=dict(spec.options))

    @property
    def spec(self) -> StoreSpec:
        """The spec to open it from."""
        return StoreSpec(url=self.url, options=self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources of one unit: a runner runs as many units at once as its slot holds of them."""

    cpus: int = 1
    """Processors."""
    memory_bytes: int = 2 * 2**30
    """Memory at its peak."""
    gpus: int = 0
    """GPUs, which no other unit has meanwhile. In a slot without any, the unit's place is "cpu"."""

    def units_at_once(self, cpus: int, memory_bytes: int, gpus: int = 0) -> int:
        """Return how many units a slot holds, at least 1. memory_bytes: of the slot; 0: unknown. gpus: of the slot."""
        by_memory = memory_bytes // self.memory_bytes if memory_bytes else cpus
        by_gpus = gpus // self.gpus if gpus and self.gpus else cpus
        return max(1, min(cpus // self.cpus, by_memory, by_gpus))


class Node:
    """Surroundings of a unit on the machine that runs it."""

    def __init__(
        self,
        stores: Mapping[str, Store | StoreSpec],
        scratch: Path | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        """Take the stores that the job names, or their specs, by their URL.

        scratch: a folder, which the caller removes; None for one of its own. packages: whose code may run.
        """
        self.stores, self.packages = stores, packages
        self._scratch, self._own = scratch, list[HeldFolder]()

    @property
    def place(self) -> str:
        """Device of the unit: "cuda:0", the first of the GPUs that its worker sees, or "cpu"."""
        return place_here() or "cpu"

    @property
    def scratch(self) -> Path:
        """Private folder of this unit, removed after it, or after its block if the work has `finish`."""
        if self._scratch is None:
            self._own.append(HeldFolder("unit"))
            self._scratch = self._own[0].path
        self._scratch.mkdir(exist_ok=True)
        return self._scratch

    def close(self) -> None:
        """Remove the folder, if it is its own."""
        for folder in self._own:
            folder.close()

    def open(self, url: str) -> Store:
        """Return a store that the job names. Raises: InvalidRuntime for another one; as `StoreSpec.open`."""
        if url not in self.stores:
            raise InvalidRuntime(
                f"the job names no store {url!r}; accepted: {', '.join(sorted(self.stores))}"
            )
        store = self.stores[url]
        return store.open() if isinstance(store, StoreSpec) else store


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Generic[U]):
    """Units of a block, as its work's `finish` gets them."""

    number: int
    """Number of the block in its job, from 0."""
    units: Sequence[U]
    """Units in their order."""
    folders: Sequence[Path]
    """Scratch folder of each unit, as the unit left it; one that failed, or left nothing, may have none."""


def _a_second(_: Any) -> float:
    return 1.0


def _no_bytes(_: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[U, R]):
    """A function over units, with its types."""

    name: str
    """Name, of which people think at its jobs: lower-case letters, digits and hyphens."""
    version: str
    """Version of the function: another one makes other jobs."""
    function: Callable[[U, Node], R]
    """Makes a unit's result. It may run twice, and write nothing that a second run would not write alike."""
    unit: type[U]
    """Dataclass of a unit."""
    result: type[R]
    """Dataclass of a result."""
    timeout_s: float | Callable[[U], float]
    """Seconds that a unit may take, above 0: for all, or of a unit."""
    cost_s: Callable[[U], float] = _a_second
    """Seconds that a unit takes about, by which units are cut into blocks."""
    nbytes: Callable[[U], int] = _no_bytes
    """Bytes that a unit adds about to what `finish` writes, by which units are cut into blocks."""
    finish: Callable[[Block[U], Sequence[Outcome[R]], Node], Any] | None = None
    """Writes one thing of a block, such as its part, from the folders that its units left; None for nothing. It may run
    twice: what it writes has a name of each run's own, and the first run's answer counts."""
    part: type[Any] = NoneType
    """Dataclass of what `finish` returns."""
    resources: Resources = field(default_factory=Resources)
    """Resources of a unit."""
    alike: Callable[[U], U] | None = None
    """Returns a unit without what may differ between two submitters, such as the id of a run; None for nothing."""
    libraries: Sequence[str] = ()
    """Distributions whose releases decide the result's bytes, such as "av": they must be the same for all blocks."""

    def limit_s(self, unit: U) -> float:
        """Return the time limit of a unit, in s."""
        return self.timeout_s(unit) if callable(self.timeout_s) else self.timeout_s

    @property
    def place(self) -> str:
        """'module:name' of the work. Raises: InvalidRuntime for a work that its function's module does not hold."""
        module = self.function.__module__
        for name, value in vars(sys.modules[module]).items():
            if value is self and module != "__main__":
                return f"{module}:{name}"
        raise InvalidRuntime(
            f"the work {self.name!r} is no name of the module {module} of its function; "
            "put both at the top level of a module that nodes can import"
        )


def work_at(place: str, packages: Sequence[str]) -> Work[Any, Any]:
    """Return the work of 'module:name'.

    packages: whose works may run; a job's description lies in a bucket, where others may have written it.

    Raises: InvalidRuntime.
    """
    module, _, name = place.partition(":")
    if module.partition(".")[0] not in packages:
        raise InvalidRuntime(
            f"work {place!r}; accepted are works of the packages {', '.join(sorted(packages))}: "
            "name its package in `packages` of the cluster's file"
        )
    try:
        work = getattr(import_module(module), name, None)
    except ImportError as error:
        raise InvalidRuntime(f"work {place!r} cannot be imported here: {error}") from error
    if not isinstance(work, Work):
        raise InvalidRuntime(f"{place!r} is no work; accepted: a name that holds a `Work`")
    return work
