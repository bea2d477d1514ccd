"""A dataset as this process has it: opened at its first item, and called by one thread at a time."""

import sys
from collections.abc import Sequence
from threading import RLock
from typing import Any

from ...errors import Corrupt, InvalidRuntime, PlanMismatch
from ...order.sources.items_source import ItemsSource
from ...order.sources.items_view import ItemsView, missing_text
from .item_watch import ItemWatch

# For all datasets of the process: items of two loaders draw from the same generators. And torch never calls a dataset
# from two threads: seek and read on one file gave wrong items without an error. An item may read another loader.
ITEM_TURN = RLock()

_IMAGE_ERRORS = ("PIL", "UnidentifiedImageError")
_MEDIA_ERRORS = ("av.error", "InvalidDataError")


class OpenDataset:
    """Gets items of one source by their ordinals."""

    def __init__(self, source_name: str, view: ItemsView) -> None:
        self._name = source_name
        self._view = view
        self._dataset: Any = None
        self.turn = ITEM_TURN
        self.watch = ItemWatch(source_name)

    @property
    def source(self) -> ItemsSource:
        """The dataset, and how it is called. Raises: InvalidRuntime if the plan was opened without it."""
        source = self._view.source
        if source is None:
            raise InvalidRuntime(
                missing_text(self._name, self._view),
                what="items",
                where=f"source {self._name!r}",
                given=self._view.name,
                accepted="the dataset",
            )
        return source

    def dataset(self) -> Any:
        """Return the dataset, opened once. Raises: PlanMismatch if it has another length than the plan."""
        if self._dataset is None:
            dataset = self.source.dataset
            if self.source.is_factory:
                dataset = dataset()
            n = len(dataset)
            if n != len(self._view):
                raise PlanMismatch(
                    f"source {self._name!r} has {n} items here, and {len(self._view)} in the plan; pass the dataset "
                    "that was planned, or make a new plan",
                    what="items",
                    where=f"source {self._name!r}",
                    given=n,
                    accepted=len(self._view),
                )
            self._dataset = dataset
        return self._dataset

    def close(self) -> None:
        """Close the dataset if a function opened it here; the next item opens it again."""
        self.watch.end()
        dataset = self._dataset
        self._dataset = None
        if dataset is not None and self.source.is_factory:
            close = getattr(dataset, "close", None)
            if callable(close):
                close()

    @property
    def has_bulk_call(self) -> bool:
        """Return whether one call returns several items, as of Hugging Face's datasets."""
        return hasattr(self.dataset(), "__getitems__")

    def items(self, ordinals: Sequence[int]) -> list[Any]:
        """Return several items, by `__getitems__` if the dataset has it."""
        dataset = self.dataset()
        get_items = getattr(dataset, "__getitems__", None)
        if get_items is None:
            return [self.item(ordinal) for ordinal in ordinals]
        self.watch.current.ordinal = (ordinals[0],)
        try:
            items = list(get_items(list(ordinals)))
        except Exception as error:
            error.add_note(f"while getting items {_first_few(ordinals)} of source {self._name!r}")
            raise
        if len(items) != len(ordinals):
            raise InvalidRuntime(
                f"source {self._name!r}: __getitems__ returned {len(items)} items for {len(ordinals)} numbers "
                f"({_first_few(ordinals)}); it must return one item for each, in their order",
                what="__getitems__",
                where=f"source {self._name!r}",
                given=len(items),
                accepted=len(ordinals),
            )
        return items

    def item(self, ordinal: int) -> Any:
        """Return one item. Raises: InvalidRuntime if the dataset has fewer items than it said; its own errors."""
        dataset = self.dataset()
        self.watch.current.ordinal = (ordinal,)
        try:
            return dataset[ordinal]
        except IndexError as error:
            raise InvalidRuntime(
                f"source {self._name!r} said that it has {len(self._view)} items, and has no item {ordinal} "
                f"(IndexError: {error}); correct its __len__, and let it not shrink during the run",
                what=f"item {ordinal}",
                where=f"source {self._name!r}",
                given=len(self._view),
            ) from error
        except Exception as error:
            error.add_note(f"while getting item {ordinal} of source {self._name!r}")
            raise


def is_damage(error: Exception) -> bool:
    """Return whether an item's error is about its bytes, so that a substitute may stand for it.

    These are `Corrupt`, errors of Pillow and PyAV for bytes that they cannot read, and an OSError without a number,
    which Pillow raises for a truncated image. Any other error is one of code or of the machine.
    """
    if isinstance(error, Corrupt):
        return True
    if type(error) is OSError and error.errno is None:
        return True
    for module, name in (_IMAGE_ERRORS, _MEDIA_ERRORS):
        kind = getattr(sys.modules.get(module), name, None)  # who has not imported it raises none
        if kind is not None and isinstance(error, kind):
            return True
    return False


def _first_few(ordinals: Sequence[int]) -> str:
    shown = ", ".join(map(str, ordinals[:4]))
    if len(ordinals) > 4:
        return f"{shown} and {len(ordinals) - 4} more"
    return shown
