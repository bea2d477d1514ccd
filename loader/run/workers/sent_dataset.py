"""A dataset whose only copy is the memory that worker processes map.

A trainer whose workers make all items needs no dataset itself. If nothing except the plan refers to it, the trainer
drops it once it is sent, so that its arrays lie in memory once. It opens the workers' copy if it needs items later.
"""

import os
import pickle
import sys
import weakref
from dataclasses import replace
from typing import Any

from ...order.sources.items_source import ItemsSource
from .shared_array_reads import HEAD_BYTES, ArrayUnpickler, map_private

LEAST_BYTES = 16 * 2**20
"""Smallest memory for which a dataset is dropped."""


class SentDataset:
    """Opens a dataset from a startup message's memory, in the trainer."""

    def __init__(
        self,
        fd: int,
        source: int,
        type_name: str,
    ) -> None:
        """Keep the memory. source: number of the plan's source. type_name: the dataset's class."""
        self._fd = os.dup(fd)
        self._source = source
        self.type_name = type_name
        finalizer = weakref.finalize(self, os.close, self._fd)
        finalizer.atexit = False

    def __repr__(self) -> str:
        return f"<the {self.type_name} that worker processes share>"

    def __call__(self) -> Any:
        """Return a copy of the dataset, whose arrays share the workers' memory."""
        memory = map_private(self._fd)
        memory.seek(HEAD_BYTES)
        pickle.load(memory)  # noqa: S301 - sys.argv, as this process wrote it
        items: dict[int, ItemsSource] = ArrayUnpickler(memory).load()
        return items[self._source].dataset


def release_original(
    source: ItemsSource,
    fd: int,
    number: int,
    nbytes: int,
) -> None:
    """Replace a source's dataset by its copy in a memory of `nbytes` if nothing else refers to it."""
    dropped = source.dataset
    if isinstance(dropped, SentDataset):  # the earlier memory may go now
        source.dataset = SentDataset(fd, number, dropped.type_name)
        return
    del dropped  # it would count as a reference
    if source.is_factory or nbytes < LEAST_BYTES:
        return
    kind = type(source.dataset)
    if hasattr(kind, "__del__") or not _is_sole_reference(source):
        return
    source.dataset = SentDataset(fd, number, f"{kind.__module__}.{kind.__qualname__}")
    source.is_factory = True


def with_dataset(source: ItemsSource) -> ItemsSource:
    """Return the source as a worker process gets it: with its dataset, if this process dropped it."""
    if isinstance(source.dataset, SentDataset):
        return replace(
            source,
            dataset=source.dataset(),
            is_factory=False,
        )
    return source


def _is_sole_reference(source: ItemsSource) -> bool:
    # What the interpreter counts besides differs between its versions, and is the same for both.
    probe = replace(source, dataset=object())
    return sys.getrefcount(source.dataset) == sys.getrefcount(probe.dataset)
