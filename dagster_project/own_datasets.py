"""Datasets outside this repository: `PENSTOCK_DATASETS` names a folder of Python files, or an importable module."""

import importlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import dagster as dg

from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from dagster_project.datasets import specs
from loader.redaction import redact

VARIABLE = "PENSTOCK_DATASETS"
BROKEN = "broken_datasets"
"""Group and key prefix of broken datasets."""

_IS_TEST = re.compile(r"test_.*|.*_test|conftest|setup")
_log = logging.getLogger("penstock.datasets")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDataset:
    """A file, or the variable itself, that yields no dataset."""

    name: str
    """Stem of the file."""
    file: str
    """Path; the variable's value if it names nothing."""
    line: int
    """Line of the fault, from 1; 0 if unknown."""
    error: str
    """Error message."""

    @property
    def where(self) -> str:
        """ "file:line"."""
        if self.line:
            return f"{self.file}:{self.line}"
        return self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDataset:
    """A spec from a file outside this repository."""

    spec: DatasetSpec
    name: str
    """Stem of its file."""
    file: str
    """Path of its file."""

    def broken(self, error: str) -> BrokenDataset:
        """Return the entry for an unusable spec that loaded, at the line of `SPEC`."""
        return BrokenDataset(
            name=self.name,
            file=self.file,
            line=_line_of_spec(self.file),
            error=redact(error),
        )


def load_datasets() -> tuple[list[OwnDataset], list[BrokenDataset]]:
    """Return the datasets of `PENSTOCK_DATASETS`, and the files without a usable dataset.

    Names must be unique, including the registered datasets.
    """
    named = os.environ.get(VARIABLE, "").strip()
    loaded: list[OwnDataset] = []
    broken: list[BrokenDataset] = []
    used_by = {dagster_name(spec.name): "a dataset of this repository" for spec in specs()}
    for result in _read(named) if named else ():
        if isinstance(result, OwnDataset) and (other := used_by.get(dagster_name(result.spec.name))):
            result = result.broken(f"the name {result.spec.name!r} belongs to {other}; choose another name")
        if isinstance(result, BrokenDataset):
            broken.append(result)
            continue
        used_by[dagster_name(result.spec.name)] = result.file
        loaded.append(result)
    return loaded, broken


def report(broken: Iterable[BrokenDataset]) -> dg.Definitions:
    """Log each broken dataset; return definitions that show it: an asset each, and location metadata."""
    entries = list(broken)
    for entry in entries:
        _log.error("dataset not loaded: %s: %s", entry.where, entry.error)
    if not entries:
        return dg.Definitions()
    listed = "\n".join(f"- `{one.where}`: {one.error}" for one in entries)
    unique = {dagster_name(one.name): one for one in entries}
    return dg.Definitions(
        assets=[
            dg.AssetSpec(
                [BROKEN, name],
                group_name=BROKEN,
                description=f"**Not loaded:** `{one.where}`\n\n{one.error}\n\nRepair it, then reload the definitions.",
                metadata={"file": dg.MetadataValue.path(one.where), "error": one.error},
            )
            for name, one in unique.items()
        ],
        metadata={f"datasets not loaded ({VARIABLE})": dg.MetadataValue.md(listed)},
    )


def _read(named: str) -> Iterator[OwnDataset | BrokenDataset]:
    """Yield the datasets of a folder, a package or a module."""
    if os.sep in named or os.path.isdir(named):
        folder = Path(named).expanduser().resolve()
        if not folder.is_dir():
            yield _names_nothing(named, f"there is no folder {folder}")
            return
        yield from _read_folder(folder)
        return
    try:
        # For "a.b", this imports the package a, whose code may raise anything.
        import_spec = importlib.util.find_spec(named)
        if import_spec is None:
            raise ModuleNotFoundError(f"there is no module {named!r}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code; becomes an entry
        yield _names_nothing(named, f"{type(error).__name__}{_origin_text(error)}: {error}")
        return
    if import_spec.submodule_search_locations is None:  # not a package
        yield _load(named, import_spec.origin or named)
        return
    paths = []
    for folder_name in import_spec.submodule_search_locations:
        paths += _files(Path(folder_name))
    if not paths:
        yield _names_nothing(named, "the package has no Python file with a SPEC")
    for path in paths:
        yield _load(f"{named}.{path.stem}", str(path))


def _origin_text(error: BaseException) -> str:
    """Return " at <file>:<line>" of the user's line that raised the error; "" if no user's line did."""
    text = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename != __file__ and "importlib" not in frame.filename:
            text = f" at {frame.filename}:{frame.lineno}"  # the last frame is the one that raised it
    return text


def _read_folder(folder: Path) -> Iterator[OwnDataset | BrokenDataset]:
    # A worker process finds a dataset's classes by module name, so it imports these files under the same names.
    # `build_defs` keeps today's import path for the workers.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # at the end, so that no file hides a library
    paths = _files(folder)
    if not paths:
        yield _names_nothing(str(folder), "the folder has no Python file with a SPEC")
    for path in paths:
        yield _load(path.stem, str(path))


def _files(folder: Path) -> list[Path]:
    # `_helpers.py` and tests define no datasets.
    files = sorted(folder.glob("*.py"))
    return [path for path in files if path.stem[0] != "_" and not _IS_TEST.fullmatch(path.stem)]


def _load(module: str, file: str) -> OwnDataset | BrokenDataset:
    """Import a module, and return its dataset or why there is none. file: its path, or its name if it has no file."""
    name = module
    if file.endswith(".py"):
        name = Path(file).stem
    importlib.invalidate_caches()  # the file may be newer than Python's listing of its folder
    try:
        imported = importlib.import_module(module)
        return _module_spec(imported, name, file)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code; becomes an entry
        message = str(error)
        if isinstance(error, SyntaxError):
            message = error.msg  # without the location, which the entry has
        text = f"{type(error).__name__}: {message}"
        path, line = _error_location(error, file)
        return BrokenDataset(name=name, file=path, line=line, error=redact(text))


def _module_spec(module: ModuleType, name: str, file: str) -> OwnDataset:
    """Return the dataset of a module. Raises: ImportError if `file` is another module's; TypeError without a SPEC."""
    if not module.__file__ or not os.path.exists(file) or not os.path.samefile(module.__file__, file):
        raise ImportError(
            f"the name {name!r} belongs to {module.__file__ or 'a built-in module'}; rename the file"
        )
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, DatasetSpec):
        problem = "the file defines no SPEC"
        if spec is not None:
            problem = f"SPEC is a {type(spec).__name__}"
        raise TypeError(f"{problem}; accepted: SPEC = DatasetSpec(...). Begin the name of a helper with '_'")
    return OwnDataset(spec=spec, name=name, file=file)


def _error_location(error: BaseException, file: str) -> tuple[str, int]:
    """Return (path, line) of the fault, 0 if the line is unknown. file: a name if the module has none."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    # Beside the file: a library's frames do not show what to change.
    folder = os.path.dirname(file)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if folder and os.path.dirname(frame.filename) == folder:
            return frame.filename, frame.lineno or 0
    return file, _line_of_spec(file)


def _line_of_spec(file: str) -> int:
    if file.endswith(".py"):
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    else:
        lines = []
    return next((number for number, line in enumerate(lines, 1) if re.match(r"SPEC\b", line)), 1)


def _names_nothing(named: str, why: str) -> BrokenDataset:
    error = redact(f"{why}. {VARIABLE} accepts a folder of Python files, or the name of an importable module")
    return BrokenDataset(name=VARIABLE, file=named, line=0, error=error)
