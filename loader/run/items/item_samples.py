"""Make the samples of a batch whose sources are datasets: item, fields, digest, transform."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt, DecodeFailed, InvalidSample, UnseededItems
from ...order.plan import Plan
from ...order.random.generators import item_words
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.items_view import ItemsView
from ..batch.batch import step_metrics
from ..recipe import generators
from ..recipe.decode import apply_transform
from ..recipe.recipe import Recipe
from .item_digest import sample_field_crcs
from .item_fields import fields_of
from .item_seeds import ItemSeeds, Words
from .open_dataset import OpenDataset, is_damage


@dataclass(frozen=True, slots=True, eq=False)
class ItemSample:
    """A sample made of an item."""

    key: str
    """Name of the item."""
    values: dict[str, Any]
    """Field -> value, after the transform."""
    crcs: dict[str, int]
    """Field -> CRC-32C of the item's value, before the transform."""


class SourceItems:
    """Makes one source's samples. One thread at a time gets items."""

    def __init__(self, recipe: Recipe, source: int, view: ItemsView) -> None:
        self._plan: Plan = recipe.plan
        self._name = recipe.plan.source_names[source]
        self._view = view
        self._transform = recipe.transform_of(source)
        self._dataset = OpenDataset(self._name, view)
        self._seeds = ItemSeeds()
        self._is_checked = False

    def __call__(self, slots: Slots, rows: I64) -> list[ItemSample | Corrupt]:
        """Return the sample of each row, or its error if its item is damaged.

        Raises: errors of the dataset's code, with a note that names the item; InvalidSample for an item that is no
        sample; UnseededItems if an item differs each time that it is made.
        """
        ordinals = slots.ordinal[rows].tolist()
        with self._dataset.turn:
            items = self._items(slots, rows, ordinals)
            if not self._is_checked:
                self._check_first(slots, rows, ordinals, items)
        samples: list[ItemSample | Corrupt] = []
        for row, ordinal, item in zip(rows.tolist(), ordinals, items, strict=True):
            if isinstance(item, Corrupt):
                samples.append(item)
            else:
                samples.append(self._sample(slots, row, ordinal, item))
        return samples

    def address(self, ordinal: int) -> SampleAddress:
        """Return what names an item in errors and ledgers: it has no bytes under a root."""
        (key,) = self._view.keys(np.array([ordinal], np.int64))
        return SampleAddress(
            key=key,
            version=self._view.name,
            version_id=self._view.identity,
            part="",
            row=ordinal,
            ordinal=ordinal,
            fields={},
        )

    def _items(self, slots: Slots, rows: I64, ordinals: Sequence[int]) -> list[Any]:
        """Return each row's item, or its error if it is damaged."""
        make_one = partial(self._one_item, slots, rows, ordinals)

        def make_all() -> list[Any]:
            try:
                return self._dataset.items(ordinals)
            except Exception as error:
                if not is_damage(error):
                    raise
            # One of them is damaged: single calls show which.
            return [make_one(number) for number in range(len(ordinals))]

        start = perf_counter()
        source = self._dataset.source
        if callable(source.seeded):
            items = [make_one(number) for number in range(len(ordinals))]
        else:
            words = partial(self._words, slots, rows)
            items = self._seeds.make(len(ordinals), words, make_all, make_one)
        step_metrics().spent("decode", perf_counter() - start)
        return items

    def _one_item(self, slots: Slots, rows: I64, ordinals: Sequence[int], number: int) -> Any:
        seed_dataset = self._dataset.source.seeded
        if callable(seed_dataset):
            place = generators.place_of(self._plan, slots, int(rows[number]))
            seed_dataset(self._dataset.dataset(), generators.for_transform(place))
        try:
            return self._dataset.item(ordinals[number])
        except Exception as error:
            if not is_damage(error):
                raise
            address = self.address(ordinals[number])
            return DecodeFailed(f"{address.describe()}: {type(error).__name__}: {error}")

    def _words(self, slots: Slots, rows: I64) -> Words:
        """Return the numbers that seed each row's item: a function of (seed, source, epoch, ordinal)."""
        words: list[tuple[int, int]] = [(0, 0)] * len(rows)
        epochs = slots.epoch[rows]  # [n]: mostly one epoch, two where one ends within the batch
        for epoch in np.unique(epochs).tolist():
            numbers = np.flatnonzero(epochs == epoch)
            ordinals = slots.ordinal[rows[numbers]]
            drawn = item_words(self._plan.seed, self._name, epoch, ordinals)
            for number, words_of_item in zip(numbers.tolist(), drawn, strict=True):
                words[number] = words_of_item
        return words

    def _sample(self, slots: Slots, row: int, ordinal: int, item: Any) -> ItemSample:
        address = self.address(ordinal)
        fields = self._fields(ordinal, item)
        crcs, _ = sample_field_crcs(fields, address.key)
        if self._transform is not None:
            place = generators.place_of(self._plan, slots, row)
            fields = apply_transform(self._transform, fields, address, generators.for_transform(place))
        return ItemSample(address.key, fields, crcs)

    def _fields(self, ordinal: int, item: Any) -> dict[str, Any]:
        source = self._dataset.source
        try:
            return fields_of(item, source.fields, self._dataset.dataset())
        except InvalidSample as error:
            raise InvalidSample(f"item {ordinal} of source {self._name!r} is no sample: {error}") from None

    def _check_first(self, slots: Slots, rows: I64, ordinals: Sequence[int], items: Sequence[Any]) -> None:
        """Make this process's first item twice. Raises: UnseededItems if it differs the second time."""
        self._is_checked = True
        if self._dataset.source.seeded is False:
            return
        for number, item in enumerate(items):
            if isinstance(item, Corrupt):
                continue
            ordinal = ordinals[number]
            first, _ = sample_field_crcs(self._fields(ordinal, item), "")
            (again,) = self._items(slots, rows[number : number + 1], ordinals[number : number + 1])
            if isinstance(again, Corrupt):
                return
            second, _ = sample_field_crcs(self._fields(ordinal, again), "")
            if first != second:
                changed = [field for field in first if first[field] != second.get(field)]
                raise UnseededItems(
                    f"item {ordinal} of source {self._name!r} differs each time that it is made, in the field "
                    f"{', '.join(map(repr, changed))}: the dataset draws from a generator of its own. Pass "
                    "loader.items(dataset, seeded=function(dataset, rng)), which seeds it, move the augmentation to "
                    "Loader(transform=), or accept it with seeded=False"
                )
            return


class DeliveredItems:
    """Samples of one source that were delivered, as a batch's digest and names need them."""

    def __init__(self, rows: I64, samples: Sequence[ItemSample]) -> None:
        """Keep the samples. rows: int64 [n], row of each sample in the batch."""
        self.rows = rows
        self._samples = samples

    def keys(self) -> list[str]:
        return [sample.key for sample in self._samples]

    def field_crcs(self) -> Iterator[tuple[I64, dict[str, I64]]]:
        """Yield (numbers, field -> int64 CRC-32C of each) for samples with the same fields."""
        by_names: dict[tuple[str, ...], list[int]] = {}
        for number, sample in enumerate(self._samples):
            by_names.setdefault(tuple(sample.crcs), []).append(number)
        for names, numbers in by_names.items():
            crcs = {}
            for name in names:
                values = [self._samples[number].crcs[name] for number in numbers]
                crcs[name] = np.array(values, np.int64)
            yield np.array(numbers, np.int64), crcs


def source_items(recipe: Recipe) -> dict[int, SourceItems]:
    """Return source -> the maker of its samples, for sources that are datasets."""
    makers: dict[int, SourceItems] = {}
    for source, planned in enumerate(recipe.plan.sources.values()):
        if isinstance(planned.view, ItemsView):
            makers[source] = SourceItems(recipe, source, planned.view)
    return makers


__all__ = ["DeliveredItems", "ItemSample", "SourceItems", "source_items"]
