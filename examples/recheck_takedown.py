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

if len(sys.argv) != 3:
    sys.exit(__doc__)
with open(sys.argv[1]) as file:
    proof = json.load(file)
fs, root = fsspec.core.url_to_fs(sys.argv[2].rstrip("/"))
salt, wrong = bytes.fromhex(proof["salt"]), []


retired = {place["id"]: place["of"] for place in proof["places"] if place["check"] == "retired"}
NAMES = re.compile(r"(^|_)(subject|of|key|keys|id|ids|uri|sha256|names|substitute|labels)$")
SAYS = re.compile(r"(^|_)(reason|error|explanation|now|before|table_markdown)$")
WAYS = {"run_id", "dagster_run_id", "asset_key", "files", "parts", "shards", "taken"}
BEFORE, AFTER = r"(?<![\w\-/%~+@=.])", r"(?![\w\-/%~+@=])"


def texts(path: str, data: bytes) -> Iterator[tuple[str, str]]:
    """(what it is of, text) of what names samples in a table or JSON object, and of the key of every member of a shard;
    of a ledger the lines of versions that had the samples."""
    if path.endswith(".tar"):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for name in tar.getnames():
                yield from (("key", found) for found in re.findall(r"\A(?:.*/)?[^/.]*", name))
    elif path.endswith(".jsonl"):
        lines = [line for line in map(json.loads, data.splitlines()) if line.get("version_id") in retired]
        yield from within(lines, "")
    elif path.endswith(".parquet"):
        columns = pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False).to_pydict()
        yield from within({name: cells for name, cells in columns.items() if name != "labels"}, "")
    else:
        yield from within(json.loads(data), "")


def within(value: Any, of: str) -> Iterator[tuple[str, str]]:
    """Yields (name of a member, text) of the texts in JSON that may name a sample. of: name of the value's member."""
    if isinstance(value, dict):
        if of in ("exclude", "supersede"):  # key of a sample -> reason
            yield from (("key", key) for key in value)
            value = {str(number): {"reason": reason} for number, reason in enumerate(value.values())}
        for name, member in value.items():
            if name not in WAYS:
                yield from within(member, name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from within(item, of)
    elif isinstance(value, str) and (NAMES.search(of) or SAYS.search(of)):
        yield of, value


def words(text: str) -> Iterator[str]:
    """What may be a name in a text: from where one may begin to where one may end."""
    for word in re.findall(r"[^\s'\"(),;\[\]{}<>]+", text):
        ends = [one.start() for one in re.finditer(AFTER, word)]
        for start in (one.start() for one in re.finditer(BEFORE, word)):
            yield from (word[start:end] for end in ends if end - start > 3)


def denied(of: str, text: str, dataset: str) -> bool:
    """Whether a text, or a word of one that says why, has one of the hashes, and nobody else is called so."""
    hashes = {*proof["hashes"], *proof["marks"].get(dataset, ())}
    kinds = [
        ("mark", dataset),
        *((kind, of) for kind in ("raw", "sample", "subject") for of in ("", dataset)),
    ]
    for one in {text, *(words(text) if SAYS.search(of) else ())}:
        found = [hmac.digest(salt, f"{kind}\0{of}\0{one}".encode(), "sha256").hex() for kind, of in kinds]
        if not hashes.isdisjoint(found) and found[0] not in proof.get("shared", {}).get(dataset, ()):
            return True
    return False


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
        if place in ("tables", "stages", "cards", "exclusions", "slices")
        else None
    )
    if path.endswith((".tar", ".parquet", ".json", ".jsonl")) and path not in known:
        found = set(texts(path, fs.cat_file(full)))
        if any(denied(*text, one) for one in ([of] if of else proof["datasets"]) for text in found):
            wrong.append(f"{path} holds a name that was taken down")
print("\n".join([*wrong, proof["result"]]))
sys.exit(bool(wrong) or proof["result"] != "complete")
