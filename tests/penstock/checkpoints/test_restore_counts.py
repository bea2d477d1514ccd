"""What a rank reads of a checkpoint that more ranks saved: its share, from the parts that hold it."""

import json
from pathlib import Path

from tests.servers.processes import python

REPOSITORY = Path(__file__).parents[3]
REQUEST_BYTES = 16 * 2**10
"""16 MiB, divided as all sizes there."""


def test_eight_ranks_save_and_six_read_their_share() -> None:
    """The shape of 100 GB."""
    done = python("-m", "benchmarks.checkpoint_restore", "--json", cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    restored = json.loads(done.stdout)
    assert restored["parts"] >= 1600
    assert len(restored["ranks"]) == 6
    for rank in restored["ranks"]:
        assert rank["share"] <= rank["nbytes"] <= 1.01 * rank["share"]
        assert rank["parts"] <= restored["parts"] * 3 / 8, (
            "a sixth of the rows lies with three of eight ranks at most"
        )
        assert rank["requests"] <= 10 + 2.5 * rank["share"] / REQUEST_BYTES
        assert rank["requests"] < 2 * restored["parts"]
    requests, nbytes = restored["served"]
    assert abs(requests - sum(rank["requests"] for rank in restored["ranks"])) <= 10
    assert nbytes <= 1.02 * restored["nbytes"]
