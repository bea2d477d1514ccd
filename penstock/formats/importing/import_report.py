"""Report of an import."""

from dataclasses import asdict, dataclass, field
from typing import Any

from loader import Version
from loader.storage.store import Refusals

from ...exclusion_records import exclusion_line
from ..registration.source_difference import PlaceDifference


@dataclass(slots=True, kw_only=True)
class ImportReport:
    name: str = ""
    """Version name; "" if anything failed."""
    id: str = ""
    """Version id."""
    samples: int = 0
    """Samples in the version."""
    new: int = 0
    """New objects."""
    replaced: int = 0
    """Changed objects; their old samples are excluded."""
    same: int = 0
    """Unchanged objects."""
    taken_down: int = 0
    """New and changed objects that a takedown names, which are skipped."""
    others: int = 0
    """Objects in another format, or not selected."""
    refusals: Refusals = field(default_factory=Refusals)
    """Objects that were not listed, with reasons."""
    nbytes: int = 0
    """Bytes of fields copied."""
    skipped: int = 0
    """Parts that an earlier run wrote."""
    relabelled: int = 0
    """Samples of unchanged objects whose labels changed."""
    notes: list[str] = field(default_factory=list)
    """Left out data: unread files, parts of samples, JSON values that could not become columns; unlabelled files."""
    missing_parts: list[str] = field(default_factory=list)
    """Stated things that the source lacks, if that was allowed; also in the version's record."""
    failures: list[str] = field(default_factory=list)
    """One error per object or part not read or written."""

    @classmethod
    def of_objects(cls, changes: PlaceDifference, n_others: int, refusals: Refusals) -> "ImportReport":
        """Return the report of a listing, before anything is copied."""
        n_replaced = len(changes.replaced)
        return cls(
            new=len(changes.fresh) - n_replaced,
            replaced=n_replaced,
            same=changes.same,
            taken_down=len(changes.taken_down),
            others=n_others,
            refusals=refusals,
        )

    def describe(self, version: Version, parent: Version | None, missing_parts: list[str]) -> None:
        """Take the version's name, size and exclusions. parent: the version before the import."""
        self.name = version.name
        self.id = version.id
        self.samples = len(version)
        self.missing_parts = missing_parts
        self.notes += exclusion_line(version, parent)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        objects = f"objects: {self.new} new, {self.replaced} changed, {self.same} unchanged"
        if self.taken_down:
            objects += f", {self.taken_down} taken down and skipped"
        objects += f"; {self.others} others hold no samples, or were not selected"
        refused = self.refusals.lines()
        if self.failures:
            failed = [f"  failed: {why}" for why in self.failures]
            return "\n".join(
                [
                    *failed,
                    *refused,
                    objects,
                    "nothing was published: repair or move these objects, then run the command again",
                ]
            )
        lines = [f"{self.name}  {self.id}", f"{self.samples} samples with bytes of their own"]
        if self.relabelled:
            lines.append(f"{self.relabelled} samples of unchanged objects have new labels")
        missing = [f"  missing, left out: {text}" for text in self.missing_parts]
        return "\n".join([*lines, objects, *refused, *missing, *self.notes])
