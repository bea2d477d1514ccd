"""The result of a takedown run."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class TakedownReport:
    """The result of a run."""

    n: int
    """Number of the takedown's log entry."""
    applied: bool
    """True if applied; False for a dry run."""
    samples: dict[str, int] = field(default_factory=dict)
    """Dataset -> number of samples."""
    new: list[str] = field(default_factory=list)
    """Names of published versions."""
    retired: list[str] = field(default_factory=list)
    """Names of retired versions."""
    touched: list[str] = field(default_factory=list)
    """Paths of rewritten or deleted objects."""
    uris: list[str] = field(default_factory=list)
    """URIs of raw objects of these samples only."""
    deleted: list[str] = field(default_factory=list)
    """Raw objects among `uris` that were deleted, by this run or an earlier one."""
    shared: list[str] = field(default_factory=list)
    """URIs of raw objects that stay, because something else needs them."""
    refused: dict[str, str] = field(default_factory=dict)
    """URI of a raw object that was not deleted -> reason."""
    adopted: list[str] = field(default_factory=list)
    """Paths of adopted objects that hold samples denied by any takedown."""
    waiting: int = 0
    """Objects that wait for a collector."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    def text(self) -> str:
        """Return the text for people."""
        n = sum(self.samples.values())
        lines = [
            f"takedown {self.n}: {n} samples" + "".join(f", {k} in {d}" for d, k in self.samples.items())
        ]
        if not self.applied:
            any_found = n or self.adopted
            lines.append(
                "  nothing was changed: --apply does it" if any_found else "  nothing to do in any version"
            )
        lines += [f"  adopted object that holds denied samples: {path}" for path in self.adopted]
        lines += [f"  published {name}" for name in self.new] + [f"  retired {name}" for name in self.retired]
        if self.touched:
            lines.append(f"  rewrote or deleted {len(self.touched)} objects of no version")
        if self.waiting:
            lines.append(f"  {self.waiting} objects wait for a collector: penstock gc sweep")
        deleted = set(self.deleted)
        for uri in self.uris:
            state = (
                f"left at its source ({self.refused[uri]})" if uri in self.refused else "left at its source"
            )
            lines.append(f"  raw object, {'deleted at its source' if uri in deleted else state}: {uri}")
        lines += [f"  raw object that others need too, left at its source: {uri}" for uri in self.shared]
        return "\n".join(lines)
