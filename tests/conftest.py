"""What holds for all tests."""

import os

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says when the corpus of real media was not there to look at."""
    asked = "server" in config.option.markexpr.replace("not server", "") or not config.option.markexpr
    if asked and not os.environ.get("PENSTOCK_MEDIA"):
        terminalreporter.write_line(
            "PENSTOCK_MEDIA is not set: tests of the corpus of real media had no file to look at", yellow=True
        )
