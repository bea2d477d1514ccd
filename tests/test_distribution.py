"""The distribution `penstock-data`: installed alone, and beside another project's `penstock`, in either order."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
STRANGER = {"penstock/__init__.py": "", "penstock/flow.py": "def main():\n    print('the stranger')\n"}
USES_LOADER = "import loader; loader.Root; print('fine')"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return "ours" and "stranger" -> a wheel. Ours is built without its C extension, which takes ten seconds."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in tracked.stdout.split("\0"):
        if name.startswith(("loader/", "penstock/")) or name in ("pyproject.toml", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    done = python(
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        source,
        env=os.environ | {"CC": "false"},
    )
    assert done.returncode == 0, done.stderr
    (ours,) = folder.glob("*.whl")
    stranger = folder / "penstock-0.1.0-py3-none-any.whl"
    info = "penstock-0.1.0.dist-info"
    about = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: penstock\nVersion: 0.1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*STRANGER, *about, f"{info}/RECORD"])
    with zipfile.ZipFile(stranger, "w") as archive:
        for name, text in (STRANGER | about | {f"{info}/RECORD": record}).items():
            archive.writestr(name, text)
    return {"ours": ours, "stranger": stranger}


@pytest.fixture
def environment(tmp_path: Path, wheels: dict[str, Path]) -> Callable[[Sequence[str]], Run]:
    """environment(names) -> run(program, *arguments) in a new venv, where pip installed these wheels in this order."""

    def make(names: Sequence[str]) -> Run:
        home = tmp_path / "venv"
        venv.create(home, with_pip=False)
        site = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        here = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        for name in names:
            pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
            options = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
            subprocess.run([*pip, *options, str(wheels[name])], env=here, check=True)
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

        def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            command = [str(home / "bin" / program), *arguments]
            return subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)

        return run

    return make


def test_distribution_works_alone(environment: Callable[[Sequence[str]], Run]) -> None:
    run = environment(["ours"])
    done = run("python", "-c", USES_LOADER)
    assert done.stdout == "fine\n", done.stderr
    done = run("penstock", "--help")
    assert done.returncode == 0, done.stderr
    versions = run(
        "python",
        "-c",
        "from loader.run.trail.trail import library_versions; print(library_versions()['penstock'])",
    )
    assert versions.stdout == "0.1.0\n", versions.stderr


@pytest.mark.parametrize("order", [("ours", "stranger"), ("stranger", "ours")], ids=" then ".join)
def test_distribution_names_another_projects_penstock(
    order: Sequence[str], environment: Callable[[Sequence[str]], Run]
) -> None:
    run = environment(order)
    for done in (run("python", "-c", USES_LOADER), run("penstock", "ls")):
        assert done.returncode != 0
        assert done.stdout == ""
        assert "two distributions install the package `penstock`" in done.stderr
        assert "penstock-0.1.0.dist-info" in done.stderr
        assert "penstock_data-0.1.0.dist-info" in done.stderr
        assert "pip uninstall penstock penstock-data" in done.stderr
    assert "PackageClash" in run("python", "-c", USES_LOADER).stderr
