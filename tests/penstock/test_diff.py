"""`penstock diff`: what changes from one version to another, at the cost of small tables."""

import loader
from penstock.upkeep.diff import column_statistics, diff


def open_versions(filled):
    root = loader.Root(filled[0])
    return {number: root.open(f"d@{number}") for number in (1, 3, 4)}


def test_counts(sample_root):
    versions = open_versions(sample_root)
    found = diff(versions[1], versions[4])
    assert (found.a, found.b) == ("d@1", "d@4")
    assert found.samples == (10, 13)
    assert found.excluded == (0, 1)
    assert (len(found.parts_added), found.parts_removed) == (1, [])
    assert (found.groups_added, found.groups_removed) == ({"emb": ["emb.npy"]}, {})
    assert found.coverage == {"media": (10, 14)}
    assert found.nbytes[0] < found.nbytes[1]


def test_columns(sample_root):
    versions = open_versions(sample_root)
    found = diff(versions[1], versions[4]).columns
    assert found["score"][0] is None
    assert found["score"][1] == {
        "type": "double",
        "n": 4,
        "nulls": 0,
        "nans": 0,
        "zeros": 0,
        "min": 5,
        "max": 6.5,
        "mean": 5.75,
    }
    assert found["w"][0]["max"] == 9
    assert found["w"][1]["max"] == 13
    assert found["w"][1]["mean"] == 6.5
    assert "kind" not in found
    assert found["key"] == ({"type": "string", "n": 10, "nulls": 0}, {"type": "string", "n": 14, "nulls": 0})
    assert column_statistics(versions[4])["kind"]["categories"] == {"a": 5, "b": 5}


def test_back_and_to_itself(sample_root):
    versions = open_versions(sample_root)
    back = diff(versions[4], versions[1])
    assert (len(back.parts_removed), back.parts_added) == (1, [])
    assert back.groups_removed == {"emb": ["emb.npy"]}
    same = diff(versions[4], versions[4])
    assert (same.columns, same.coverage, same.groups_added, same.parts_added) == ({}, {}, {}, [])


def test_text(cli, sample_root):
    text = cli("diff", "d@1", "d@4", root=sample_root[0]).out
    for part in (
        "d@1 -> d@4",
        "samples   10 -> 13   excluded 0 -> 1",
        "parts     +1 -0",
        "group     +emb (emb.npy)",
        "group     media covers 10 -> 14 samples",
        "column    score: absent -> n=4",
    ):
        assert part in text
    assert cli("diff", "d@1", "d@4", "--json", root=sample_root[0]).json["samples"] == [10, 13]
