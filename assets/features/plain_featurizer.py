"""A featurizer as JSON for a cluster's nodes: its class and parameters."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from loader.errors import Corrupt, InvalidRuntime
from penstock.compute.job_json import from_json, from_mapping, to_json

from ..featurizers import Featurizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFeaturizer:
    """A featurizer as its class and parameters."""

    place: str
    """Class, as 'module:class'."""
    parameters: dict[str, Any]
    """Field -> JSON value."""

    def build(self, packages: Sequence[str]) -> Featurizer:
        """Return the featurizer. Raises: InvalidRuntime if it or its network is outside these packages."""
        network = str(self.parameters.get("network", ""))
        for what, place in (("featurizer", self.place), ("network", network)):
            # A job's description comes from the store. Without this check a forged one would import any module.
            if ":" in place and place.partition(":")[0].partition(".")[0] not in packages:
                raise InvalidRuntime(
                    f"{what} {place!r} is not in the accepted packages {', '.join(sorted(packages))}: add its package "
                    "to `packages` in the cluster's file",
                    what=what,
                    given=place,
                    accepted=sorted(packages),
                )
        return self.load()

    def load(self) -> Featurizer:
        """Return the featurizer, whatever package it is from."""
        module, _, name = self.place.partition(":")
        featurizer: Featurizer = from_mapping(self.parameters, getattr(import_module(module), name))
        return featurizer


def plain_featurizer(featurizer: Featurizer) -> PlainFeaturizer | None:
    """Return a featurizer as class and parameters; None if these do not rebuild an equal one."""
    kind = type(featurizer)
    try:
        text = to_json(
            PlainFeaturizer(place=f"{kind.__module__}:{kind.__qualname__}", parameters=asdict(featurizer))
        )
        plain = from_json(text, PlainFeaturizer, "a featurizer")
        # Equal parameters are not proof: a class may keep state that asdict does not show.
        again = plain.load()
    except (TypeError, ValueError, AttributeError, Corrupt):  # parameters not plain, or a local class
        return None
    if again == featurizer:
        return plain
    return None
