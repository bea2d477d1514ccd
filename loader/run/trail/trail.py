"""Settings of a run log (`Trail`), and start records: a run's plan, and the code that made its tensors.

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
from typing import Any, Literal

from ...dataset.log.entries import DAMAGED
from ...dataset.root import Root
from ...distribution import DISTRIBUTION
from ...errors import Corrupt, FormatTooNew, InvalidName, InvalidRuntime
from ...json_text import parse_json_object
from ...keywords import check_whole_number, is_whole_number
from ...redaction import redact
from ..recipe.decode import ByBucket
from ..recipe.recipe import Recipe, stored_view

MAX_CODE_CHARS = 2000
_RUN = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,100}")
_RECIPE = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True, slots=True)
class Trail:
    """A run log (trail) for `Loader(plan, trail=...)`, from which the run's steps can be inspected later.

    It never ends a training run: a failed write is logged, and retried with the next one.

    Raises: InvalidName; InvalidRuntime.
    """

    root: Root
    """Root of the run log and the plan. The job may create objects under `trails/` and `plans/`."""
    run: str
    """Name of the run: 1 to 100 characters of A-Z a-z 0-9 . _ -. A resumed run keeps it."""
    recipe: str = ""
    """Function that returns the run's decode and transform, as "module:function", or ""."""
    ranks: Literal["first", "all"] | tuple[int, ...] = "first"
    """Data-parallel ranks to record: "first", "all", or their numbers."""
    tensors_every: int = 100
    """Steps between two records of tensor checksums; 0 records none."""
    code: str = ""
    """Text about the run's code, such as a commit. Passwords in URLs are removed."""

    def __post_init__(self) -> None:
        if not isinstance(self.root, Root):
            raise InvalidRuntime(
                f"Trail: root = {self.root!r}; a loader.Root is needed",
                what="root",
                where="Trail",
                given=self.root,
                accepted="a loader.Root",
            )
        check_run_name(self.run)
        if not isinstance(self.recipe, str) or (self.recipe and not _RECIPE.fullmatch(self.recipe)):
            raise InvalidRuntime(
                f"Trail: recipe = {self.recipe!r}; 'module:function' is needed, or ''",
                what="recipe",
                where="Trail",
                given=self.recipe,
                accepted="'module:function', or ''",
            )
        ranks = self.ranks
        if ranks not in ("first", "all") and not (
            isinstance(ranks, tuple) and ranks and all(is_whole_number(rank, 0) for rank in ranks)
        ):
            raise InvalidRuntime(
                f"Trail: ranks = {ranks!r}; accepted: 'first', 'all', or a tuple of ranks",
                what="ranks",
                where="Trail",
                given=ranks,
                accepted="'first', 'all', or a tuple of ranks",
            )
        check_whole_number("Trail: tensors_every", self.tensors_every, 0)
        if not isinstance(self.code, str) or len(self.code) > MAX_CODE_CHARS:
            raise InvalidRuntime(
                f"Trail: code = {self.code!r:.100}; a text of at most {MAX_CODE_CHARS} characters is needed",
                what="code",
                where="Trail",
                given=self.code,
                accepted=f"a text of at most {MAX_CODE_CHARS} characters",
            )

    def records(self, rank: int) -> bool:
        return self.ranks == "all" or (rank == 0 if self.ranks == "first" else rank in self.ranks)


def is_run_name(run: object) -> bool:
    return isinstance(run, str) and _RUN.fullmatch(run) is not None


def check_run_name(run: object) -> str:
    if not isinstance(run, str) or not is_run_name(run):
        raise InvalidName(
            f"run = {run!r:.200}: 1 to 100 of A-Z a-z 0-9 . _ - are needed, not only dots",
            what="run",
            given=run,
            accepted="1 to 100 of A-Z a-z 0-9 . _ -, not only dots",
        )
    return run


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
    """SHA-256 of its module's file, else of its source, or ""."""
    options: str = ""
    """`repr` of an object, such as "ImageDecoder(size=(64, 64), ...)", or ""."""


def code_facts(code: Any) -> CodeFacts:
    """Return the facts of a function, a `functools.partial` or a callable object.

    The hash covers one file, not the modules that it imports.
    """
    own = code
    while isinstance(own, partial):
        own = own.func
    own = getattr(own, "__func__", own)
    if hasattr(own, "__qualname__"):
        named = own
    else:
        named = type(own)
    is_plain = own is code and named is own
    return CodeFacts(
        name=f"{_module_name(named.__module__)}:{named.__qualname__}",
        sha256=_source_sha256(named),
        options="" if is_plain else redact(_ADDRESS.sub("", repr(code)))[:MAX_OPTIONS_CHARS],
    )


def _module_name(module: str) -> str:
    imported = sys.modules.get(module)
    file = getattr(imported, "__file__", None)
    spec = getattr(imported, "__spec__", None)
    if module != "__main__" or file is None:
        return module
    if spec is None:
        return Path(file).stem
    return str(spec.name)


def _source_sha256(code: Any) -> str:
    file = getattr(sys.modules.get(code.__module__), "__file__", None)
    try:
        if file:
            source = Path(file).read_bytes()
        else:
            source = inspect.getsource(code).encode()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source).hexdigest()


def transform_facts(recipe: Recipe) -> dict[str, CodeFacts]:
    """Return bucket -> facts of its transform; the key "" is a transform for all buckets. Empty without a transform."""
    if recipe.transform is None:
        return {}
    if isinstance(recipe.transform, ByBucket):
        assert isinstance(recipe.transform.of, Mapping)  # made by `Recipe`
        return {label: code_facts(one) for label, one in recipe.transform.of.items()}
    return {"": code_facts(recipe.transform)}


def decoder_facts(recipe: Recipe) -> dict[str, dict[str, CodeFacts]]:
    """Return field -> bucket -> facts of its decoder; the key "" is a decoder for all buckets.

    A field that two sources have under one bucket has one decoder, so the first source's facts are recorded.
    """
    if isinstance(recipe.decode, Mapping):
        chosen = recipe.decode
    else:
        chosen = {}
    facts: dict[str, dict[str, CodeFacts]] = {}
    for source, decoders_of_source in zip(recipe.plan.sources.values(), recipe.decoders(), strict=True):
        view = stored_view(source.view)
        if view is None:
            continue
        for field in view.fields:
            if field not in decoders_of_source:
                continue
            label = ""
            if isinstance(chosen.get(field), ByBucket):
                label = source.bucket or ""
            facts_of_field = facts.setdefault(field, {})
            if label not in facts_of_field:
                facts_of_field[label] = code_facts(decoders_of_source[field])
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
    """Hash of the plan, saved under the same root; "" for a run whose records under `follows/` name its plans."""
    world_size: int
    """Number of data-parallel ranks."""
    recipe: str
    """Function that returns decode and transform, "module:function", or ""."""
    code: str
    """Text about the training run's code."""
    framework: str
    """Library of the arrays: "torch", "numpy" or "jax"."""
    epochs: int | None
    """Epochs of the Loader, after which slots are padding."""
    transforms: Mapping[str, CodeFacts]
    """Bucket ("" for all) -> its transform; may be empty."""
    decoders: Mapping[str, Mapping[str, CodeFacts]]
    """Field -> bucket ("" for all) -> its decoder; empty with `decode=False`."""
    libraries: Mapping[str, str]
    """Library -> version, for Python and libraries that decode."""
    at_us: int
    """Time of the first start with this content, in UTC microseconds."""

    @property
    def id(self) -> str:
        """16 hex digits of a SHA-256 over everything but the time."""
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


def start_record(trail: Trail, recipe: Recipe, epochs: int | None, at_us: int) -> StartRecord:
    """Return the record of a start. Reads the source files of transform and decoders."""
    return StartRecord(
        run=trail.run,
        plan=recipe.plan.hash,
        world_size=recipe.world.world_size,
        recipe=trail.recipe,
        code=redact(trail.code),
        framework=recipe.framework,
        epochs=epochs,
        transforms=transform_facts(recipe),
        decoders=decoder_facts(recipe),
        libraries=library_versions(),
        at_us=at_us,
    )


def parse_start(data: bytes, name: str) -> StartRecord:
    """Return the start whose `to_json` is `data`. Raises: Corrupt; FormatTooNew."""
    try:
        body: dict[str, Any] = parse_json_object(data)
        if body.pop("format") > TRAIL_FORMAT:
            raise FormatTooNew(
                f"{name} has a newer trail format; this package reads up to {TRAIL_FORMAT}: upgrade penstock-data",
                what="trail format",
                where=name,
                accepted=TRAIL_FORMAT,
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
            f"{name} is not a start of a trail ({type(error).__name__}: {error}); restore or delete it",
            what="start of a trail",
            where=name,
            given=type(error).__name__,
        ) from error
