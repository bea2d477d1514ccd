"""The report of `penstock pack`."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    name: str
    """Version that has the sequences."""
    id: str
    """Id of that version."""
    documents: str
    """Version that was packed."""
    sequences: int
    """Live sequences."""
    added: int
    """Sequences that this version added."""
    excluded: int
    """Sequences of the version before that the new table lacks."""
    denied: int
    """Sequences left out, because a takedown denies one of their documents."""
    filled: float
    """Share of positions that hold a token."""
    skipped_parts: int
    """Parts that an earlier, killed command had written."""

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        body["filled"] = round(self.filled, 4)
        return body

    def to_text(self) -> str:
        lines = [
            f"{self.name}  {self.id}",
            f"{self.sequences} sequences of {self.documents}, {self.filled:.1%} of their positions filled: "
            f"{self.added} added, {self.excluded} excluded",
        ]
        if self.skipped_parts:
            lines.append(f"{self.skipped_parts} parts were written already")
        if self.denied:
            lines.append(
                f"{self.denied} sequences left out: takedowns deny documents in them. Run the takedown, then pack the "
                "version that it publishes"
            )
        return "\n".join(lines)
