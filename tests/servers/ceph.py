"""Ceph's S3 server as processes of its own, for tests marked `ceph`; scripts/install-ceph.sh brings it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.ports import free_port

START = Path(__file__).parents[2] / "scripts" / "start-ceph.sh"


@contextmanager
def ceph(folder: Path, key: str, secret: str) -> Iterator[str]:
    """The endpoint of a fresh one; it ends with the block. folder: empty, for its configuration and logs."""
    port = free_port()
    subprocess.run([START, folder, str(port), key, secret], check=True, timeout=180)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([START, "--stop", folder], check=True, timeout=60)
