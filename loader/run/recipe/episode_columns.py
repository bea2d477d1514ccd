"""Columns of the samples table that windows hand out, such as the robot: read once per process, at the first window."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from ...dataset.shards.address import SampleAddress
from ...errors import DecodeFailed


class EpisodeColumns:
    """Values of columns for a version's episodes; thread-safe. Takes about 8 bytes per episode and column."""

    def __init__(self, version: Any, names: Sequence[str]) -> None:
        self._version, self._names = version, names
        self._values: Mapping[str, Any] | None = None
        self._lock = Lock()

    def of(self, address: SampleAddress) -> dict[str, Any]:
        """Return column -> value of an episode. Raises: DecodeFailed for a null."""
        if not self._names:
            return {}
        with self._lock:
            if self._values is None:
                self._values = column_values(self._version, self._names)
        row = {name: values[address.ordinal] for name, values in self._values.items()}
        for name, value in row.items():
            if value is None:
                raise DecodeFailed(
                    f"{address.describe()} has no {name!r} in the samples table, which columns= hands out: leave it "
                    f'out with where("{name} IS NOT NULL")'
                )
        return row


def column_values(version: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return column -> its values, one per live ordinal of a version. Raises: FieldNotFound."""
    from ...dataset.versions.samples_table import live_values  # imports polars

    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    frame = live_values(version, quoted, f"columns={list(names)}")
    return {name: frame[str(number)] for number, name in enumerate(names)}
