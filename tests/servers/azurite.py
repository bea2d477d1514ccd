"""Azurite, Microsoft's emulator of Azure Blob Storage, a process of its own; scripts/install-servers.sh brings it."""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parents[2] / ".servers" / "node_modules" / ".bin"
ACCOUNT = "lab"
ACCOUNT_KEY = base64.b64encode(b"PLANTEDsecretPLANTED").decode()


@contextmanager
def azurite(folder: Path, *containers: str) -> Iterator[str]:
    """The endpoint of a fresh one, with these containers; ends with the block. folder: for what it prints."""
    program = shutil.which("azurite-blob", path=os.pathsep.join([str(HERE), os.environ.get("PATH", "")]))
    if program is None:
        raise FileNotFoundError(
            f"azurite-blob is neither in {HERE} nor on PATH; run scripts/install-servers.sh"
        )
    log = folder / "azurite.log"
    command = [
        program,
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        "0",
        "--inMemoryPersistence",
        "--disableTelemetry",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--skipApiVersionCheck"],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"},
        )
    try:
        port = _port(process, log)
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        _create(endpoint, containers)
        yield endpoint
    finally:
        process.terminate()
        process.wait()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """What the system gave it, as it says itself once it listens. Raises: RuntimeError after 60 s without a word."""
    for _ in range(1200):
        if found := re.search(r"listens on http://127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError(f"azurite does not listen (status {process.poll()}): {log.read_text()[-2000:]}")


def _create(endpoint: str, containers: tuple[str, ...]) -> None:
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient(endpoint, {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}) as client:
        for container in containers:
            client.create_container(container)
