"""A browser on the viewer of a root, both of their own processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.chromium import chromium
from tests.servers.patience import PATIENCE_S
from tests.view.test_browser import PREFIX, Viewer


@contextmanager
def open_browser(folder: Path, profile: Path) -> Iterator[Viewer]:
    """Serve a root with writes, and open its first page in a browser with this new profile."""
    command = [sys.executable, "-m", "penstock", "view", "--root", str(folder), "--port", "0"]
    command += ["--prefix", PREFIX, "--allow-writes"]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with chromium(profile) as page:
            yield Viewer(page, address)
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE_S)
