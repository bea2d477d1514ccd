"""Ranks of trainings as processes, for all tests of checkpoints in a file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.patience import PATIENCE_S


@pytest.fixture(scope="module")
def ranks():
    """ranks(world, do, **request) -> for each rank {"code", "said"}; unless `whole=False`, every one has to end well,
    and it gives what the first one said. See ranks.py."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("ranks.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ranks(world, do, *, whole=True, **request):
        print(json.dumps({"world": world, "do": do, **request}), file=process.stdin, flush=True)
        answer = json.loads(process.stdout.readline())
        if not whole:
            return answer
        assert [one["code"] for one in answer] == [0] * world, answer
        assert all(one["said"] == answer[0]["said"] for one in answer) or do == "load"
        return answer[0]["said"]

    yield ranks
    with process.stdout:
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
