"""Ceph's S3 server as processes of its own, for tests marked `ceph`; scripts/install-ceph.sh brings it."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START = Path(__file__).parents[2] / "scripts" / "start-ceph.sh"


@contextmanager
def ceph(folder: Path, key: str, secret: str) -> Iterator[str]:
    """The endpoint of a fresh one; it ends with the block. folder: empty, for its configuration and logs."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    subprocess.run([START, folder, str(port), key, secret], check=True, timeout=180)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([START, "--stop", folder], check=True, timeout=60)
