"""Keys below a root in a bucket that no store takes: commands name them, and go on."""

import warnings

import numpy as np
import pytest

import loader
from loader.dataset.root import root_in_store
from loader.storage import open_store


@pytest.fixture
def odd_root(s3, monkeypatch):
    """A root with a version in a bucket of a real S3 server, and three odd keys below it."""
    for name, value in (
        ("AWS_ENDPOINT_URL", s3["endpoint_url"]),
        ("AWS_ACCESS_KEY_ID", s3["key"]),
        ("AWS_SECRET_ACCESS_KEY", s3["secret"]),
    ):
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3
    url = "s3://bucket/odd-root"
    root = root_in_store(open_store(url))
    root.create()
    with root.write("photos") as writer:
        writer.add("a", {"x.npy": np.zeros(3)})
    client = boto3.client("s3", endpoint_url=s3["endpoint_url"], region_name="us-east-1")
    for key in ("data//x.tar", "leases/../x.json", "log/\x07"):
        client.put_object(Bucket="bucket", Key=f"odd-root/{key}", Body=b"x")
    client.close()
    return url


def test_commands_go_on_beside_odd_keys_below_a_root(odd_root, cli):
    assert loader.Root(odd_root).datasets() == ["photos"]
    for words in (("lease", "ls"), ("gc", "plan"), ("ls",)):
        done = cli(*words, root=odd_root)
        assert done.code == 0, (words, done)
    done = cli("verify", "--json", root=odd_root)
    assert done.code == 0, done
    assert {"data//x.tar", "leases/../x.json", "log/\x07"} <= set(done.json["foreign"])
