"""Each process of `make ci` reads the test files that it runs, not all: `-p tests.lazily --collected=FILE`.

`pytest --collect-only` writes the ids of the tests to FILE, in their order. Processes of pytest-xdist take the ids from
there, and read a file when its first test is next. To read all files costs 40 s of a processor in each process.
"""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import collect_one_node


class ListedTest(NamedTuple):
    """A test whose file may not be read yet."""

    nodeid: str


class ListedTests(list[Any]):
    """Tests of a session in a process of pytest-xdist, which takes one after the other by its number."""

    def __init__(self, ids: list[str], files: dict[str, pytest.Collector]) -> None:
        super().__init__(map(ListedTest, ids))
        self._files, self._items = files, dict[str, dict[str, pytest.Item]]()

    def __getitem__(self, index: Any) -> Any:
        nodeid = super().__getitem__(index).nodeid
        file = nodeid.partition("::")[0]
        if file not in self._items:
            session = self._files[file].session
            items = list(session.genitems(self._files[file]))
            session.config.hook.pytest_collection_modifyitems(
                session=session, config=session.config, items=items
            )
            self._items[file] = {item.nodeid: item for item in items}
            gc.collect()
            gc.freeze()  # as conftest.py does where all files are read
        return self._items[file][nodeid]


def files_below(collectors: list[Any]) -> Iterator[pytest.Collector]:
    """Yield the test files of folders, unread."""
    for collector in collectors:
        if isinstance(collector, pytest.Directory):
            yield from files_below(collect_one_node(collector).result)
        else:
            yield collector


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--collected", type=Path, required=True, help="file with the ids of the tests")


def pytest_collection(session: pytest.Session) -> bool | None:
    """In a process of pytest-xdist, find folders and files, and read none."""
    if not hasattr(session.config, "workerinput"):
        return None
    session.perform_collect(genitems=False)
    session.testscollected = len(session.items)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[Any]) -> None:
    """Take the ids in the place of tests, once the folders and their conftest.py are known."""
    if hasattr(session.config, "workerinput") and not isinstance(session.items, ListedTests):
        ids = json.loads(session.config.getoption("--collected").read_text())
        session.items = ListedTests(ids, {file.nodeid: file for file in files_below(items)})
        items.clear()


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Write the ids where all files are read."""
    yield
    if session.config.option.collectonly:
        file = session.config.getoption("--collected")
        file.write_text(json.dumps([item.nodeid for item in session.items]))
