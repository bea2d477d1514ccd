"""Real processes that publish at once, on a disk and on S3."""

import loader
from penstock.upkeep.verify.version import verify


def publish_at_once(at_once, url, options, processes):
    """The version numbers that they say."""
    jobs = [{"what": "write", "url": url, "options": options, "name": f"p{i}-"} for i in range(processes)]
    done = at_once("child.py", *jobs)
    assert [status for status, _ in done] == [0] * processes, done
    return sorted(number for _, number in done)


def check_all_there(url, options, processes, properties):
    root = loader.Root(url, options=options)
    last = root.open(f"d@{processes}")
    expected = {f"p{p}-{i}": {"cls": b"%d" % i} for p in range(processes) for i in range(6)}
    assert properties.content(last) == expected
    lengths = [len(root.open(record.name)) for record in root.versions("d")]
    assert lengths == [6 * n for n in range(1, processes + 1)]
    assert verify(root, f"d@{processes}", full=True).problems == []
    assert {txn.status for txn in root.state.txns.values()} == {"committed"}
    root.close()


def test_20_processes_publish_at_once_on_a_disk(tmp_path, properties, at_once):
    """The root too is made by whoever comes first."""
    url = str(tmp_path / "root")
    assert publish_at_once(at_once, url, {}, 20) == list(range(1, 21))
    check_all_there(url, {}, 20, properties)


def test_processes_publish_at_once_on_s3(bucket, properties, at_once, at_scale):
    (url, options), n = bucket, at_scale(8, 20)
    assert publish_at_once(at_once, f"{url}/at-once", options, n) == list(range(1, n + 1))
    check_all_there(f"{url}/at-once", options, n, properties)


def test_two_processes_add_one_group_at_once(tmp_path, at_once):
    """One wins; the other is refused by name, and nothing of it is in the version."""
    url = str(tmp_path / "root")
    publish_at_once(at_once, url, {}, 1)
    job = {"what": "group", "url": url, "options": {}, "name": "new"}
    done = at_once("child.py", job, job)
    assert sorted(done, key=str) == [(0, 2), (1, "loader.errors.Conflict")]
    root = loader.Root(url)
    assert [record.number for record in root.versions("d")] == [1, 2]
    assert verify(root, "d", full=True).problems == []
