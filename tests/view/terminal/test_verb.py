"""`penstock tui`: the page that it begins with, and the terminal that it needs."""

import subprocess
import sys

import pytest

import loader
from penstock.verbs.view import first_place
from penstock.view.terminal.addresses import RootPage, RunPage, StepPage, VersionPage


@pytest.mark.parametrize(
    ("where", "step", "place"),
    [
        ("", None, RootPage()),
        ("photos", None, VersionPage(dataset="photos", number=1)),
        ("photos@1", None, VersionPage(dataset="photos", number=1)),
        ("one", None, RunPage(run="one")),
        ("one@3", None, StepPage(run="one", step=3)),
        ("one", 2, StepPage(run="one", step=2)),
        ("one@3", 2, StepPage(run="one", step=2)),
    ],
)
def test_where_names_the_first_page(trained, where, step, place) -> None:
    assert first_place(loader.Root(trained), where, step) == place


def test_without_a_terminal_another_verb_is_named(trained) -> None:
    command = [sys.executable, "-m", "penstock", "tui", "one@3", "--root", str(trained)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode != 0
    assert "`penstock batch` gives a step as text or JSON" in done.stderr
