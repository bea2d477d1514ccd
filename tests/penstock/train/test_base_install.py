"""A training script imports penstock with the packages of README's install only."""

import os
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.servers.processes import python

REPOSITORY = Path(__file__).parents[3]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

BLOCKER = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Finder(finder) for finder in sys.meta_path]
"""


def requirements(extras: Iterable[str]) -> set[str]:
    """Return the distributions that pip installs for `penstock-data[extras]`."""
    installed = set[str]()
    pending = [("penstock-data", frozenset(extras))]
    while pending:
        name, chosen = pending.pop()
        installed.add(canonicalize_name(name))
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in (*chosen, "")
            )
            if applies and canonicalize_name(requirement.name) not in installed:
                pending.append((requirement.name, frozenset(requirement.extras)))
    return installed


def blocker(*extras: str) -> str:
    """Return code after which only packages of `penstock-data[extras]` can be imported."""
    installed = requirements(extras)
    blocked = [
        module
        for module, distributions in metadata.packages_distributions().items()
        if not installed & {canonicalize_name(name) for name in distributions}
    ]
    assert "msgspec" in blocked
    return f"BLOCKED = frozenset({blocked!r}){BLOCKER}"


def script_imports() -> list[str]:
    """Return the statements by which pages tell a script to import penstock."""
    pattern = r"^(from (?:loader|penstock)[\w.]* import .*|import (?:loader|penstock)[\w.]*)$"
    statements = set[str]()
    for page in PAGES:
        statements.update(re.findall(pattern, page.read_text(), re.M))
    # The conformance suites need pytest, by the extra `testing`.
    return sorted(statement for statement in statements if not statement.startswith("from loader.testing"))


def test_names_of_the_pages_import_without_optional_packages() -> None:
    statements = script_imports()
    assert "from penstock.train import Run" in statements
    names = "import loader\nfor name in loader.__all__: getattr(loader, name)"
    done = python("-c", "\n".join([blocker(), *statements, names]))
    assert done.returncode == 0, done.stderr


def test_script_of_the_page_trains_with_the_extra_torch_only(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "training.md").read_text()
    scripts = dict(re.findall(r"```python (\w+)\n(.*?)```", page, re.S))
    code = "\n".join([blocker("torch"), scripts["data"], scripts["run"]])
    done = python("-c", code, "3", cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("took") == 3


def test_run_is_submitted_with_the_extra_torch_only(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'run = "a"\ncommand = ["true"]\nrecord = "{tmp_path}/root"\n')
    submit = f"main(['train', 'submit', {str(file)!r}, '--dry-run'])"
    listed = f"main(['train', 'ls', '--root', {f'{tmp_path}/root'!r}])"
    code = "\n".join(
        [
            blocker("torch"),
            "from penstock.cli import main",
            "import penstock.train.launch.local_loop",
            f"assert {submit} == 0",
            f"import loader; loader.Root({f'{tmp_path}/root'!r}).create()",
            f"assert {listed} == 0",
        ]
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "torch.distributed.run" in done.stdout


@pytest.mark.parametrize("call", ["Run.joined()", "Checkpoints('.', 'run').save(1, {})"])
def test_missing_torch_is_an_error_with_the_pip_command(call: str) -> None:
    code = f"from penstock.train import Run\nfrom penstock.checkpoints import Checkpoints\n{call}"
    done = python("-c", f"import sys\nsys.modules['torch'] = None\n{code}")
    assert done.returncode == 1
    assert "MissingDependency" in done.stderr
    assert "pip install 'penstock-data[torch]'" in done.stderr
