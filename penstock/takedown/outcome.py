"""What a run of a takedown found and did, for people and as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Ran:
    """What was found, and with `applied` done. samples: by dataset.

    New, retired: names of versions; touched: objects that were rewritten or deleted; uris: of the raw objects that only
    these samples were cut of; deleted: those of them that were deleted at their source, by this run or an earlier one;
    shared: URIs of raw objects that something else was cut of too, or is to be, which stay; refused: URIs of those that
    were to be deleted and are not, each with why; waiting: how many objects a collector has to take.
    """

    n: int
    applied: bool
    samples: dict[str, int] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    uris: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        n = sum(self.samples.values())
        lines = [
            f"takedown {self.n}: {n} samples" + "".join(f", {k} in {d}" for d, k in self.samples.items())
        ]
        if not self.applied:
            lines.append("  nothing was changed: --apply does it" if n else "  nothing to do in any version")
        lines += [f"  published {name}" for name in self.new] + [f"  retired {name}" for name in self.retired]
        if self.touched:
            lines.append(f"  rewrote or deleted {len(self.touched)} objects of no version")
        if self.waiting:
            lines.append(f"  {self.waiting} objects wait for a collector: penstock gc sweep")
        gone = set(self.deleted)
        for uri in self.uris:
            left = (
                f"left at its source ({self.refused[uri]})" if uri in self.refused else "left at its source"
            )
            lines.append(f"  raw object, {'deleted at its source' if uri in gone else left}: {uri}")
        lines += [f"  raw object that others need too, left at its source: {uri}" for uri in self.shared]
        return "\n".join(lines)
