"""Looks again at a takedown's proof, without penstock: python recheck_takedown.py proof.json ROOT

ROOT: a path or an fsspec URL. Prints what is not as the proof says; exit status 0 if all is, and it says "complete"."""

import hmac
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow.parquet as pq

with open(sys.argv[1]) as file:
    proof = json.load(file)
fs, root = fsspec.core.url_to_fs(sys.argv[2].rstrip("/"))
salt, wrong = bytes.fromhex(proof["salt"]), []


def texts(path: str, data: bytes) -> Iterator[str]:
    """Every text in a table or JSON object, the key of every member of a shard."""
    if path.endswith(".tar"):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            yield from (found for name in tar.getnames() for found in re.findall(r"\A(?:.*/)?[^/.]*", name))
    else:
        lines = data.splitlines() if path.endswith(".jsonl") else [data]
        table = path.endswith(".parquet")
        yield from within(
            pq.read_table(io.BytesIO(data)).to_pydict() if table else list(map(json.loads, lines))
        )


def within(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for one in value if isinstance(value, list | tuple) else ():
        yield from within(one)
    yield from [value] if isinstance(value, str) else []


def denied(text: str, dataset: str) -> bool:
    """Whether a text, or a word of it, has one of the hashes."""
    hashes = {*proof["hashes"], *proof["marks"].get(dataset, ())}
    words = {text} | {word for word in re.split(r"[\s'\"(),;\[\]{}<>]+", text) if len(word) > 3}
    kinds = [
        ("mark", dataset),
        *((kind, of) for kind in ("raw", "sample", "subject") for of in ("", dataset)),
    ]
    messages = (f"{kind}\0{of}\0{word}".encode() for word in words for kind, of in kinds)
    return any(hmac.digest(salt, one, "sha256").hex() in hashes for one in messages)


for place in proof["places"]:
    path = f"{root}/{place.get('path')}"
    if place["check"] == "absent" and place["clean"] and fs.exists(path):
        wrong.append(f"{path} is there")
    if place["check"] == "zeros" and place["clean"] and fs.exists(path):
        data = fs.cat_file(path)
        wrong += [f"{path} from {at} on" for at, n in place["ranges"] if data[at : at + n].strip(b"\0")]
known = {place.get("path") for place in proof["places"] if place["check"] == "absent" or not place["clean"]}
for full in fs.find(root):
    path = full.partition(root.rstrip("/") + "/")[2]
    place, name = (*path.split("/"), "")[:2]
    of = (
        proof["txns"].get(name)
        if place == "data"
        else name
        if place in ("tables", "stages", "cards")
        else None
    )
    if path.endswith((".tar", ".parquet", ".json", ".jsonl")) and path not in known:
        found = set(texts(path, fs.cat_file(full)))
        if any(denied(text, one) for one in ([of] if of else proof["datasets"]) for text in found):
            wrong.append(f"{path} holds a name that was taken down")
print("\n".join([*wrong, proof["result"]]))
sys.exit(bool(wrong) or proof["result"] != "complete")
