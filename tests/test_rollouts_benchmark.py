"""The benchmark of rollouts reads back what it wrote. No speed is asserted."""

from benchmarks import rollouts


def test_each_contestant_is_measured_and_reads_what_it_wrote() -> None:
    step = rollouts.rollouts(12)
    measured = list(rollouts.measure(step, rounds=1))
    assert [name for name, _, _ in measured] == ["penstock", "JSON Lines", "Parquet"]
    assert all(write > 0 and read > 0 for _, write, read in measured)


def test_section_has_a_row_for_each_aim() -> None:
    sizes = ["--rollouts", "8", "--rounds", "1", "--late", "11", "--steps", "2", "--arriving", "8"]
    arguments = rollouts.parser().parse_args(sizes)
    section = "\n".join(rollouts.section(arguments))
    assert f"Made by `python -m benchmarks.rollouts {' '.join(sizes)}`" in section
    assert "- write and publish 8 rollouts with " in section
    assert "- read them as packed batches: " in section
    assert "- a decision of 8 rollouts of 16 writers, opening included: " in section
    assert "- open the newest version after 2 steps of 16 writers, 32 parts: " in section
    assert "- from the publication of 8 rollouts by 16 writers to the batch with all of them" in section
