"""The same with a model of 100 million parameters (of 9 million but in `make test-full`), and on S3."""

import pytest

pytestmark = pytest.mark.server


def test_many_parameters_and_their_moments_at_two_one_and_three_ranks(ranks, tmp_path, at_scale):
    place, size = str(tmp_path / "root"), at_scale("9M", "100M")
    expected = ranks(2, "save", url=place, step=10, seed=1, size=size, train=1)
    assert len(expected) > 500
    for world in (1, 3):
        found = ranks(world, "load", url=place, seed=2, size=size)
        assert (found["step"], found["digests"]) == (10, expected)


def test_on_s3_saved_at_two_and_loaded_at_three(ranks, s3):
    where = {"url": "s3://bucket/checkpoints-of-ranks", "options": {**s3, "retry_base_s": 0.01}}
    expected = ranks(2, "save", step=10, seed=1, part_bytes=30_000, after=1, **where)
    found = ranks(3, "load", seed=2, **where)
    assert (found["step"], found["digests"]) == (10, expected)
    killed = ranks(
        2,
        "save",
        whole=False,
        step=20,
        seed=1,
        part_bytes=30_000,
        die_rank=1,
        die_at="1.safetensors",
        **where,
    )
    assert [one["code"] for one in killed] == [1, -9]
    assert ranks(1, "load", seed=2, **where)["digests"] == expected
    again = ranks(2, "save", step=20, seed=1, part_bytes=30_000, train=3, keep_last=1, **where)
    found = ranks(1, "load", seed=2, **where)
    assert (found["step"], found["digests"]) == (20, again)
