"""Featurizers: pure functions from the encoded fields of one sample to new fields and columns."""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, get_args

from loader.modalities import check_field

from ..media.unit import Kind
from .decoding import inputs_of

Column = bool | int | float | str | None

KINDS = frozenset(get_args(Kind))
"""Kinds of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of one sample.

    Raises: InvalidField (a field name), TypeError (a column's type), ValueError (NaN or infinity).
    """

    fields: Mapping[str, Any]
    """Field name -> value that `loader.modalities.encode` takes; the same names for every sample of a kind."""
    columns: Mapping[str, Column]
    """Score columns of plain Python values, with units in their names; the same names for every sample of a kind.
    Floats are finite, and an unknown value is None."""

    def __post_init__(self) -> None:
        for field in self.fields:
            check_field(field)
        for name, value in self.columns.items():
            if type(value) not in (bool, int, float, str, type(None)):
                raise TypeError(f"column {name!r} is {value!r}; accepted: bool, int, float, str, None")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"column {name!r} is {value}; what cannot be measured is None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Featurizer(ABC):
    """A featurizer states its name, its kinds' fields and its outputs, and has `__call__`.

    Instances pickle and keep no state: the same bytes give the same features, in any process. A dataclass field named
    image, video, audio or text holds the field to read of samples of that kind; None leaves the kind out. All other
    dataclass fields are parameters, and all are part of the version.
    """

    code: ClassVar[int] = 1
    """Version of the code, raised by every change of the features that it computes."""
    output_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that every sample gets, of every kind; override `outputs` where kinds differ."""
    output_columns: ClassVar[tuple[str, ...]] = ()
    """Score columns that every sample gets, of every kind; override `columns` where kinds differ."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the featurizer, and of the group that its fields are stored in."""

    @property
    def version(self) -> str:
        """Version that changes whenever the features may: see `version_of`."""
        return version_of(self.code, asdict(self))

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        """kind -> fields that it reads."""
        return inputs_of(
            **{item.name: getattr(self, item.name) for item in fields(self) if item.name in KINDS}
        )

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds that it takes."""
        return frozenset(self.inputs)

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        """kind -> fields that every sample of it gets, () for columns only."""
        return dict.fromkeys(self.inputs, self.output_fields)

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """kind -> score columns that every sample of it gets, () for fields only."""
        return dict.fromkeys(self.inputs, self.output_columns)

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Output field -> facts of it: text, whole numbers and lists, which dataset versions keep for ever.

        They hold for every sample of this `version`; other facts are another `code` (docs/format.md).
        """
        return {}

    @abstractmethod
    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        """Return the features of one sample; `sample` holds the encoded bytes of the kind's inputs.

        Raises: assets.media.unit.Unusable (rejected, stage "featurize") for bytes that it cannot take, and nothing else
        for any bytes whatever; ValueError for a kind that is not its own.
        """


def version_of(code: int, parameters: Mapping[str, Any], *weights: str) -> str:
    """Return '<code>-<8 hex>': the code's own number, and a hash of parameters and of weights (their sha256).

    parameters: values that JSON holds; code: raised by every change of the features that are computed.
    """
    stated = json.dumps([dict(parameters), *weights], sort_keys=True, ensure_ascii=False, allow_nan=False)
    return f"{code}-{hashlib.sha256(stated.encode()).hexdigest()[:8]}"
