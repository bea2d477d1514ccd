"""A `Work`: a function over units, with everything that a runner needs; and the hash of its source tree.

Units and results are frozen dataclasses of plain values, stored as JSON. A `Work` is a top-level name of its function's
module: see `verify/shards_job.py`.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar

from loader.errors import InvalidRuntime, StoreError
from loader.storage import Store, StoreSpec
from loader.storage.disk.scratch import HeldFolder

from .pool import Outcome
from .pool.environment import place_here

OURS = ("loader", "penstock", "resources", "assets")
"""Our packages, in import order."""


def python_release() -> str:
    """Return Python's minor release: '3.11'."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def source_hash(work_place: str) -> str:
    """Return the SHA-256 (hex) of the Python files that a work, 'module:name', can import, without other packages."""
    sha256 = hashlib.sha256()
    own = work_place.partition(":")[0].partition(".")[0]
    # A package imports no later one, so its work cannot depend on it.
    ours = OURS[: OURS.index(own) + 1] if own in OURS else OURS
    for package in sorted({*ours, own}):
        for name, path in _files(package):
            of_file = hashlib.sha256(path.read_bytes()).hexdigest()
            sha256.update(f"{package}/{name}\0{of_file}\0".encode())
    return sha256.hexdigest()


def libraries_here(names: Sequence[str]) -> dict[str, str]:
    """Return distribution -> installed release, or "" if it is not installed."""
    releases = {}
    for name in names:
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            releases[name] = ""
    return releases


def _files(package: str) -> list[tuple[str, Path]]:
    spec = find_spec(package)
    if spec is None:
        return []
    if not spec.submodule_search_locations:
        if spec.origin:
            return [(package, Path(spec.origin))]
        return []
    files: dict[str, Path] = {}
    for folder in map(Path, spec.submodule_search_locations):  # the first folder wins, as in an import
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")} | files
    return sorted(files.items())


U = TypeVar("U")
R = TypeVar("R")


class Fault(StoreError):
    """A failing store or disk; the unit's block restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlace:
    """A store's URL and options. Nodes find credentials in their own environment."""

    url: str
    options: dict[str, Any]
    """Options, without secrets."""

    @classmethod
    def of(cls, store: Store) -> "StoredPlace":
        """Return a store's URL and options. Raises: InvalidRuntime if other processes cannot open it."""
        spec = getattr(store, "spec", None)
        if not isinstance(spec, StoreSpec) or spec.url.startswith("memory:"):
            raise InvalidRuntime(
                f"{store.url} cannot be opened by a node; a job's stores are folders or buckets by their own URL",
                what="store",
                given=store.url,
            )
        return cls(url=spec.url, options=dict(spec.options))

    @property
    def spec(self) -> StoreSpec:
        """Spec that opens the store."""
        return StoreSpec(url=self.url, options=self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources that one unit needs."""

    cpus: int = 1
    """Processors."""
    memory_bytes: int = 2 * 2**30
    """Peak memory."""
    gpus: int = 0
    """GPUs, exclusive to the unit; without any in the slot, its device is "cpu"."""

    def units_at_once(self, cpus: int, memory_bytes: int, gpus: int = 0) -> int:
        """Return how many units a slot runs at once, at least 1. memory_bytes: the slot's; 0 if unknown."""
        by_memory = memory_bytes // self.memory_bytes if memory_bytes else cpus
        by_gpus = gpus // self.gpus if gpus and self.gpus else cpus
        return max(1, min(cpus // self.cpus, by_memory, by_gpus))


class Node:
    """A unit's stores, scratch folder and device."""

    def __init__(
        self,
        stores: Mapping[str, Store | StoreSpec],
        scratch: Path | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        """Set the unit's stores, scratch folder and packages.

        stores: URL -> store or spec. scratch: folder that the caller removes; None for a private one. packages:
        packages whose code may run.
        """
        self.stores = stores
        self.packages = packages
        self._scratch = scratch
        self._own = list[HeldFolder]()

    @property
    def place(self) -> str:
        """Device of the unit: "cuda:0" (the first GPU of its worker) or "cpu"."""
        return place_here() or "cpu"

    @property
    def scratch(self) -> Path:
        """Private folder, removed after the unit, or after its block if the work has `finish`."""
        if self._scratch is None:
            self._own.append(HeldFolder("unit"))
            self._scratch = self._own[0].path
        self._scratch.mkdir(exist_ok=True)
        return self._scratch

    def close(self) -> None:
        """Remove the private folder."""
        for folder in self._own:
            folder.close()

    def open(self, url: str) -> Store:
        """Return one of the job's stores. Raises: InvalidRuntime for any other URL; as `StoreSpec.open`."""
        if url not in self.stores:
            raise InvalidRuntime(
                f"the job names no store {url!r}; accepted: {', '.join(sorted(self.stores))}",
                what="store",
                given=url,
                accepted=sorted(self.stores),
            )
        store = self.stores[url]
        if isinstance(store, StoreSpec):
            return store.open()
        return store


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Generic[U]):
    """A block's units, as the work's `finish` receives them."""

    number: int
    """Number of the block in its job, from 0."""
    units: Sequence[U]
    """Units, in order."""
    folders: Sequence[Path]
    """Each unit's scratch folder, which may not exist."""


def _a_second(_: Any) -> float:
    return 1.0


def _no_bytes(_: Any) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[U, R]):
    """A function over units, with its types."""

    name: str
    """Name: lower-case letters, digits and hyphens."""
    version: str
    """Version of the function; a new version makes new jobs."""
    function: Callable[[U, Node], R]
    """Computes a unit's result. A second run must write the same output."""
    unit: type[U]
    """Dataclass of a unit."""
    result: type[R]
    """Dataclass of a result."""
    timeout_s: float | Callable[[U], float]
    """Time limit in s, above 0, or a function of the unit."""
    cost_s: Callable[[U], float] = _a_second
    """Estimated seconds of a unit."""
    nbytes: Callable[[U], int] = _no_bytes
    """Estimated bytes that a unit adds to the output of `finish`."""
    finish: Callable[[Block[U], Sequence[Outcome[R]], Node], Any] | None = None
    """Writes one output per block from the units' folders, under a new name each time: it may run twice."""
    part: type[Any] = NoneType
    """Dataclass of what `finish` returns."""
    resources: Resources = field(default_factory=Resources)
    """Resources that each unit needs."""
    alike: Callable[[U], U] | None = None
    """Returns a unit without the fields that may differ between submitters; None: all must agree."""
    libraries: Sequence[str] = ()
    """Distributions that affect the bytes of results, such as "av"."""

    def limit_s(self, unit: U) -> float:
        """Return a unit's time limit, in s."""
        if callable(self.timeout_s):
            return self.timeout_s(unit)
        return self.timeout_s

    @property
    def place(self) -> str:
        """'module:name' of the work. Raises: InvalidRuntime if its function's module does not hold it."""
        module = self.function.__module__
        for name, value in vars(sys.modules[module]).items():
            # Nodes cannot import the script that was started.
            if value is self and module != "__main__":
                return f"{module}:{name}"
        raise InvalidRuntime(
            f"the work {self.name!r} is not a name of the module {module} of its function; "
            "put both at the top level of a module that nodes can import",
            what="work",
            where=module,
            given=self.name,
        )


def find_work(place: str, packages: Sequence[str]) -> Work[Any, Any]:
    """Return the `Work` named 'module:name'.

    packages: packages whose `Work` objects may run, as others may have written the description. Raises: InvalidRuntime.
    """
    module, _, name = place.partition(":")
    if module.partition(".")[0] not in packages:
        raise InvalidRuntime(
            f"work {place!r}; accepted are works of the packages {', '.join(sorted(packages))}: "
            "name its package in `packages` of the cluster's file",
            what="work",
            given=place,
            accepted=sorted(packages),
        )
    try:
        work = getattr(import_module(module), name, None)
    # A module may raise anything while it is imported.
    except Exception as error:
        raise InvalidRuntime(
            f"work {place!r} cannot be imported here: {type(error).__name__}: {error}",
            what="import",
            given=place,
        ) from error
    if not isinstance(work, Work):
        raise InvalidRuntime(
            f"{place!r} is not a work; accepted: a name that holds a `Work`",
            what="work",
            given=place,
            accepted="a `Work`",
        )
    return work
