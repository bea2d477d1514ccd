"""Make the samples of a batch whose sources are datasets: item, fields, digest, transform."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ...dataset.shards.address import SampleAddress
from ...errors import Corrupt, DecodeFailed, InvalidSample, UnseededItems
from ...order.plan import Plan
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.items_view import ItemsView
from ..batch.batch import step_metrics
from ..recipe.decode import apply_transform
from ..recipe.recipe import Recipe
from .framework_values import device_beyond_memory, with_arrays
from .item_digest import sample_field_crcs
from .item_fields import item_columns, item_fields
from .item_seeds import ItemSeeds
from .open_dataset import OpenDataset, is_damage
from .requested_items import RequestedItems
from .uniform_items import UniformItems

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ItemSample:
    """A sample of an item. Not frozen: that takes three times as long to make."""

    key: str
    """Name of the item."""
    values: dict[str, Any]
    """Field -> value, after the transform."""
    item_fields: tuple[str, ...]
    """Names of the item's fields, before the transform."""
    crcs: tuple[int, ...]
    """CRC-32C of each of these fields. (Another dict per sample would keep the garbage collector busy.)"""
    item: Any
    """The item as the dataset returned it."""


def item_address(
    view: ItemsView,
    ordinal: int,
) -> SampleAddress:
    """Return the names of an item for errors and ledgers: it has no bytes under a root."""
    ordinals = np.array([ordinal], np.int64)
    (key,) = view.keys(ordinals)
    return SampleAddress(
        key=key,
        version=view.name,
        version_id=view.identity,
        part="",
        row=ordinal,
        ordinal=ordinal,
        fields={},
    )


class SourceItems:
    """Makes one source's samples. One thread at a time gets items."""

    def __init__(
        self,
        recipe: Recipe,
        source: int,
        view: ItemsView,
        *,
        is_sent: bool = False,
    ) -> None:
        """Make one source's samples. is_sent: True if they go to another process."""
        self._plan: Plan = recipe.plan
        self._is_sent = is_sent
        self._has_arrays_only = recipe.framework != "torch"
        self._fields_without_bytes: set[str] = set()
        self._name = recipe.plan.source_names[source]
        self._view = view
        self._transform = recipe.source_transform(source)
        self._dataset = OpenDataset(self._name, view)
        self._seeds = ItemSeeds()
        self._is_checked = False
        if recipe.recorded is None:
            # A training makes items; a replay may only ask for the order.
            _ = self._dataset.source

    def __call__(
        self,
        slots: Slots,
        rows: I64,
    ) -> list[ItemSample | Corrupt]:
        """Return the sample of each row, or its error if its item is damaged.

        Raises: errors of the dataset's code, with a note that names the item; InvalidSample for an item that is no
        sample; UnseededItems if an item differs each time.
        """
        requested = RequestedItems(self._plan, self._name, slots, rows)
        keys = self._view.keys(slots.ordinal[rows])
        items = self._check_items(requested)
        return self._samples(requested, keys, items)

    def uniform(
        self,
        slots: Slots,
        rows: I64,
    ) -> UniformItems | list[ItemSample | Corrupt]:
        """Return the samples field by field if all have one form and no transform changes them, else as a call does."""
        requested = RequestedItems(self._plan, self._name, slots, rows)
        keys = self._view.keys(slots.ordinal[rows])
        items = self._check_items(requested)
        if self._transform is None:
            names = self._dataset.source.fields
            columns = item_columns(items, names, self._dataset.dataset())
            if columns is not None:
                uniform = UniformItems(rows, keys, items, columns)
                if self._has_arrays_only:
                    uniform.use_arrays()
                return uniform
        return self._samples(requested, keys, items)

    def _check_items(self, requested: RequestedItems) -> list[Any]:
        """Return each row's item, or its error. The first call checks that items can be sent and repeated."""
        with self._dataset.turn:
            items = self._items(requested)
            if not self._is_checked:
                if self._is_sent:
                    self._check_memory(requested, items)
                self._check_repeatable(requested, items)
                # Only now: steps that were made together and failed are made again one by one.
                self._is_checked = True
        return items

    def _samples(
        self,
        requested: RequestedItems,
        keys: Sequence[str],
        items: Sequence[Any],
    ) -> list[ItemSample | Corrupt]:
        """Return the sample of each item. keys, items: of each requested row; an item may be an error."""
        samples: list[ItemSample | Corrupt] = []
        for number, item in enumerate(items):
            if isinstance(item, Corrupt):
                samples.append(item)
                continue
            sample = self._sample(requested, number, keys[number], item)
            samples.append(sample)
        return samples

    @property
    def is_missing(self) -> bool:
        """True if the plan was opened without the dataset."""
        return self._view.source is None

    def address(self, ordinal: int) -> SampleAddress:
        """Return the names of an item for errors and ledgers: it has no bytes under a root."""
        return item_address(self._view, ordinal)

    def close(self) -> None:
        with self._dataset.turn:
            self._dataset.close()

    def _items(self, requested: RequestedItems) -> list[Any]:
        """Return each row's item, or its error if it is damaged."""

        def make_one(number: int) -> Any:
            return self._one_item(requested, number)

        def make_all() -> list[Any]:
            return self._all_items(requested)

        start = perf_counter()
        n = len(requested.ordinals)
        seeded = self._dataset.source.seeded
        watch = self._dataset.watch
        watch.start()
        try:
            if callable(seeded):
                items = [make_one(number) for number in range(n)]
            else:
                items = self._seeds.make(n, requested.words, make_all, make_one)
        finally:
            watch.current.ordinal = None
        seconds = perf_counter() - start
        step_metrics().add_seconds("decode", seconds)
        return items

    def _all_items(self, requested: RequestedItems) -> list[Any]:
        """Return all items by one call, or one by one if one of them is damaged."""
        try:
            return self._dataset.items(requested.ordinals)
        except Exception as error:
            if not is_damage(error):
                raise
        # Single calls show which item is damaged.
        n = len(requested.ordinals)
        return [self._one_item(requested, number) for number in range(n)]

    def _one_item(
        self,
        requested: RequestedItems,
        number: int,
    ) -> Any:
        """Return one row's item, made by itself, or its error if it is damaged. number: of the requested row."""
        seed_dataset = self._dataset.source.seeded
        if callable(seed_dataset):
            rng = requested.generator(number)
            seed_dataset(self._dataset.dataset(), rng)
        ordinal = requested.ordinals[number]
        try:
            return self._dataset.item(ordinal)
        except Exception as error:
            if not is_damage(error):
                raise
            item = self.address(ordinal).describe()
            kind = type(error).__name__
            return DecodeFailed(f"{item}: {kind}: {error}", what="item", where=item, given=kind)

    def _sample(
        self,
        requested: RequestedItems,
        number: int,
        key: str,
        item: Any,
    ) -> ItemSample:
        """Return the sample of an item. Checksums are of the item, before the transform."""
        ordinal = requested.ordinals[number]
        fields = self._fields(ordinal, item)
        crcs, _ = sample_field_crcs(fields, key)
        if self._transform is not None:
            fields = self._transform_item(requested, number, fields)
        if self._has_arrays_only:
            fields = with_arrays(fields)
        return ItemSample(
            key,
            fields,
            tuple(crcs),
            tuple(crcs.values()),
            item,
        )

    def _transform_item(
        self,
        requested: RequestedItems,
        number: int,
        fields: dict[str, Any],
    ) -> dict[str, Any]:
        assert self._transform is not None
        address = self.address(requested.ordinals[number])
        rng = requested.generator(number)
        return apply_transform(
            self._transform,
            fields,
            address,
            rng,
        )

    def _check_memory(
        self,
        requested: RequestedItems,
        items: Sequence[Any],
    ) -> None:
        """Check the first healthy item. Raises: InvalidSample for a tensor that a worker process cannot send."""
        for ordinal, item in zip(requested.ordinals, items, strict=True):
            if isinstance(item, Corrupt):
                continue
            for name, value in self._fields(ordinal, item).items():
                device = device_beyond_memory(value)
                if device is not None:
                    raise InvalidSample(
                        f"item {ordinal} of source {self._name!r} has a tensor on {device} in the field {name!r}, and "
                        "worker processes send memory of the CPU only: return it by .cpu(), and let Loader(device=) "
                        "copy batches, or pass workers=0",
                        what=name,
                        where=f"item {ordinal} of source {self._name!r}",
                        given=str(device),
                        accepted="memory of the CPU",
                    )
            return

    def _warn_fields(
        self,
        names: Sequence[str],
        fields: Mapping[str, Any],
    ) -> None:
        """Log fields whose values have no bytes, each once."""
        for name in names:
            if name in self._fields_without_bytes:
                continue
            self._fields_without_bytes.add(name)
            logger.warning(
                "source %r: the field %r holds objects without bytes (%s), so digests count the item's name in their "
                "place, and changed values go unnoticed: return arrays, numbers or strings",
                self._name,
                name,
                type(fields[name]).__name__,
            )

    def _fields(
        self,
        ordinal: int,
        item: Any,
    ) -> dict[str, Any]:
        """Return field -> value of an item. Raises: InvalidSample, which names the item."""
        names = self._dataset.source.fields
        dataset = self._dataset.dataset()
        try:
            return item_fields(item, names, dataset)
        except InvalidSample as error:
            raise error.with_message(
                f"item {ordinal} of source {self._name!r} is not a sample: {error}",
                where=f"item {ordinal} of source {self._name!r}",
            ) from None

    def _check_repeatable(
        self,
        requested: RequestedItems,
        items: Sequence[Any],
    ) -> None:
        """Make the first healthy item a second time, by itself. Raises: UnseededItems if it differs."""
        if self._dataset.source.seeded is False:
            return
        healthy = [number for number, item in enumerate(items) if not isinstance(item, Corrupt)]
        checked = healthy[:1]
        if self._dataset.has_bulk_call and healthy[1:]:
            # An item padded to the longest of its call is unchanged if it is the longest: the last one is not, too.
            checked.append(healthy[-1])
        for number in checked:
            self._check_item(requested, number, items[number])

    def _check_item(
        self,
        requested: RequestedItems,
        number: int,
        item: Any,
    ) -> None:
        """Raise UnseededItems if an item has other values when it is made again. Logs fields without bytes."""
        ordinal = requested.ordinals[number]
        fields = self._fields(ordinal, item)
        first, without_bytes = sample_field_crcs(fields, "")
        self._warn_fields(without_bytes, fields)
        second = self._crcs_again(requested, number)
        if second is None or first == second:
            return
        changed = [field for field in first if first[field] != second.get(field)]
        names = ", ".join(repr(field) for field in changed)
        item_name = f"item {ordinal} of source {self._name!r}"
        if self._dataset.has_bulk_call and second == self._crcs_again(requested, number):
            raise UnseededItems(
                f"{item_name} depends on the items that one call of __getitems__ returns with it, in the field "
                f"{names}, and so on the number of ranks: padding to the longest does this. Pad to one length, or by "
                "loader.items(dataset, collate=function)",
                what=", ".join(changed),
                where=item_name,
                given="other values beside other items",
            )
        raise UnseededItems(
            f"{item_name} differs each time that it is made, in the field {names}: the "
            "dataset draws from a generator of its own. Pass loader.items(dataset, seeded=function(dataset, rng)), "
            "which seeds it, move the augmentation to Loader(transform=), or accept it with seeded=False",
            what=", ".join(changed),
            where=item_name,
            given="other values each time",
        )

    def _crcs_again(
        self,
        requested: RequestedItems,
        number: int,
    ) -> dict[str, int] | None:
        """Return the checksums of an item that is made again by itself; None if it is damaged now."""
        only_this = requested.single(number)
        (again,) = self._items(only_this)
        if isinstance(again, Corrupt):
            return None
        fields = self._fields(requested.ordinals[number], again)
        crcs, _ = sample_field_crcs(fields, "")
        return crcs


class DeliveredItems:
    """Samples of one source that were delivered, as a batch's digest and names need them."""

    def __init__(
        self,
        rows: I64,
        samples: Sequence[ItemSample],
    ) -> None:
        """Keep the samples. rows: int64 [n], row of each sample in the batch."""
        self.rows = rows
        self._samples = samples

    @property
    def are_tuples(self) -> bool:
        """True if the first item is a tuple; a dataset's items are mostly alike."""
        return bool(self._samples) and isinstance(self._samples[0].item, tuple)

    def item_range(self, rows: slice) -> list[Any]:
        """Return the items of a range of rows, in order, as the dataset returned them."""
        first, stop = np.searchsorted(self.rows, [rows.start, rows.stop]).tolist()
        return [sample.item for sample in self._samples[first:stop]]

    def keys(self) -> list[str]:
        return [sample.key for sample in self._samples]

    def field_crcs(self) -> Iterator[tuple[I64, dict[str, I64]]]:
        """Yield (numbers, field -> int64 CRC-32C of each) for samples with the same fields."""
        by_names: dict[tuple[str, ...], list[int]] = {}
        for number, sample in enumerate(self._samples):
            by_names.setdefault(sample.item_fields, []).append(number)
        for names, numbers in by_names.items():
            listed = [self._samples[number].crcs for number in numbers]
            by_sample = np.array(listed, np.int64)  # [numbers, fields]
            crcs = dict(zip(names, by_sample.T, strict=True))
            yield np.array(numbers, np.int64), crcs


SourceSamples = DeliveredItems | UniformItems
"""Samples of one source that were delivered."""


def source_items(recipe: Recipe, *, is_sent: bool) -> dict[int, SourceItems]:
    """Return source -> the maker of its samples, for sources that are datasets.

    is_sent: True if the samples go to another process.
    """
    makers: dict[int, SourceItems] = {}
    for source, planned in enumerate(recipe.plan.sources.values()):
        view = planned.view
        if isinstance(view, ItemsView):
            makers[source] = SourceItems(
                recipe,
                source,
                view,
                is_sent=is_sent,
            )
    return makers


__all__ = ["DeliveredItems", "ItemSample", "SourceItems", "SourceSamples", "source_items"]
