"""Add columns of the samples table to fetched samples."""

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from ...dataset.reading.sample_places import Map
from ...dataset.versions.version import View
from ...dataset.versions.view_columns import SampleColumns
from ...order.slots import Slots
from ..batch.columns import Columns
from ..recipe.decode import ReadyValue
from ..recipe.rank_slots import LocatedSamples


class TableColumns:
    """Reads the columns of a recipe's views; thread-safe. parallel_map: `map`, or a thread pool's."""

    def __init__(self, views: Mapping[int, View], parallel_map: Map) -> None:
        self._map = parallel_map
        # Buckets of a source are views of one version: they share a reader, and its cache.
        readers = dict[str, SampleColumns]()
        self._readers = dict[int, SampleColumns | None]()
        for source, view in views.items():
            if not view.columns:
                self._readers[source] = None
                continue
            key = repr((view.version.id, view.columns))
            if key not in readers:
                readers[key] = SampleColumns(view.version, view.columns)
            self._readers[source] = readers[key]

    def add(
        self,
        slots: Slots,
        located: LocatedSamples,
        payloads: dict[int, Any],
        bad: Container[int],
        columns: Columns | None,
    ) -> None:
        """Add values to `payloads`, or to `columns` if a sample has no payload: it needs no decoder.

        payloads: sample number -> its fields still to decode. bad: numbers of unreadable samples, which are left out.
        columns: the batch's; None if a transform needs all values.

        Raises: FieldMismatch for a sample without a value, or with one outside of the class names.
        """
        for source in np.unique(located.source).tolist():
            reader = self._readers[source]
            if reader is None:
                continue
            # int64: numbers of the source's samples, and their live ordinals
            numbers = np.flatnonzero(located.source == source)
            ordinals = slots.ordinal[located.rows[numbers]]
            for name, values in reader(ordinals, self._map).items():
                for number, value in zip(numbers.tolist(), values, strict=True):
                    if number in bad:
                        continue
                    if not reader.is_known(name, value):
                        raise reader.refusal(name, value, located.places.address(number).describe())
                    if columns is not None and number not in payloads:
                        columns.put(int(located.rows[number]), name, value)
                    else:
                        payloads.setdefault(number, {})[name] = ReadyValue(value)
