"""Parse markers of near saves, which any holder of the cache's token may have written."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loader.errors import Corrupt, FormatTooNew
from loader.keywords import is_whole_number

from ..marker import Checkpoint, StoredObject, decode

INDEX = re.compile(r"([0-9a-f]{16})-index\.json")
PART = re.compile(r"[0-9a-f]{16}-[0-9]{5,9}\.safetensors")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMarker:
    """One attempt's marker."""

    step: int
    data: bytes
    nodes: Sequence[str]
    """Nodes that have it."""
    checkpoint: Checkpoint | None
    """None if it is not a marker of the step."""
    problem: str
    """Why it is not a marker of the step, or ""."""

    @property
    def attempt(self) -> str:
        """The 16 hex digits of the attempt's index; "" without a checkpoint."""
        if self.checkpoint is None:
            return ""
        return attempt_id(self.checkpoint)

    @property
    def label(self) -> str:
        if self.checkpoint is None:
            return f"near step {self.step}"
        return f"near step {self.step}, attempt {self.attempt}"


def attempt_id(checkpoint: Checkpoint) -> str:
    """Return the attempt that wrote a near save: the 16 hex digits of its index."""
    digits, _, _ = checkpoint.index.name.partition("-")
    return digits


def parse_near_marker(
    data: bytes,
    run: str,
    step: int,
    nodes: Sequence[str],
) -> NearMarker:
    """Parse the bytes that nodes have as the marker of a step. Never raises for bad bytes."""
    checkpoint = None
    problem = ""
    where = f"its marker on {nodes[0]}"
    try:
        # It checks the marker's own hash, so that a cut or flipped marker ends here.
        checkpoint = decode(data, where)
        problem = _problem(checkpoint, run, step)
    except (Corrupt, FormatTooNew) as error:
        problem = str(error)
    else:
        if problem:
            checkpoint = None
            problem = f"{where} {problem}"
    return NearMarker(
        step=step,
        data=data,
        nodes=nodes,
        checkpoint=checkpoint,
        problem=problem,
    )


def _problem(checkpoint: Checkpoint, run: str, step: int) -> str:
    """Return why a marker is not one of a near save, or "". `decode` checks its hash, and no types."""
    if checkpoint.run != run or checkpoint.step != step:
        return f"is of step {checkpoint.step!r} of run {checkpoint.run!r}"
    fields: list[tuple[str, object, type | tuple[type, ...]]] = [
        ("step", checkpoint.step, int),
        ("world_size", checkpoint.world_size, int),
        ("at_us", checkpoint.at_us, int),
        ("plan", checkpoint.plan, (str, type(None))),
        ("loader", checkpoint.loader, (Mapping, type(None))),
    ]
    fields.extend(("versions", version, Mapping) for version in checkpoint.versions)
    for name, value, kinds in fields:
        # True is an int.
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"has the {name} {value!r}, which no near save writes"
    return _objects_problem(checkpoint)


def _objects_problem(checkpoint: Checkpoint) -> str:
    """Return why no attempt can have these objects, or "". A name becomes part of a path."""
    if not _is_object(checkpoint.index, INDEX):
        return "names an index that no near save writes"
    names = set()
    for part in checkpoint.parts:
        if not _is_object(part, PART):
            return "names a part that no near save writes"
        if part.name in names:
            return f"names {part.name} twice"
        names.add(part.name)
    return ""


def _is_object(stored: StoredObject, pattern: "re.Pattern[str]") -> bool:
    """Return whether an entry of a marker has the types of an object, and a name of this pattern."""
    name: object = stored.name
    digest: object = stored.sha256
    nbytes: object = stored.nbytes
    if not isinstance(name, str) or not isinstance(digest, str):
        return False
    if not is_whole_number(nbytes, 0) or not SHA256.fullmatch(digest):
        return False
    return pattern.fullmatch(name) is not None
