"""`python -m benchmarks.peers [NAME ...]`: environments of the peers, .peers/NAME, from benchmarks/peers/NAME.txt.

Each sees the project's own packages (torch above all) through a .pth file, and puts its own before them. The lists are
whole, so pip resolves nothing and takes no torch of its own.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from ..contest import ENVIRONMENTS, LISTS, failure_of, python_of


def install(name: str, wheels: Path | None = None) -> str:
    """Make one environment, unless it is as listed already; gives what went wrong, or "". wheels: a folder in place of
    the network."""
    folder, wanted = ENVIRONMENTS / name, (LISTS / f"{name}.txt").read_text()
    done = folder / "installed.txt"
    if done.exists() and done.read_text() == wanted:
        return ""
    venv.create(folder, clear=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "project.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python_of(name))]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    pinned = ["install", "--quiet", "--no-deps", *source, "-r", str(LISTS / f"{name}.txt")]
    ran = subprocess.run([*pip, *pinned], capture_output=True, text=True)
    if ran.returncode == 0:
        done.write_text(wanted)
        return ""
    errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
    (folder / "failed.txt").write_text(errors[0] if errors else f"pip ended with {ran.returncode}")
    return failure_of(name)


def main() -> int:
    """A peer that does not install is a line of the page that says why."""
    for name in sys.argv[1:] or sorted(path.stem for path in LISTS.glob("*.txt")):
        print(f"{name}: {install(name) or 'installed'}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
