"""The benchmark of rollouts reads back what it wrote. No speed is asserted."""

from benchmarks import rollouts


def test_each_contestant_is_measured_and_reads_what_it_wrote() -> None:
    step = rollouts.rollouts(12)
    measured = list(rollouts.measure(step, rounds=1))
    assert [name for name, _, _ in measured] == ["penstock", "JSON Lines", "Parquet"]
    assert all(write > 0 and read > 0 for _, write, read in measured)
