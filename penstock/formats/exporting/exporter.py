"""The interface of an exporter, and the refusal of lossy exports."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from loader.errors import LossyExport

from .outbox import Outbox
from .selection import ExportSelection, WorkUnit


class Loss(NamedTuple):
    """Something that a format cannot hold."""

    name: str
    """The field or column, such as "field 'Jpg'"."""
    why: str
    """The reason, and the consequence."""


class Exporter(Protocol):
    """A module that exports a format."""

    def losses(self, selection: ExportSelection) -> list[Loss]:
        """Return everything that the format cannot hold."""

    def units(self, selection: ExportSelection) -> list[WorkUnit]:
        """Return runs of samples in order, each of which becomes whole objects; deterministic."""

    def write(self, selection: ExportSelection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
        """Put the objects of a unit, and return facts for `finish`. Raises: Corrupt; StoreError."""

    def finish(self, selection: ExportSelection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
        """Put the objects that describe all units. facts: of each unit, in order."""


def refuse(format: str, name: str, losses: Sequence[Loss]) -> None:
    """Raise LossyExport that names each loss, if there are any. name: of the version."""
    if losses:
        lines = [f"  {loss.name}: {loss.why}" for loss in losses]
        raise LossyExport(
            "\n".join(
                [
                    f"{format} cannot hold all of {name}:",
                    *lines,
                    "leave it out with --without NAME, or accept the loss with --lossy",
                ]
            )
        )
