"""The message that a worker process gets when it starts, in memory that only it is handed.

Stores travel as their specs, without secrets; nothing stands in the command line or the environment.
"""

import io
import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import PROT_READ, mmap
from multiprocessing import current_process
from types import FunctionType
from typing import Any

from ...cache.spec import CacheSpec
from ...errors import InvalidRuntime, Unpicklable
from ..recipe.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Everything a worker needs to make the batches that the trainer would make."""

    recipe: Recipe
    """Recipe of the batches."""
    cache: CacheSpec
    """Settings of the cache."""
    log_level: int
    """Level of the package's logger."""

    @staticmethod
    def of(recipe: Recipe, cache: CacheSpec) -> "Sent":
        return Sent(recipe=recipe, cache=cache, log_level=logging.getLogger(__package__).getEffectiveLevel())

    def written(self) -> int:
        """Return a descriptor of memory that holds it, for as many workers as are handed it. Raises: Unpicklable."""
        check_can_be_sent(self.recipe)
        data = _pickled(self)
        with os.fdopen(os.memfd_create("penstock-recipe", os.MFD_CLOEXEC), "wb") as file:
            file.write(data)
            file.flush()
            return os.dup(file.fileno())

    @staticmethod
    def read(fd: int) -> "Sent":
        """Return the message in this memory. Raises: errors of unpickling (a module or store that does not open)."""
        with os.fdopen(fd, "rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as data:
            sent: Sent = pickle.loads(data)  # noqa: S301 - from the trainer
        return sent


def check_can_be_sent(recipe: Recipe) -> None:
    """Raise Unpicklable naming what keeps a recipe in this process; InvalidRuntime where there are no workers."""
    if not hasattr(os, "memfd_create"):
        raise InvalidRuntime(
            "executor = 'processes' needs anonymous shared memory, which only Linux has; use 'threads'"
        )
    for name, view in zip(recipe.plan.source_names, recipe.views, strict=True):
        urls = getattr(view.version.shard_store, "urls", [view.version.store.url])
        if in_memory := [url for url in urls if url.startswith("memory:")]:
            raise Unpicklable(
                f"source {name!r} lies in the memory of this process ({in_memory[0]}); write it to a disk or "
                "bucket, or use executor='threads'"
            )
    for name, value in _named(recipe):
        try:
            _pickled(value)
        except Exception as error:
            raise Unpicklable(
                f"{name} = {value!r} cannot be sent to a worker process ({error}); put it at the top level of a "
                "module that the script imports, or use executor='threads'"
            ) from error


def why_not(recipe: Recipe) -> str | None:
    """Return the reason not to start workers unasked; None where nothing speaks against it."""
    if current_process().daemon:
        return "this process is itself a worker, and starts no others"
    for name, view in zip(recipe.plan.source_names, recipe.views, strict=True):
        if dropped := getattr(getattr(view.version.store, "spec", None), "dropped", ()):
            return (
                f"the store of source {name!r} was opened with {', '.join(dropped)}, and secrets are not sent to other "
                "processes; give them in the environment or in a profile"
            )
    try:
        check_can_be_sent(recipe)
    except InvalidRuntime as error:
        return str(error)
    return None


def _named(recipe: Recipe) -> Iterator[tuple[str, object]]:
    """Yield the parts of a recipe that the user made."""
    if recipe.transform is not None:
        yield "transform", recipe.transform
    if isinstance(recipe.decode, Mapping):
        for field, decoder in recipe.decode.items():
            yield f"decode[{field!r}]", decoder
    for name, source in recipe.plan.sources.items():
        yield f"source {name!r}", source.view


class _Pickler(pickle.Pickler):
    """Refuses classes and functions of the script itself.

    A worker does not run the script again, which would start another training where it has no `if __name__ ==
    "__main__"`.
    """

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in the script that was started, which workers do not import"
            )
        return NotImplemented


def _pickled(value: object) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, 5).dump(value)
    return stream.getvalue()
