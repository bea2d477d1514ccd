"""The message that a worker process gets when it starts, in memory that only workers can open.

Stores are sent as specs without secrets; the command line and the environment contain nothing.
"""

import io
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, lru_cache
from multiprocessing import current_process
from struct import Struct
from types import FunctionType
from typing import IO, Any, NamedTuple

from ...cache.spec import CacheSpec
from ...errors import InvalidRuntime, Unpicklable
from ...order.sources.items_source import ItemsSource
from ...order.sources.items_view import ItemsView
from ..recipe.recipe import Recipe
from .sent_dataset import SentDataset, release_original, with_dataset
from .shared_array_reads import HEAD_BYTES, ArrayUnpickler, map_private
from .shared_arrays import OutsideArrays
from .unpicklable_part import unpicklable_part

logger = logging.getLogger(__name__)

CAPTURE_BYTES = 64 * 2**20
"""Pickled size, in bytes, from which a warning names a transform or decoder."""
_FORKED_WITH = ("torch", "torchvision")  # importing them starts no threads, which a fork would not survive


class SentValue(NamedTuple):
    """A global of a module that workers import by name."""

    module: str
    """Name of the module."""
    key: str
    """Name of the global."""
    data: bytes
    """Pickle of its value in the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupMessage:
    recipe: Recipe
    """Recipe of the batches."""
    cache: CacheSpec
    """Settings of the cache."""
    log_level: int
    """Log level of the package's logger."""
    values: tuple[SentValue, ...] = ()
    """Globals of the user's modules, which the worker compares with its own."""
    items: "Mapping[int, ItemsSource]" = field(default_factory=dict)
    """Source -> its dataset, which a pickled plan leaves behind."""

    @staticmethod
    def of(recipe: Recipe, cache: CacheSpec, values: tuple[SentValue, ...] = ()) -> "StartupMessage":
        return StartupMessage(
            recipe=recipe,
            cache=cache,
            log_level=logging.getLogger(__package__).getEffectiveLevel(),
            values=values,
            items={number: with_dataset(source) for number, source in _datasets(recipe)},
        )

    def written(self) -> int:
        """Return a descriptor of memory with the message, for any number of workers.

        If nothing except the plan refers to a large dataset, the memory replaces it. Raises: Unpicklable; OSError.
        """
        with os.fdopen(os.memfd_create("penstock-recipe", os.MFD_CLOEXEC), "wb") as file:
            file.write(bytes(HEAD_BYTES))
            pickle.dump([str(word) for word in sys.argv], file)
            try:
                arrays = _pickle([self.items, self], file)
            except OSError:
                raise
            except Exception:
                check_can_be_sent(self.recipe)  # names the part
                raise
            try:
                arrays.write(file)
                file.flush()
            except OSError as error:
                raise OSError(error.errno, f"{_no_room(arrays.nbytes)}: {error.strerror}") from error
            del arrays  # refers to the datasets
            nbytes = os.fstat(file.fileno()).st_size
            for number, source in _datasets(self.recipe):
                release_original(source, file.fileno(), number, nbytes)
            return os.dup(file.fileno())

    @staticmethod
    def read(fd: int) -> "StartupMessage":
        """Return the message, and set `sys.argv` to the trainer's before: a module may read it when it is imported."""
        # (all workers share the file's position, but not a mapping's)
        with os.fdopen(fd, "rb") as file:
            memory = map_private(file.fileno())
        memory.seek(HEAD_BYTES)
        sys.argv = pickle.load(memory)  # noqa: S301 - from the trainer
        unpickler = ArrayUnpickler(memory)
        unpickler.load()  # the datasets, to which the message refers
        sent: StartupMessage = unpickler.load()
        planned = list(sent.recipe.plan.sources.values())
        for source, dataset in sent.items.items():
            view = planned[source].view
            assert isinstance(view, ItemsView)
            view.source = dataset
        return sent


def libraries(recipe: Recipe) -> tuple[str, ...]:
    """Return modules of torch that the datasets' classes need, so that the server imports them once for all workers."""
    names: set[str] = set()
    for _, source in _datasets(recipe):
        for kind in type(source.dataset).__mro__:
            package = kind.__module__.partition(".")[0]
            if package in _FORKED_WITH:
                names.add(kind.__module__)
    return tuple(sorted(names))


def check_can_be_sent(recipe: Recipe) -> int:
    """Return the number of bytes sent to each worker. A warning names large parts.

    Raises: Unpicklable naming the part; InvalidRuntime if the system has no workers.
    """
    if not hasattr(os, "memfd_create"):
        raise InvalidRuntime(
            "executor = 'processes' needs anonymous shared memory, which only Linux has; use 'threads'",
            what="executor",
            given="processes",
            accepted="threads",
        )
    for source, view in recipe.stored.items():
        name = recipe.plan.source_names[source]
        urls = getattr(view.version.shard_store, "urls", [view.version.store.url])
        if in_memory := [url for url in urls if url.startswith("memory:")]:
            raise Unpicklable(
                f"source {name!r} lies in the memory of this process ({in_memory[0]}); write it to a disk or "
                "bucket, or use executor='threads'",
                what=f"source {name!r}",
                given=in_memory[0],
                accepted="a disk or bucket",
            )
    total = 0
    for name, value in _name_objects(recipe):
        size = _Size()
        try:
            _pickle([value], size)
        except Exception as error:
            if isinstance(value, ItemsSource):
                raise _unpicklable_dataset(name, value, error) from error
            raise Unpicklable(
                f"{name} = {value!r} cannot be sent to a worker process ({error}); make what cannot be pickled (a "
                "lock, an open file, a tensor on a GPU) at its first use, or use executor='threads'",
                what=name,
                given=value,
                accepted="a value that can be pickled",
            ) from error
        total += size.nbytes  # without arrays, which all workers share
        if size.nbytes > CAPTURE_BYTES:
            logger.warning(
                "%s = %r holds %s MiB, which each worker process gets a copy of: read it from a file at its first use",
                name,
                value,
                f"{size.nbytes / 2**20:,.0f}",
            )
    return total


def _unpicklable_dataset(name: str, source: ItemsSource, error: Exception) -> Unpicklable:
    """Return the error for a dataset, with the attribute that cannot be pickled."""
    options = {
        "dataset": source.dataset,
        "keys": source.keys,
        "seeded": source.seeded,
        "collate": source.collate,
    }
    path, part = unpicklable_part(options, _can_be_pickled)
    option = path.partition("]")[0].strip("['")
    shown = f"the {type(source.dataset).__qualname__}{path.partition(']')[2]}"
    if option != "dataset":
        shown = f"{option}="
    return Unpicklable(
        f"{name}: {shown} is a {type(part).__qualname__}, which cannot be sent to a worker process ({error}); open it "
        "at the first item or in a function, loader.items(lambda: MyDataset(...)), or make items in the training's "
        "thread with workers=0",
        what=shown,
        where=name,
        given=type(part).__qualname__,
        accepted="a value that can be pickled",
    )


def _can_be_pickled(value: object) -> bool:
    try:
        _pickle([value], _Size())
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return False
    return True


class Obstacle(NamedTuple):
    """An obstacle to starting worker processes automatically."""

    text: str | None
    """Reason against it, or None."""
    is_usual: bool = False
    """True if the user cannot change it."""
    sent_bytes: int = 0
    """Bytes sent to each worker."""


def why_not(recipe: Recipe) -> Obstacle:
    if current_process().daemon:
        return Obstacle("this process is itself a worker, and starts no others", True)
    for source, view in recipe.stored.items():
        name = recipe.plan.source_names[source]
        if dropped := getattr(getattr(view.version.store, "spec", None), "dropped", ()):
            return Obstacle(
                f"the store of source {name!r} was opened with {', '.join(dropped)}, and secrets are not sent to other "
                "processes; give them in the environment or in a profile"
            )
    try:
        return Obstacle(None, sent_bytes=check_can_be_sent(recipe))
    except InvalidRuntime as error:
        return Obstacle(str(error), not hasattr(os, "memfd_create"))


def _name_objects(recipe: Recipe) -> Iterator[tuple[str, object]]:
    if recipe.transform is not None:
        yield "transform", recipe.transform
    if isinstance(recipe.decode, Mapping):
        for field, decoder in recipe.decode.items():
            yield f"decode[{field!r}]", decoder
    for name, source in recipe.plan.sources.items():
        yield f"source {name!r}", source.view
    for number, dataset in _datasets(recipe):
        if isinstance(dataset.dataset, SentDataset):  # it was sent before
            continue
        yield f"source {recipe.plan.source_names[number]!r}", dataset


def _datasets(recipe: Recipe) -> Iterator[tuple[int, "ItemsSource"]]:
    """Yield (number, dataset) of the sources that are datasets."""
    for number, source in enumerate(recipe.plan.sources.values()):
        if isinstance(source.view, ItemsView) and source.view.source is not None:
            yield number, source.view.source


class _StartupPickler(pickle.Pickler):
    def __init__(self, into: "IO[bytes] | _Size", arrays: OutsideArrays) -> None:
        super().__init__(into, 5, buffer_callback=arrays.take_buffer)
        self._arrays = arrays

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType | _lru_cache_wrapper) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script")
        refuse_gpu(value)
        return self._arrays.reduce_value(value)


def _pickle(values: Sequence[object], into: "IO[bytes] | _Size") -> OutsideArrays:
    """Write a pickle of each value, by one memo; return the arrays that belong after them."""
    begin = into.tell()
    arrays = OutsideArrays()
    try:
        pickler = _StartupPickler(into, arrays)
        for value in values:
            pickler.dump(value)
        return arrays
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - tried again by value
        into.seek(begin)
        into.truncate(begin)
    import cloudpickle  # 20 ms, not needed for functions of modules

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            refuse_gpu(value)
            # cloudpickle sends a cached function by name.
            if isinstance(value, _lru_cache_wrapper) and value.__module__ == "__main__":
                return _with_cache, (value.__wrapped__, value.cache_parameters())
            if isinstance(value, Struct):  # cannot be pickled
                return Struct, (value.format,)
            reduced = arrays.reduce_value(value)
            if reduced is not NotImplemented:
                return reduced
            return super().reducer_override(value)

    arrays = OutsideArrays()
    by_value = ByValue(into, 5, buffer_callback=arrays.take_buffer)
    for value in values:
        by_value.dump(value)
    return arrays


def _with_cache(function: Callable[..., Any], settings: dict[str, Any]) -> Any:
    return lru_cache(**settings)(function)


def refuse_gpu(value: object) -> None:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # also None while torch is being imported
    if tensor is not None and isinstance(value, tensor) and value.device.type not in ("cpu", "meta"):
        raise pickle.PicklingError(f"it holds a tensor on {value.device}")


def _no_room(nbytes: int) -> str:
    return (
        f"{nbytes / 2**20:,.0f} MiB of arrays cannot be written into memory that worker processes share; raise the "
        "memory limit of this process or container, or let each process open them from a file, such as by "
        "numpy.load(path, mmap_mode='r')"
    )


class _Size(io.RawIOBase):
    nbytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.nbytes += size
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset

    def truncate(self, size: int | None = None) -> int:
        self.nbytes = size or 0
        return self.nbytes
