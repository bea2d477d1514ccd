"""Start records of a run: its plan, and the code that made its tensors.

    trails/<run>/start-<16 hex>.json

The name is a hash of the content without the time: all ranks, and restarts with the same code, share one object.
"""

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...dataset.log.entries import DAMAGED
from ...distribution import DISTRIBUTION
from ...errors import Corrupt, FormatTooNew
from ...json_text import parse_json_object
from ...storage.spec import redact
from ..recipe.decode import ByBucket
from ..recipe.recipe import Recipe, stored_view
from .trail import Trail

MAX_OPTIONS_CHARS = 1000
LIBRARIES = {
    "penstock": DISTRIBUTION,
    **{name: name for name in ("numpy", "pillow", "simplejpeg", "av", "torch", "jax")},
}
"""Recorded name -> distribution that decodes fields or makes arrays."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """Identity of a decoder or transform."""

    name: str
    """"module:qualified name"; an object's is its class's."""
    sha256: str = ""
    """SHA-256 of its module's file, else of its source; "" if it has neither."""
    options: str = ""
    """`repr` of an object, such as "ImageDecoder(size=(64, 64), ...)"; "" for a plain function."""


def facts_of(code: Any) -> CodeFacts:
    """Return the facts of a function, a `functools.partial` or a callable object.

    The hash covers one file, not the modules that it imports.
    """
    own = code
    while isinstance(own, partial):
        own = own.func
    own = getattr(own, "__func__", own)
    named = own if hasattr(own, "__qualname__") else type(own)
    is_plain = own is code and named is own
    return CodeFacts(
        name=f"{_module_name(named.__module__)}:{named.__qualname__}",
        sha256=_source_sha256(named),
        options="" if is_plain else redact(_ADDRESS.sub("", repr(code)))[:MAX_OPTIONS_CHARS],
    )


def _module_name(module: str) -> str:
    """Return a module's importable name: a script is `__main__` to itself."""
    imported = sys.modules.get(module)
    file, spec = getattr(imported, "__file__", None), getattr(imported, "__spec__", None)
    if module != "__main__" or file is None:
        return module
    return Path(file).stem if spec is None else str(spec.name)


def _source_sha256(code: Any) -> str:
    file = getattr(sys.modules.get(code.__module__), "__file__", None)
    try:
        source = Path(file).read_bytes() if file else inspect.getsource(code).encode()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source).hexdigest()


def transforms_of(recipe: Recipe) -> dict[str, CodeFacts]:
    """Return bucket -> facts of its transform; "" for all buckets. Empty if there is none."""
    if recipe.transform is None:
        return {}
    if isinstance(recipe.transform, ByBucket):
        assert isinstance(recipe.transform.of, Mapping)  # made by `Recipe`
        return {label: facts_of(one) for label, one in recipe.transform.of.items()}
    return {"": facts_of(recipe.transform)}


def decoders_of(recipe: Recipe) -> dict[str, dict[str, CodeFacts]]:
    """Return field -> bucket -> facts of its decoder; "" for all buckets. Empty with `decode=False`."""
    chosen = recipe.decode if isinstance(recipe.decode, Mapping) else {}
    facts: dict[str, dict[str, CodeFacts]] = {}
    for source, own in zip(recipe.plan.sources.values(), recipe.decoders(), strict=True):
        view = stored_view(source.view)
        for field in view.fields if view is not None else ():
            label = source.bucket or "" if isinstance(chosen.get(field), ByBucket) else ""
            if field in own and label not in facts.setdefault(field, {}):
                facts[field][label] = facts_of(own[field])
    return facts


def library_versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name, distribution in LIBRARIES.items():
        try:
            versions[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return versions


TRAIL_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """One start of a run: everything that decides its tensors."""

    run: str
    """Name of the run."""
    plan: str
    """Hash of the plan, saved under the same root."""
    world_size: int
    """Number of data-parallel ranks."""
    recipe: str
    """Function that returns decode and transform, "module:function"; "" if there is none."""
    code: str
    """Text about the training run's code."""
    framework: str
    """Library of the arrays: "torch", "numpy" or "jax"."""
    epochs: int | None
    """`epochs` of the Loader, after which slots are padding."""
    transforms: Mapping[str, CodeFacts]
    """Bucket -> its transform; "" for all buckets. Empty if there is none."""
    decoders: Mapping[str, Mapping[str, CodeFacts]]
    """Field -> bucket -> its decoder; "" for all buckets. Empty with `decode=False`."""
    libraries: Mapping[str, str]
    """Library -> version, for Python and libraries that decode."""
    at_us: int
    """Time of the first start with this content, in UTC microseconds."""

    @property
    def id(self) -> str:
        """16 hex digits of a SHA-256 over everything but the time; the rows of steps refer to it."""
        body = {**asdict(self), "at_us": 0}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        return f"{trail_folder(self.run)}start-{self.id}.json"

    def to_json(self) -> bytes:
        body = {"format": TRAIL_FORMAT, **asdict(self)}
        return json.dumps(body, sort_keys=True, indent=1).encode()


def trail_folder(run: str) -> str:
    return f"trails/{run}/"


def start_of(trail: Trail, recipe: Recipe, epochs: int | None, at_us: int) -> StartRecord:
    """Return the record of a start. Reads the source files of transform and decoders."""
    return StartRecord(
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


def parse_start(data: bytes, name: str) -> StartRecord:
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
        return StartRecord(**body, transforms=transforms, decoders=decoders)
    except FormatTooNew:
        raise
    except DAMAGED as error:
        raise Corrupt(
            f"{name} is no start of a trail ({type(error).__name__}: {error}); restore or delete it"
        ) from error
