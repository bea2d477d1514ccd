"""Notices of arrivals, as stores send them."""

import base64
import json
from typing import Any


def s3_event(key: str, bucket: str = "bucket", name: str = "ObjectCreated:Put") -> dict[str, Any]:
    return {"Records": [{"eventName": name, "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}]}


def gcs_event(key: str, kind: str = "OBJECT_FINALIZE") -> dict[str, Any]:
    data = base64.b64encode(json.dumps({"name": key}).encode()).decode()
    return {"attributes": {"eventType": kind, "bucketId": "bucket", "objectId": key}, "data": data}


def azure_event(
    url: str, field: str = "eventType", kind: str = "Microsoft.Storage.BlobCreated"
) -> dict[str, Any]:
    return {field: kind, "subject": "/blobServices/default/containers/bucket/blobs/x", "data": {"url": url}}


BRIDGE = {"source": "aws.s3", "detail": {"bucket": {"name": "bucket"}, "object": {"key": "a b+c.jpg"}}}
