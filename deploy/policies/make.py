"""Policies that restrict a role's writes in a root's store to what docs/security.md lists.

    python deploy/policies/make.py s3 writer --bucket my-bucket --prefix roots/main > writer.json
    python deploy/policies/make.py gcs trainer --bucket my-bucket --project my-project --member serviceAccount:...
    python deploy/policies/make.py azure reader --bucket my-container --account mine --scope /subscriptions/...

s3: an identity policy for `aws iam put-role-policy`. gcs: custom roles, and bindings to add to the bucket's. azure:
role definitions, and the condition of each assignment.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

CREATE, PUT, DELETE = "create", "put", "delete"
"""Verbs: create a new object; create or replace an object; delete an object."""

Rights = Mapping[str, tuple[str, ...]]
"""Prefix or pattern of keys below the root -> allowed verbs. Every role may also read and list everything."""

SHARDS = "data/*.tar"
"""Keys written without a condition, because no client completes a conditional multipart upload."""

_LEASES: Rights = {"leases/": (PUT, DELETE)}
_PLANS: Rights = {
    "plans/": (CREATE,),
    "views/": (CREATE,),
    "packs/": (CREATE,),
    "lists/": (CREATE,),
    "windows/": (CREATE,),
    "norms/": (CREATE,),
}
_LOG: Rights = {"log/": (CREATE,), "log/state-*": (PUT,), "starts/": (PUT,)}
_HEARTBEATS: Rights = {"heartbeats/": (PUT, DELETE)}

ROLES: Mapping[str, Rights] = {
    "reader": _LEASES,
    "trainer": {
        **_LEASES,
        **_PLANS,
        "ledgers/": (CREATE,),
        "reports/": (CREATE,),
        "follows/": (CREATE,),
        "trails/": (CREATE,),
        "checkpoints/": (PUT, DELETE),
        "trainings/": (PUT, DELETE),
        "nodes/checks/": (CREATE,),
        "nodes/runs/": (CREATE,),
    },
    "watcher": {"nodes/": (CREATE,)},
    "writer": {
        **_LEASES,
        **_PLANS,
        **_LOG,
        **_HEARTBEATS,
        "penstock.json": (CREATE,),
        "data/": (CREATE,),
        SHARDS: (PUT,),
        "tables/": (PUT, DELETE),
        "stages/": (CREATE,),
        "cards/": (CREATE,),
        "gates/": (CREATE,),
        "exclusions/": (CREATE,),
        "slices/": (CREATE,),
        "search/": (CREATE,),
        "maps/": (CREATE,),
        "protected/": (PUT,),
    },
    "submitter": {"jobs/": (PUT, DELETE)},
    "registrar": {"places/": (CREATE,), "seals/": (CREATE,), "foreign/": (PUT,)},
    "collector": {
        **_LOG,
        "log/state-*": (PUT, DELETE),
        "data/": (DELETE,),
        "cards/": (DELETE,),
        "seals/": (DELETE,),
        "foreign/": (DELETE,),
        "search/": (DELETE,),
        "maps/": (DELETE,),
        "protected/": (DELETE,),
        "leases/": (PUT, DELETE),
        "heartbeats/": (DELETE,),
        "swept/": (CREATE,),
        "collect/": (PUT, DELETE),
    },
    "operator": {
        "": (PUT, DELETE),
        "takedowns/": (PUT, DELETE),
        "migrations/": (PUT, DELETE),
    },
}
"""watcher: drains nodes. submitter, registrar: extra roles of a writer that uses a cluster, or registers data.
operator: takes down, migrates and moves data."""

_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_AZURE = {CREATE: f"{_BLOBS}/add/action", PUT: f"{_BLOBS}/write", DELETE: f"{_BLOBS}/delete"}
_GCS_CREATE = ("storage.objects.create", *(f"storage.multipartUploads.{one}" for one in ("abort", "create")))
_GCS = {
    CREATE: _GCS_CREATE,
    PUT: (*_GCS_CREATE, "storage.objects.delete"),
    DELETE: ("storage.objects.delete",),
}


def places(role: str, verb: str) -> list[str]:
    """Return the key prefixes and patterns for which a role has this verb."""
    return [place for place, verbs in ROLES[role].items() if verb in verbs]


def s3(role: str, bucket: str, prefix: str) -> dict[str, Any]:
    """Return an IAM policy. A create is a PUT with If-None-Match."""
    root = f"{prefix}/" if prefix else ""

    def objects(places: list[str]) -> list[str]:
        return [f"arn:aws:s3:::{bucket}/{root}{one}{'' if _is_whole(one) else '*'}" for one in places]

    statements = [
        {
            "Sid": "List",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{root}*"]}},
        },
        {"Sid": "Read", "Effect": "Allow", "Action": ["s3:GetObject"], "Resource": objects([""])},
    ]
    if created := objects(places(role, CREATE)):
        only_new = {"Null": {"s3:if-none-match": "false"}}
        statements.append(_statement("Create", ["s3:PutObject"], created, only_new))
    if put := objects(places(role, PUT)):
        statements.append(_statement("Put", ["s3:PutObject", "s3:AbortMultipartUpload"], put))
    if deleted := objects(places(role, DELETE)):
        statements.append(_statement("Delete", ["s3:DeleteObject"], deleted))
    return {"Version": "2012-10-17", "Statement": statements}


def gcs(role: str, bucket: str, prefix: str, project: str, member: str) -> dict[str, Any]:
    """Return role definitions, and bindings with conditions.

    Google's permission to create covers only new objects, even without a condition.
    """
    base = f"projects/_/buckets/{bucket}/objects/{prefix + '/' if prefix else ''}"
    definitions, bindings = [], [{"role": "roles/storage.objectViewer", "members": [member]}]
    for verb in (CREATE, PUT, DELETE):
        allowed = [place for place in places(role, verb) if place != SHARDS]
        if not allowed:
            continue
        name = f"penstock_{verb}"
        definitions.append(
            {"name": name, "title": f"penstock: {verb}", "includedPermissions": list(_GCS[verb])}
        )
        bindings.append(
            {
                "role": f"projects/{project}/roles/{name}",
                "members": [member],
                "condition": {
                    "title": f"penstock {role}: {verb}",
                    "expression": " || ".join(_gcs_condition(base, place) for place in allowed),
                },
            }
        )
    return {"roles": definitions, "bindings": bindings}


def azure(role: str, container: str, prefix: str, account: str, scope: str) -> dict[str, Any]:
    """Return role definitions for the account, each with its condition."""
    root = f"{prefix}/" if prefix else ""
    path = f"@Resource[{_BLOBS}:path]"
    name = "@Resource[Microsoft.Storage/storageAccounts/blobServices/containers:name]"
    assignments = []
    for verb, action in (("read", f"{_BLOBS}/read"), *_AZURE.items()):
        allowed = [""] if verb == "read" else places(role, verb)
        if not allowed:
            continue
        where = " OR ".join(
            f"{path} StringLike '{root}{one}{'' if _is_whole(one) else '*'}'" for one in allowed
        )
        definition = {
            "Name": f"penstock {role}: {verb}",
            "IsCustom": True,
            "Actions": [],
            "DataActions": [action],
            "AssignableScopes": [f"{scope}/providers/Microsoft.Storage/storageAccounts/{account}"],
        }
        # A listing request has no path.
        listing = " AND NOT SubOperationMatches{'Blob.List'}" if verb == "read" else ""
        condition = (
            f"(!(ActionMatches{{'{action}'}}{listing}) OR ({name} StringEquals '{container}' AND ({where})))"
        )
        assignments.append({"definition": definition, "condition": condition, "conditionVersion": "2.0"})
    return {"assignments": assignments}


def _statement(
    sid: str, actions: list[str], resources: list[str], condition: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": dict(condition)} if condition else statement


def _is_whole(place: str) -> bool:
    return "*" in place or place.endswith(".json")


def _gcs_condition(base: str, place: str) -> str:
    if place.endswith(".json"):
        return f'resource.name == "{base}{place}"'
    first, _, last = place.partition("*")
    starts = f'resource.name.startsWith("{base}{first}")'
    return f'({starts} && resource.name.endsWith("{last}"))' if last else starts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", choices=("s3", "gcs", "azure"))
    parser.add_argument("role", choices=tuple(ROLES))
    parser.add_argument("--bucket", required=True, help="the bucket, of Azure the container")
    parser.add_argument("--prefix", default="", help="the folder in it that is the root")
    parser.add_argument("--project", default="PROJECT", help="gcs: whose roles these are")
    parser.add_argument("--member", default="serviceAccount:ACCOUNT", help="gcs: who gets the role")
    parser.add_argument("--account", default="ACCOUNT", help="azure: the storage account")
    parser.add_argument(
        "--scope", default="/subscriptions/ID/resourceGroups/GROUP", help="azure: where it is"
    )
    options = parser.parse_args()
    place = options.role, options.bucket, options.prefix.strip("/")
    policies = {
        "s3": lambda: s3(*place),
        "gcs": lambda: gcs(*place, options.project, options.member),
        "azure": lambda: azure(*place, options.account, options.scope),
    }[options.store]()
    sys.stdout.write(json.dumps(policies, indent=2) + "\n")


if __name__ == "__main__":
    main()
