"""Tables of shingles under `protected/`, of versions that had denied samples."""

import loader
from loader.dataset.log.denies import Target
from penstock.search.overlap.find_overlaps import find_overlaps
from penstock.search.overlap.protected_texts import protected_path, protected_texts

SECRET = "ZQALICEZQ"
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen"


def write(root: loader.Root, dataset: str, subjects: list[str]) -> loader.Version:
    with root.write(dataset) as writer:
        for number, subject in enumerate(subjects):
            writer.add(f"{dataset}{number}", {"txt": f"{WORDS} of {subject}"}, source={"subject": subject})
    return root.open(dataset)


def test_takedown_deletes_the_tables_of_versions_that_had_the_sample(kit, root):
    exam = write(root, "exam", ["bob", SECRET])
    clean = write(root, "clean", ["carol"])
    tables = {version.id: protected_path(version.id) for version in (exam, clean)}
    for version in (exam, clean):
        protected_texts(version)
    n = root.log.deny((Target(kind="subject", value=SECRET),), "ticket 12", "privacy desk").n
    kit.take_down(root, n)
    kit.sweep(root)
    assert [info.key for info in root.store.list("protected/")] == [tables[clean.id]]
    assert kit.prove(root, n)["result"] == "complete"
    assert kit.found(root, SECRET, "exam1") == []

    # The version without the sample takes its place.
    newest = root.open("exam")
    assert [one.of for one in find_overlaps(root, "clean@1", [newest.name]).overlaps] == ["exam0"]

    # A comparison that began before the takedown stores its table again: the proof names it.
    root.store.put(tables[exam.id], root.store.get(tables[clean.id]).data)
    proof = kit.prove(root, n)
    assert proof["result"] != "complete"
    (place,) = [place for place in proof["places"] if not place["clean"]]
    assert place["path"] == tables[exam.id]
    kit.take_down(root, n)
    assert kit.prove(root, n)["result"] == "complete"
