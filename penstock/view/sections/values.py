"""Sections with values of samples: marks and proofs, the slots of a step, fields, look-alikes, raw objects."""

from dataclasses import dataclass
from typing import NamedTuple

from ..inspect.packed_documents import PackedSequence
from ..inspect.proofs import Proof
from ..inspect.step_record import SlotRow
from ..kinds.kind import Mark
from ..marks import StepMark
from ..raw_source import RawObjectRecord
from ..shown_values import ShownValue

MEDIA_KINDS = ("image", "video", "audio")
"""Kinds whose lines stand beside their name, because the image shows the rest."""


@dataclass(frozen=True, slots=True)
class MarksSection:
    """Warnings, the worst first."""

    marks: tuple[StepMark | Mark, ...]
    steps: str = ""
    """Address of a slot without its number; "" without links."""
    kind = "marks"


@dataclass(frozen=True, slots=True)
class ProofsSection:
    """Proofs that a step was trained on."""

    proofs: tuple[Proof, ...]
    stage: str
    """Description of the values' stage."""
    kind = "proofs"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsSection:
    """Slots of a step as cards."""

    slots: tuple[SlotRow, ...]
    step: str
    """Address of the step."""
    part: str
    """Query of its part."""
    are_samples: bool
    """False for packed sequences, which are not excluded."""
    kind = "slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStage:
    """A field's value at a stage."""

    name: str
    """`decoded`, or a later stage."""
    value: ShownValue | None
    absent: str = ""
    """Why there is no value."""
    images: tuple[str, ...] = ()
    """Addresses."""
    player: str = ""
    """Address of audio or video, or ""."""
    corners: tuple[tuple[float, float], ...] = ()
    """Outline of the part that the transform uses, in pixels of the image."""
    size: tuple[int, int] = (0, 0)
    """Width and height of the image with an outline."""
    has_marks: bool = False
    """True if the page shows the value's own warnings here only."""
    notes: tuple[str, ...] = ()
    original: str = ""
    """Address of the image in the original's colours, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldValues:
    """A field of a sample."""

    field: str
    stages: tuple[FieldStage, ...]
    error: str = ""
    """Read error, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldsSection:
    """Fields of a sample, the first as large as the window allows."""

    fields: tuple[FieldValues, ...]
    are_rows: bool
    """True if each field has a row of its own, with its stages side by side."""
    kind = "fields"


@dataclass(frozen=True, slots=True)
class DocumentsSection:
    """Documents of a packed sequence, as a ribbon and a table."""

    packed: PackedSequence
    version: str
    """Address of the version's page."""
    own: str = ""
    """Key of the document whose page it is, which has no table of the others; "" on other pages."""
    kind = "documents"


class LookAlike(NamedTuple):
    ordinal: int
    """Index in the version."""
    key: str
    text: str
    """Similarity, such as `9 bits`."""


@dataclass(frozen=True, slots=True)
class AlikeSection:
    """Look-alikes of a sample."""

    samples: tuple[LookAlike, ...]
    version: str
    """Address of the version's page."""
    thumb: str
    """Field with their thumbnails, or ""."""
    kind = "alike"


@dataclass(frozen=True, slots=True)
class RawSection:
    """A raw object."""

    object: RawObjectRecord
    type: str
    """Media type with which a browser shows it, or ""."""
    source: str
    """Address of its bytes."""
    kind = "raw"
