"""Start records of a run: the plan, and the code that made its tensors.

    trails/<run>/start-<16 hex>.json

It is named after its content without the time, and created once: all ranks, and restarts with the same code, share it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...dataset.log.entries import DAMAGED
from ...errors import Corrupt, FormatTooNew
from ...json_text import parse_json_object
from ...storage.spec import redact
from ..recipe.recipe import Recipe
from .code_facts import CodeFacts, decoders_of, library_versions, transforms_of
from .trail import Trail

TRAIL_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start of a run, by everything that decides its tensors."""

    run: str
    """Name of the run."""
    plan: str
    """Hash of the plan, which is saved under the same root."""
    world_size: int
    """Data-parallel ranks."""
    recipe: str
    """Function that returns decode and transform, "module:function"; "" for none."""
    code: str
    """Text about the training's code."""
    framework: str
    """Library of the arrays: "torch", "numpy" or "jax"."""
    epochs: int | None
    """`epochs` of the Loader, behind which slots are padding."""
    transforms: Mapping[str, CodeFacts]
    """Bucket -> its transform; "" for all buckets. Empty without one."""
    decoders: Mapping[str, Mapping[str, CodeFacts]]
    """Field -> bucket -> its decoder; "" for all buckets. Empty with `decode=False`."""
    libraries: Mapping[str, str]
    """Library -> version, of Python and those that decode."""
    at_us: int
    """Time of the first such start in UTC microseconds."""

    @property
    def id(self) -> str:
        """16 hex digits of a SHA-256 over everything but the time; rows of steps name it."""
        body = {**asdict(self), "at_us": 0}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        """Key of the record in the root."""
        return f"{trail_folder(self.run)}start-{self.id}.json"

    def to_json(self) -> bytes:
        body = {"format": TRAIL_FORMAT, **asdict(self)}
        return json.dumps(body, sort_keys=True, indent=1).encode()


def trail_folder(run: str) -> str:
    """Return the prefix of a run's trail."""
    return f"trails/{run}/"


def start_of(trail: Trail, recipe: Recipe, epochs: int | None, at_us: int) -> Start:
    """Return the record of a start. Reads the source files of the transform and the decoders."""
    return Start(
        run=trail.run,
        plan=recipe.plan.hash,
        world_size=recipe.world.world_size,
        recipe=trail.recipe,
        code=redact(trail.code),
        framework=recipe.framework,
        epochs=epochs,
        transforms=transforms_of(recipe),
        decoders=decoders_of(recipe),
        libraries=library_versions(),
        at_us=at_us,
    )


def parse_start(data: bytes, name: str) -> Start:
    """Return the start whose `to_json` is `data`. Raises: Corrupt; FormatTooNew."""
    try:
        body: dict[str, Any] = parse_json_object(data)
        if body.pop("format") > TRAIL_FORMAT:
            raise FormatTooNew(
                f"{name} has a newer trail format; this package reads up to {TRAIL_FORMAT}: upgrade penstock-data"
            )
        transforms = {label: CodeFacts(**one) for label, one in body.pop("transforms").items()}
        decoders = {
            field: {label: CodeFacts(**one) for label, one in by_label.items()}
            for field, by_label in body.pop("decoders").items()
        }
        return Start(**body, transforms=transforms, decoders=decoders)
    except FormatTooNew:
        raise
    except DAMAGED as error:
        raise Corrupt(
            f"{name} is no start of a trail ({type(error).__name__}: {error}); restore or delete it"
        ) from error
