"""Class numbers keep their meaning, whoever made the versions in between."""

import loader
from assets.ingest.cut import labels_of
from assets.ingest.units import published_labels


def test_version_made_by_hand_loses_no_class_name(root: loader.Root) -> None:
    assert published_labels(root, "demo") == []
    with root.write("demo", producer={"labels": ["dog", "cat"]}) as writer:
        for number in range(3):
            writer.add(f"{number}", {"cls": 0})
    root.exclude("demo@1", ["0"], reason="not wanted")
    assert published_labels(root, "demo") == ["dog", "cat"]
    assert labels_of([], {}, published_labels(root, "demo")) == ["dog", "cat"]
    root.retire("demo@1", reason="wrong")
    root.retire("demo@2", reason="wrong")
    assert published_labels(root, "demo") == []
