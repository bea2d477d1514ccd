"""The machinery of `python -m benchmarks.fleet`. No speed is asserted."""

from benchmarks.fleet import kills, rows


def test_every_row_is_measured(tmp_path):
    sizes = rows.Sizes(units=20, blocks=5, waited=600, rounds=1)
    found = [row for one in (rows.own_cost, rows.reattachment, rows.waiting) for row in one(tmp_path, sizes)]
    told = {row.what: row.values[0] for row in found}
    assert list(told)[3:] == [
        "attach to a job of 5 blocks, all outcomes read",
        "memory of who waits for 600 units",
        "requests of a block",
    ]
    assert told["requests of a block"] <= 6
    assert all(isinstance(row.values[0], float) for row in found)


def test_job_is_disturbed_and_one_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "KILLS", {"workers": (3, 0.2), "runners": (1, 0.4), "waiting": (1, 0.8)})
    sizes = rows.Sizes(units=600, rounds=1)
    found = [
        row for one in (kills.under_kills, kills.cancelled, kills.slurm_cost) for row in one(tmp_path, sizes)
    ]
    assert [row.what.partition(",")[0] for row in found] == [
        "- units whose worker was killed",
        "- of 3 blocks the same byte for byte; the others have such a unit",
        "- time",
        "units of 600 lost",
        "- cancel to the last process",
    ]
    assert found[3].values == [0]
