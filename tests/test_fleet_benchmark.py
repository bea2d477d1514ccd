"""The machinery of `python -m benchmarks.fleet`. No speed is asserted."""

from benchmarks.fleet import rows


def test_every_row_is_measured(tmp_path):
    sizes = rows.Sizes(units=20, blocks=5, waited=600, rounds=1)
    found = [row for one in (rows.own_cost, rows.reattachment, rows.waiting) for row in one(tmp_path, sizes)]
    told = {row.what: row.values[0] for row in found}
    assert list(told)[2:] == [
        "attach to a job of 5 blocks, all outcomes read",
        "memory of who waits for 600 units",
        "requests of a block",
    ]
    assert told["requests of a block"] <= 6
    assert all(isinstance(row.values[0], float) for row in found)
