"""A root with one damaged or forged object of an index or map: searched, drawn, verified, and indexed again."""

import gc
import json
import random
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import loader
from loader.dataset.search.segments import SegmentPart, put_segment, segment_name, version_parts
from loader.errors import PenstockError
from penstock.search.index_build import drop_index, make_index
from penstock.search.map.stored_map import drop_map, make_map
from penstock.search.map.version_map import read_map
from penstock.upkeep.gc.derived_segments import FOLDERS, read_kind, segment_kind
from penstock.upkeep.verify.root import verify_root

from .case import Report, begin_case, held, left_behind, peak_mib
from .mutations import damaged

WIDTH = 8
N_SAMPLES = 24
EXCLUDED = "k07"
"""Key that no search may return."""
_FORGED_SHARE = 0.3
_THREADS_END_S = 2.0  # a thread may outlive its result briefly
_ANSWERS = "answers.json"


def write_indexed(folder: Path) -> Path:
    """Write a root with a version, an exclusion, indexes and a map, and what they answer; return the folder."""
    root_folder = folder / "indexed"
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(N_SAMPLES, WIDTH)).astype(np.float32)
    with loader.Root(root_folder) as root:
        for first in (0, N_SAMPLES // 2):
            with root.write("d", part_samples=6) as writer:
                for number in range(first, first + N_SAMPLES // 2):
                    fields = {"embedding.npy": vectors[number], "caption.txt": f"a red cup {number % 5}"}
                    writer.add(f"k{number:02}", fields)
        with root.write("other") as writer:
            writer.add("foreign", {"embedding.npy": vectors[0], "caption.txt": "a red cup"})
        root.exclude("d", [EXCLUDED], reason="private")
        make_index(root, "d")
        make_map(root, "d")
        answers = _answers(root, folder / "cache")
    (folder / _ANSWERS).write_text(json.dumps(answers))
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCase:
    """One case; only its fields decide the damage."""

    number: int
    """Number of the case."""
    seed: int
    """Seed of the campaign."""
    folder: str
    """Folder that `write_indexed` wrote."""

    def build(self) -> tuple[str, bytes, tuple[str, ...]]:
        """Return the object's path, its damaged bytes, and the names of the mutations; no bytes if it is forged."""
        rng = random.Random(f"{self.seed}/{self.number}")
        objects = derived_objects(Path(self.folder, "indexed"))
        # Names of segments have random transactions.
        paths = sorted(objects, key=lambda path: (path.rpartition("/")[0], len(path), len(objects[path])))
        path = rng.choice(paths)
        other = rng.choice(paths)
        if segment_kind(path) is not None and rng.random() < _FORGED_SHARE:
            return path, b"", ("forged",)
        data, done = damaged(objects[path], rng, objects[other])
        return path, data, done

    def again(self, saved: Path) -> str:
        """Return the arguments of `python -m fuzz` that repeat the case."""
        return f"--of indexes --seed {self.seed} --first {self.number} --cases 1"


def derived_objects(root_folder: Path) -> dict[str, bytes]:
    """Return path -> bytes of the objects of indexes and maps."""
    objects = {}
    for prefix in FOLDERS:
        for file in sorted((root_folder / prefix).rglob("*")):
            if file.is_file():
                objects[str(file.relative_to(root_folder))] = file.read_bytes()
    return objects


def run_index_case(case: IndexCase) -> Report:
    """Read, verify and mend a copy of the root. Raises whatever penstock's code raises, besides its own errors."""
    path, data, done = case.build()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-index-"))
    before = begin_case()
    begun = time.perf_counter()
    broken: list[str] = []
    reasons: list[str] = []
    try:
        shutil.copytree(Path(case.folder, "indexed"), folder / "root")
        expected = json.loads(Path(case.folder, _ANSWERS).read_text())
        with loader.Root(folder / "root") as root:
            if done == ("forged",):
                _forge(root, path, random.Random(case.number))
            else:
                root.store.put(path, data)
        with loader.Root(folder / "root") as root:
            answers = _answers(root, folder / "cache", reasons)
            broken += _wrong(answers, expected)
            problems = [problem.address for problem in verify_root(root).problems]
            strange = [address for address in problems if not address.startswith(FOLDERS)]
            if strange:
                broken.append(f"verify names other objects: {strange}")
            broken += _mended(root, folder / "again", expected, is_forged=done == ("forged",))
        gc.collect()  # searches of a version end their threads with it
        until = time.monotonic() + _THREADS_END_S
        while held() > before and time.monotonic() < until:
            time.sleep(0.01)
        broken += left_behind(folder, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome = "admitted"
    if reasons:
        outcome = "rejected"
    return Report(
        number=case.number,
        source=path,
        damage=done,
        nbytes=len(data),
        outcome=outcome,
        stage=path.partition("/")[0],
        code=path.rpartition(".")[2],
        reason="; ".join(reasons),
        broken=broken,
        seconds=time.perf_counter() - begun,
        peak_rss_mib=peak_mib(),
    )


def _answers(root: loader.Root, cache: Path, reasons: list[str] | None = None) -> dict[str, Any]:
    """Return what a search by a key, by words and the map answer; an answer that is refused is missing."""
    version = root.open("d")
    answers: dict[str, Any] = {}
    for name, query in (("like", {"like": "k03"}), ("words", {"words": "cup 3"})):
        try:
            result = version.search(k=N_SAMPLES, cache=cache, **query)
        except PenstockError as error:
            _refused(error, reasons)
            continue
        answers[name] = dict(zip(result.keys(), result.scores.tolist(), strict=True))
        _named(result.damaged, reasons)
    try:
        places = read_map(version)
    except PenstockError as error:
        _refused(error, reasons)
    else:
        _named(places.damaged, reasons)
        keys = version.keys(np.arange(len(version)))
        answers["map"] = {key: 1.0 for key, has in zip(keys, places.has_place, strict=True) if has}
    return answers


def _refused(error: PenstockError, reasons: list[str] | None) -> None:
    if reasons is None:
        raise error
    reasons.append(f"{type(error).__name__}: {error}")


def _named(damaged_paths: dict[str, str], reasons: list[str] | None) -> None:
    if reasons is not None:
        reasons += damaged_paths.values()


def _wrong(answers: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return what a damaged or forged object must never do."""
    wrong = []
    for name, scores in answers.items():
        strange = scores.keys() - expected["like"].keys()
        if strange:
            wrong.append(f"{name} shows {sorted(strange)}, which the version lacks")
    for key, score in answers.get("like", {}).items():
        if key in expected["like"] and abs(score - expected["like"][key]) > 1e-6:
            wrong.append(f"{key} has the cosine {score}, not {expected['like'][key]}")
    return wrong


def _mended(
    root: loader.Root,
    cache: Path,
    expected: dict[str, Any],
    *,
    is_forged: bool,
) -> list[str]:
    """Return what differs after the index and the map were made again."""
    for make, drop in ((make_index, drop_index), (make_map, drop_map)):
        try:
            make(root, "d")
        except PenstockError:
            # A damaged record is never replaced: the error names the command.
            _drop(root, drop)
            make(root, "d")
    reasons: list[str] = []
    answers = _answers(root, cache, reasons)
    # A forged segment has a name that no index has: it stays, named, until a collector deletes it.
    if reasons and not is_forged:
        return [f"still damaged after it was made again: {reasons[0]}"]
    wrong = _wrong(answers, expected)
    missing = expected["like"].keys() - answers.get("like", {}).keys()
    if missing:
        wrong.append(f"{sorted(missing)} are lost")
    return wrong


def _drop(root: loader.Root, drop: Any) -> None:
    try:
        drop(root, "d")
    except PenstockError:
        # A record of another format hides its field: an operator deletes the folder.
        root.store.delete_many([info.key for prefix in FOLDERS for info in root.store.list(prefix)])


def _forge(root: loader.Root, path: str, rng: random.Random) -> None:
    """Replace a segment by one with wrong values and parts that agrees with its own digest and name."""
    kind = read_kind(root.store, path)
    own = [part.own for part in version_parts(root.open("d"), "embedding.npy")]
    own += [part.own for part in version_parts(root.open("d"), "caption.txt")]
    foreign = version_parts(root.open("other"), "embedding.npy")[0].own
    parts = rng.sample(own, rng.randint(1, len(own)))
    if rng.random() < 0.5:
        parts.append(foreign)
    if rng.random() < 0.3:
        first = parts[0]
        parts[0] = SegmentPart(first.part, first.source, first.n_rows + rng.randint(1, 9))
    n_rows = sum(part.n_rows for part in parts)
    columns: list[pa.Array] = []
    for field in kind.columns:
        values: list[Any] = [rng.randint(0, 60_000) for _ in range(n_rows)]
        if pa.types.is_string(field.type):
            values = [rng.choice(["a red cup 3", "zebra", None]) for _ in range(n_rows)]
        elif pa.types.is_fixed_size_binary(field.type):
            values = [rng.randbytes(field.type.byte_width) for _ in range(n_rows)]
        elif pa.types.is_floating(field.type):
            values = [value / 60_000 for value in values]
        columns.append(pa.array(values).cast(field.type))
    folder = f"{path.rpartition('/')[0]}/"
    root.store.delete_many([path])
    put_segment(root.store, folder, kind, parts, pa.table(columns, schema=kind.columns))
    assert segment_name(path, kind) is not None
