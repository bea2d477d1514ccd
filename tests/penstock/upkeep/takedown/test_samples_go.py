"""Samples that are taken down leave new versions at their commit, and the root with the takedown and a collection."""

from penstock.upkeep.verify.version import verify

SECRET = "ZQALICEZQ"


def add_upper_group(root):
    return root.add_group("photos", "up", {"up.txt": lambda sample: "UP " + sample["txt"]})


def test_new_samples_are_dropped_at_the_commit(kit, root):
    """The deny came before the commit of the parts."""
    kit.write(root, "photos", {"p1": "bob"})
    version = kit.write(
        kit.interrupted(root, lambda: kit.deny(root)), "photos", {"p2": SECRET, "p3": "carol"}
    )
    assert sorted(kit.content(version)) == ["p1", "p3"]


def test_new_groups_keep_nothing(kit, root):
    """The group was made before the deny."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    version = add_upper_group(kit.interrupted(root, lambda: kit.deny(root)))
    more = [shard["path"] for shard in version.parts.shard_rows().to_pylist() if shard["group"] == "up"]
    assert all(SECRET.encode() not in root.store.get(path).data for path in more)


def test_next_commit_leaves_out_old_samples(kit, root):
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    kit.deny(root)
    assert sorted(kit.content(kit.write(root, "photos", {"p3": "carol"}))) == ["p2", "p3"]


def test_nothing_is_left_after_the_collection(kit, root):
    kit.write(root, "photos", {f"{SECRET}/one": SECRET, "p2": "bob"})
    add_upper_group(root)
    kit.take_down(root, kit.deny(root))
    assert all(one.retired is not None for one in root.versions("photos")[:2])
    kit.sweep(root)
    assert kit.found(root, SECRET) == []
    assert verify(root, "photos", full=True).problems == []
    assert sorted(kit.content(root.open("photos"))) == ["p2"]
