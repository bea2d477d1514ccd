"""examples/outage_walk.sh runs as it stands: S3, a mirror in Azure, a store that is killed, a takedown."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.s3 import boto3_client

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = ("outage_publish.py", "outage_train.py", "recheck_takedown.py")
STORY = dict(
    re.findall(r"^# --- (\w+): .*\n((?:(?!# ---).*\n)*)", (EXAMPLES / "outage_walk.sh").read_text(), re.M)
)
KILLED_AT = 10
"""Step of the training."""
FAR_S = 0.1


class Front:
    """What stands before a store and can be killed; the objects are behind it."""

    def __init__(self, port: int, delay_s: float = 0) -> None:
        self._server, self._delay_s, self.port = port, delay_s, 0
        self.begin()

    def begin(self) -> None:
        told = map(str, (self._server, self.port, self._delay_s))
        command = [sys.executable, ROOT / "tests" / "servers" / "front.py", *told]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def again(self, delay_s: float) -> None:
        """Begin again, farther away or nearer."""
        self.kill()
        self._delay_s = delay_s
        self.begin()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def front(s3):
    running = Front(int(s3["endpoint_url"].rpartition(":")[2]))
    yield running
    running.kill()


@pytest.fixture
def far(azure):
    running = Front(urlsplit(azure["endpoint"]).port)
    yield running
    running.kill()


@pytest.fixture
def environment(tmp_path, monkeypatch, s3, azure, front, far):
    """Where the commands run: their stores in the environment, as the providers' own tools read it."""
    from azure.storage.blob import BlobServiceClient

    client = boto3_client(s3)
    client.create_bucket(Bucket="lab")
    client.close()
    with BlobServiceClient(
        azure["endpoint"], {k: azure[k] for k in ("account_name", "account_key")}
    ) as blobs:
        blobs.create_container("backup")
    for name in SCRIPTS:
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in (("python", ""), ("penstock", " -m penstock")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
        (programs / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "servers" / "quick_disk")]),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{front.port}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": s3["key"],
        "AWS_SECRET_ACCESS_KEY": s3["secret"],
        "AZURE_STORAGE_CONNECTION_STRING": (
            f"DefaultEndpointsProtocol=http;AccountName={azure['account_name']};"
            f"AccountKey={azure['account_key']};BlobEndpoint=http://127.0.0.1:{far.port}/{azure['account_name']};"
        ),
    }


@pytest.fixture
def block(tmp_path, environment):
    """block(name) -> a process that runs a part of the walk, in the environment that the ones before it left."""
    (tmp_path / "exported").write_text("")

    def start(name):
        script = f". ./exported\nset -a\n{STORY[name]}\nexport -p > exported\n"
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def read_output(running) -> str:
    out, _ = running.communicate()
    assert running.returncode == 0, out
    return out


@pytest.mark.server
def test_story_as_it_is_written(tmp_path, block, front, far):
    assert list(STORY) == ["publish", "train", "takedown", "after"]
    out = read_output(block("publish"))
    assert "served by a mirror: 0" in out
    alone = (tmp_path / "alone.txt").read_text().splitlines()
    assert len(set(alone)) == len(alone) == 50

    far.again(FAR_S)  # S3 is the nearest, however slowly it answers just now
    training, killed = block("train"), tmp_path / "killed.txt"
    while training.poll() is None and not (
        killed.exists() and len(killed.read_text().splitlines()) >= KILLED_AT
    ):
        time.sleep(0.02)
    front.kill()
    served = re.search(r"served by a mirror: (\d+)", read_output(training))
    assert served is not None
    assert int(served[1]) > 0
    front.begin()
    far.again(0)

    out = read_output(block("takedown"))
    assert "complete" in out
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["result"] == "complete"
    assert {place["check"] for place in proof["places"]} >= {"absent", "mirror"}
    asked = {place["url"] for place in proof["places"] if place["check"] == "noncurrent"}
    assert asked == {"s3://lab/penstock", "az://backup/penstock"}
    out = read_output(block("after"))
    assert out.count("nothing wrong") == 2
    assert "people@1" in out
    assert "retired" in out
