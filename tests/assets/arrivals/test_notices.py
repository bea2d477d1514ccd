"""Every form of notice that stores send is read, and everything else is refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.arrivals.notices import Notice, UnreadableNotice, read_notices, relative_key
from tests.assets.arrivals.events import BRIDGE, azure_event, gcs_event, s3_event

FORMS = {
    "s3": (s3_event("a+b%2Bc.jpg"), ["a b+c.jpg"]),
    "s3 removed": (s3_event("a", name="ObjectRemoved:Delete"), []),
    "s3 test": ({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "bucket"}, []),
    "sns": ({"Type": "Notification", "Message": json.dumps(s3_event("%E7%8B%97"))}, ["狗"]),
    "sqs to a function": ({"Records": [{"body": json.dumps(s3_event("a"))}]}, ["a"]),
    "eventbridge": (BRIDGE | {"detail-type": "Object Created"}, ["a b+c.jpg"]),
    "eventbridge deleted": (BRIDGE | {"detail-type": "Object Deleted"}, []),
    "gcs": (gcs_event("a b%.jpg"), ["a b%.jpg"]),
    "gcs pushed": ({"message": gcs_event("a"), "subscription": "s"}, ["a"]),
    "gcs deleted": (gcs_event("a", "OBJECT_DELETE"), []),
    "azure": ([azure_event("https://x.blob.core.windows.net/bucket/a%20b/c.jpg")], ["a b/c.jpg"]),
    "azure, cloud events": (azure_event("https://x/bucket/a", "type"), ["a"]),
    "azure deleted": (azure_event("https://x/bucket/a", kind="Microsoft.Storage.BlobDeleted"), []),
    "azure handshake": ([azure_event("", kind="Microsoft.EventGrid.SubscriptionValidationEvent")], []),
    "plain": ({"key": "a"}, ["a"]),
}
GARBAGE = [
    "{",
    "3",
    "[[[[[[]]]]]]",
    "{}",
    '{"Records": 3}',
    '{"Records": [{}]}',
    '{"Message": "no json"}',
    '{"key": 3}',
    '{"key": ""}',
    '{"eventType": "com.example"}',
    '{"Event": "other"}',
    '{"attributes": null}',
    "\0",
    '{"hello": "world"}',
]


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    body, keys = FORMS[form]
    found = read_notices(json.dumps(body))
    assert [relative_key(notice, "s3://bucket") for notice in found] == keys


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_is_named(line: str) -> None:
    with pytest.raises(UnreadableNotice):
        read_notices(line)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Records", "Message", "message", "attributes", "key", "type", "s3", "eventName", "data"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_notices_or_unreadable(body: Any) -> None:
    try:
        found = read_notices(json.dumps(body))
    except UnreadableNotice:
        return
    assert all(isinstance(one, Notice) for one in found)


def test_notice_key_is_relative_to_its_place() -> None:
    def key(place: str, **told: str) -> str | None:
        return relative_key(Notice(**{"key": "", **told}), place)

    assert key("s3://b/raw", key="raw/x", bucket="b") == "x"
    assert key("s3://b/raw", key="rawx", bucket="b") is None
    assert key("s3://b/raw", key="raw/x", bucket="c") is None
    assert key("abfs://b@account.dfs.core.windows.net/raw", key="raw/x", bucket="b") == "x"
    assert key("/data/raw", key="x") == "x"
    assert key("/data/raw", uri="/data/raw/y/x") == "y/x"
    assert key("/data/raw", uri="/data/rawer/x") is None
