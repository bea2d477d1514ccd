"""How many files a newcomer opens who follows one batch or one publish, and how many modules an import loads.

All numbers may fall. Where one rises, the message names all files, so that the new one is found.
"""

import json
import tarfile
from pathlib import Path

import pytest

from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
FILES = {"publish": 41, "next": 51, "register": 69}
"""Files of the project in which anything runs: 8 samples on a local disk, arrays of numpy, made by the caller.
`loader/errors.py` and `loader/redaction.py` do not count: errors that are caught enter them too.

For `penstock register webdataset` an archive with one sample, once its modules are loaded.
"""
ENTERED = {
    "publish": "loader/dataset/publishing/commit.py",
    "next": "loader/run/loader.py",
    "register": "penstock/formats/registration/register.py",
}
MODULES = {"assets.ingest.units": 124, "loader": 3, "loader.run.loader": 148}
"""Modules of the project that are loaded behind `import`."""
REGISTER_MODULES = 180
"""Modules of the project that `penstock register webdataset` loads."""
PACKAGES = ("loader", "penstock", "resources", "assets")

TRACE = """
import contextlib, io, json, sys, tarfile, tempfile, threading
from pathlib import Path
import numpy as np
import loader, loader.dataset.publishing.writer  # which a root imports when it is first written to
from penstock.cli import main

folder, seen = Path(loader.__file__).parent.parent, set()
packages = tuple(f"{folder}/{name}/" for name in PACKAGES)
error_files = ("/loader/errors.py", "/loader/redaction.py")

def called(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(packages) and not file.endswith(error_files):
        seen.add(file.removeprefix(f"{folder}/"))

def files_of(act):
    seen.clear()
    threading.setprofile(called)
    sys.setprofile(called)
    act()
    sys.setprofile(None)
    threading.setprofile(None)
    return sorted(seen)

def publish():
    with root.write("photos") as writer:
        for i in range(8):
            fields = {"x.npy": np.full((4, 4), i, np.float32), "cls": i}
            writer.add(f"k{i}", fields, metadata={"width": 64})

root = loader.Root(tempfile.mkdtemp())
found = {"publish": files_of(publish)}
plan = loader.plan({"photos": root.open("photos@latest")}, seed=7, global_batch=2)
with loader.Loader(plan, rank=0, world_size=1, framework="numpy", workers=0) as batches:
    found["next"] = files_of(lambda: next(batches))
assert not {"torch", "dagster"} & set(sys.modules)  # batches of arrays need neither

def register(root):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["register", "webdataset", place, "d", "--root", root]) == 0

place = tempfile.mkdtemp()
with tarfile.open(place + "/0.tar", "w") as archive:
    archive.addfile(tarfile.TarInfo("a.txt"))
register(tempfile.mkdtemp())
found["register"] = files_of(lambda: register(tempfile.mkdtemp()))
print(json.dumps(found))
"""


def run_code(code: str) -> str:
    return python("-c", code, check=True, cwd=ROOT).stdout


@pytest.fixture(scope="module")
def call_trace() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(run_code(f"PACKAGES = {PACKAGES!r}\n{TRACE}"))
    return found


@pytest.mark.parametrize(("way", "most"), FILES.items())
def test_way_through_the_loader_enters_few_files(
    way: str, most: int, call_trace: dict[str, list[str]]
) -> None:
    files = call_trace[way]
    assert ENTERED[way] in files
    # (verbs in Python are a file more, where no compiler was)
    assert len(files) <= most + ("loader/native/python.py" in files), "\n".join(files)


@pytest.mark.parametrize(("module", "most"), MODULES.items())
def test_import_loads_few_modules(module: str, most: int) -> None:
    code = f"import sys, {module}; print(*sorted(m for m in sys.modules if m.split('.')[0] in {PACKAGES!r}))"
    loaded = run_code(code).split()
    assert module in loaded
    assert len(loaded) <= most, "\n".join(loaded)


def test_registration_loads_few_modules(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    with tarfile.open(tmp_path / "place" / "0.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    words = ["register", "webdataset", str(tmp_path / "place"), "d", "--root", str(tmp_path / "root")]
    code = (
        f"import sys; from penstock.cli import main; assert main({words!r}) == 0; print(*sorted(sys.modules))"
    )
    loaded = [name for name in run_code(code).split() if name.split(".")[0] in PACKAGES]
    assert "penstock.formats.registration.register" in loaded
    assert len(loaded) <= REGISTER_MODULES, "\n".join(loaded)


def test_tour_says_these_numbers() -> None:
    tour = (ROOT / "docs" / "code-tour.md").read_text()
    assert f"enters {FILES['next']} files of `loader`, and a publish {FILES['publish']}." in tour
    assert f"loads {MODULES['assets.ingest.units']} modules" in tour
