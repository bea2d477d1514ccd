"""The result of a run of a takedown, for people and as JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Ran:
    """The result of a run."""

    n: int
    """Number of the takedown's log entry."""
    applied: bool
    """True where it was done; false where it was only looked for."""
    samples: dict[str, int] = field(default_factory=dict)
    """Dataset -> number of samples."""
    new: list[str] = field(default_factory=list)
    """Names of the versions that were published."""
    retired: list[str] = field(default_factory=list)
    """Names of the versions that were retired."""
    touched: list[str] = field(default_factory=list)
    """Paths of objects that were rewritten or deleted."""
    uris: list[str] = field(default_factory=list)
    """URIs of the raw objects that only these samples were cut of."""
    deleted: list[str] = field(default_factory=list)
    """Those of `uris` that were deleted at their source, by this run or an earlier one."""
    shared: list[str] = field(default_factory=list)
    """URIs of raw objects that something else was cut of too, or is to be, which stay."""
    refused: dict[str, str] = field(default_factory=dict)
    """URI of a raw object that was to be deleted and was not -> reason."""
    adopted: list[str] = field(default_factory=list)
    """Paths of adopted objects that hold samples denied by any takedown."""
    waiting: int = 0
    """Number of objects that a collector has to take."""

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return asdict(self)

    def text(self) -> str:
        """Return the text for people."""
        n = sum(self.samples.values())
        lines = [
            f"takedown {self.n}: {n} samples" + "".join(f", {k} in {d}" for d, k in self.samples.items())
        ]
        if not self.applied:
            some = n or self.adopted
            lines.append(
                "  nothing was changed: --apply does it" if some else "  nothing to do in any version"
            )
        lines += [
            f"  adopted object that holds samples which are taken down: {path}" for path in self.adopted
        ]
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
