"""A dataset in another format with one damaged object: imported, registered, read, and checked for leaks."""

import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import loader
from loader.errors import PenstockError
from loader.storage import open_store
from penstock.formats.content_digest import content_digest
from penstock.formats.importer import NO_OPTIONS, ColumnarOptions
from penstock.formats.registration.register import register
from penstock.formats.registry import REGISTERED
from penstock.formats.run_import import import_place

from .case import Report, begin_case, held, left_behind, peak_mib
from .mutations import damaged
from .places import objects_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceCase:
    """One case; only its fields decide the damage."""

    number: int
    """Number of the case."""
    seed: int
    """Seed of the campaign."""
    places: Sequence[str]
    """Folders of intact sources, named by format."""

    def build(self) -> tuple[str, bytes, tuple[str, ...]]:
        """Return `<format>/<object>`, the object's damaged bytes, and the names of the mutations."""
        place, key, data, done = self._drawn()
        return f"{place.name}/{key}", data, done

    def again(self, saved: Path) -> str:
        """Return the arguments of `python -m fuzz` that repeat the case."""
        return f"--of formats --seed {self.seed} --first {self.number} --cases 1"

    def _drawn(self) -> tuple[Path, str, bytes, tuple[str, ...]]:
        rng = random.Random(f"{self.seed}/{self.number}")
        place = Path(self.places[self.number % len(self.places)])
        objects = objects_of(place)
        key, other = rng.choice(sorted(objects)), rng.choice(sorted(objects))
        data, done = damaged(objects[key], rng, objects[other])
        return place, key, data, done

    def write(self, folder: Path) -> tuple[str, str]:
        """Write the source with its damaged object to a folder; return the format and the object's key."""
        place, damaged_key, data, _ = self._drawn()
        for key, sound in (objects_of(place) | {damaged_key: data}).items():
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(sound)
        return place.name, damaged_key


OPTIONS = {
    name: ColumnarOptions(fields={"name": "txt"}) for name in ("arrow", "csv", "json", "jsonl", "tfrecord")
}
"""Format whose rows need columns chosen as fields -> its reader options."""

_THREADS_END_S = 2.0  # a thread may outlive its result briefly


def run_place_case(case: PlaceCase) -> Report:
    """Import the source, and register it if possible. Raises whatever penstock's code raises."""
    source, data, done = case.build()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-place-"))
    before = begin_case()
    begun = time.perf_counter()
    broken: list[str] = []
    try:
        format, _ = case.write(folder / "place")
        sound = objects_of(folder / "place")
        outcome, code, reason = _imported(folder, format, broken)
        if format in REGISTERED or format == "arrow":
            _registered(folder, format, outcome, broken)
        if objects_of(folder / "place") != sound:
            broken.append("the place was written to")
        until = time.monotonic() + _THREADS_END_S
        while held() > before and time.monotonic() < until:
            time.sleep(0.01)
        broken += left_behind(folder, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Report(
        number=case.number,
        source=source,
        damage=done,
        nbytes=len(data),
        outcome=outcome,
        stage=format,
        code=code,
        reason=reason,
        broken=broken,
        seconds=time.perf_counter() - begun,
        peak_rss_mib=peak_mib(),
    )


def _imported(folder: Path, format: str, broken: list[str]) -> tuple[str, str, str]:
    with loader.Root(folder / "imported") as root:
        try:
            done = import_place(
                root, format, open_store(folder / "place"), "d", options=OPTIONS.get(format, NO_OPTIONS)
            )
        except PenstockError as error:
            outcome, code, reason = "rejected", type(error).__name__, str(error)
        else:
            reason = "; ".join(done.failures)
            outcome, code = ("rejected", "named") if done.failures else ("admitted", "")
        published = root.datasets() == ["d"]
        if published != (outcome == "admitted"):
            broken.append(f"{outcome}, and the import {'has a' if published else 'has no'} version")
        if outcome == "rejected" and not reason:
            broken.append("refused without a reason")
        if published and (failures := content_digest(root.open("d"), full=True).failures):
            broken.append(f"imported, and not whole: {failures[0]}")
    return outcome, format if code == "" else f"{format}: {code}", reason


def _registered(folder: Path, format: str, imported: str, broken: list[str]) -> None:
    with loader.Root(folder / "registered") as root:
        try:
            options = OPTIONS.get(format, NO_OPTIONS)
            version = register(root, format, folder / "place", "d", fields=options.fields).version
        except PenstockError as error:
            if imported == "admitted":
                broken.append(f"imported, and not registered: {error}")
            return
        done = content_digest(version, full=True)
        if imported != "admitted":
            if not done.failures:
                broken.append("registered and read, and not imported")
            return
        with loader.Root(folder / "imported") as other:
            same = content_digest(other.open("d"), full=True)
        if done.failures or done.digest != same.digest:
            broken.append(f"registered other bytes than were imported: {done.failures[:1]}")
