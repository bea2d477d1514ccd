"""Facts about code that makes tensors: names, hashes of source files, and versions of libraries."""

import hashlib
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...distribution import DISTRIBUTION
from ...storage.spec import redact
from ..recipe.by_bucket import ByBucket
from ..recipe.recipe import Recipe, stored_view

MAX_OPTIONS_CHARS = 1000
LIBRARIES = {
    "penstock": DISTRIBUTION,
    **{name: name for name in ("numpy", "pillow", "simplejpeg", "av", "torch", "jax")},
}
"""Recorded name -> distribution that decodes fields or makes arrays of them."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """A decoder or a transform."""

    name: str
    """Its "module:qualified name"; of an object, its class's."""
    sha256: str = ""
    """SHA-256 of its module's file, else of its own source; "" where neither is there."""
    options: str = ""
    """`repr` of an object, such as "ImageDecoder(size=(64, 64), ...)"; "" for a plain function."""


def facts_of(code: Any) -> CodeFacts:
    """Return the facts of a function, a `functools.partial` or a callable object.

    The hash is of one file: modules that it imports are not in it.
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
    """Return the name that a module can be imported by: a script is `__main__` to itself."""
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
    """Return bucket -> the facts of its transform; "" for all buckets, nothing for none."""
    if recipe.transform is None:
        return {}
    if isinstance(recipe.transform, ByBucket):
        assert isinstance(recipe.transform.of, Mapping)  # made by `Recipe`
        return {label: facts_of(one) for label, one in recipe.transform.of.items()}
    return {"": facts_of(recipe.transform)}


def decoders_of(recipe: Recipe) -> dict[str, dict[str, CodeFacts]]:
    """Return field -> bucket -> the facts of its decoder; "" for all buckets. Nothing with `decode=False`."""
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
    """Return the versions of Python and of the installed `LIBRARIES`."""
    versions = {"python": sys.version.split()[0]}
    for name, distribution in LIBRARIES.items():
        try:
            versions[name] = version(distribution)
        except PackageNotFoundError:
            continue
    return versions
