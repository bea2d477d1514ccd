"""What a version holds, byte for byte: docs/format.md, "Shards", "Tables of a version" and "Manifest"."""

import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import pyarrow.parquet as pq

from .log import Broken, Committed, Objects, parse_object, require

Row = tuple[str, int]
Content = dict[str, dict[str, Any]]
"""key -> field -> its bytes, and "column <name>" -> its value."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Reader:
    """Reads versions of one root. What is immutable is parsed once: the same name must have the same bytes."""

    objects: Objects
    parsed: dict[str, Any] = field(default_factory=dict)

    def content(self, version: Committed) -> tuple[Content, set[str]]:
        """(what it holds, the keys of all objects that it is made of). Raises: Broken."""
        manifest, keys = self.manifest(version), {version.manifest}
        for name in ("shards", "samples", "stats", "exclusions", "key_hashes"):
            keys |= {one["path"] for one in manifest.get(name, [])}
        shards = self.rows(manifest["shards"], "shards")
        keys |= {row[name] for row in shards for name in ("path", "index_path")}
        parts = self.parts(shards)
        excluded = self.excluded(manifest, parts)
        content, key_of = self.fields(manifest, shards, parts, excluded, version.id)
        self.samples(manifest, parts, key_of, excluded, content)
        self.hashes(manifest, key_of)
        self.rows(manifest["stats"], "stats")
        n_rows = sum(parts.values())
        require(manifest["n_parts"] == len(parts), f"{version.id}: n_parts")
        require(manifest["n_rows"] == n_rows, f"{version.id}: n_rows")
        require(manifest["n_live"] == n_rows - len(excluded), f"{version.id}: n_live")
        require(len(content) == n_rows - len(excluded), f"{version.id}: a key is there twice")
        return content, keys

    def manifest(self, version: Committed) -> dict[str, Any]:
        """Raises: Broken."""
        data = self.get(version.manifest)
        require(sha256(data) == version.sha256, f"{version.manifest} is not the one that was committed")
        require(version.id == f"v-{version.sha256}", f"{version.id} is not the SHA-256 of its manifest")
        body = parse_object(data, version.manifest)
        require(body["format"] in (1, 2), f"{version.manifest} has format {body['format']}")
        for name in ("dataset", "parent", "txn", "denies"):
            said = getattr(version, name)
            require(body[name] == said, f"{version.manifest}: {name} is {body[name]}, the log says {said}")
        return body

    def get(self, key: str) -> bytes:
        require(key in self.objects, f"{key} is not there")
        return self.objects[key]

    def table(self, file: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        """The rows of a table that a manifest names. Raises: Broken."""
        path = file["path"]
        require(path in self.objects, f"{path} is not there")
        if path not in self.parsed:
            data = self.get(path)
            require(len(data) == file["nbytes"], f"{path} has {len(data)} bytes")
            require(sha256(data) == file["sha256"], f"{path} is not what the manifest says")
            self.parsed[path] = read_parquet(data, path, kind)
        rows: list[dict[str, Any]] = self.parsed[path]
        require(len(rows) == file["n_rows"], f"{path} has {len(rows)} rows")
        return rows

    def rows(self, files: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
        return [row for file in files for row in self.table(file, kind)]

    def parts(self, shards: list[dict[str, Any]]) -> dict[str, int]:
        """Part -> rows, in the order of parts."""
        found: dict[str, int] = {}
        for row in shards:
            require(found.setdefault(row["part"], row["n_rows"]) == row["n_rows"], f"{row['path']}: rows")
        return found

    def excluded(self, manifest: dict[str, Any], parts: dict[str, int]) -> set[Row]:
        gone: set[Row] = set()
        for row in self.rows(manifest["exclusions"], "exclusions"):
            require(row["part"] in parts, f"{row['part']} is excluded and is not part")
            some = {
                (row["part"], i)
                for i in range(parts[row["part"]])
                if i // 8 < len(row["bitmap"]) and row["bitmap"][i // 8] >> (i % 8) & 1
            }
            require(
                row["n_rows"] == parts[row["part"]], f"{row['part']} is excluded as of {row['n_rows']} rows"
            )
            gone |= some
        return gone

    def fields(
        self,
        manifest: dict[str, Any],
        shards: list[dict[str, Any]],
        parts: dict[str, int],
        excluded: set[Row],
        id: str,
    ) -> tuple[Content, dict[Row, str]]:
        """(live key -> its fields, row -> key). Every row of every shard is read, excluded ones too."""
        content: Content = {}
        key_of: dict[Row, str] = {}
        seen: dict[str, list[int]] = {}
        for shard in shards:
            keys, payloads = self.shard(shard)
            extent = seen.setdefault(shard["group"], [0, 0])
            extent[0] += 1
            extent[1] += shard["n_rows"]
            for i, (key, fields) in enumerate(zip(keys, payloads, strict=True)):
                row = shard["part"], i
                require(key_of.setdefault(row, key) == key, f"{shard['path']}: row {i} is {key}")
                if row not in excluded:
                    there = content.setdefault(key, {})
                    require(not there.keys() & fields.keys(), f"{id}: {key} has a field twice")
                    there.update(fields)
        for group, (n_parts, n_rows) in seen.items():
            said = manifest["groups"][group]
            require((said["n_parts"], said["n_rows"]) == (n_parts, n_rows), f"{id}: the extent of {group}")
        require(seen.keys() == manifest["groups"].keys(), f"{id}: its groups")
        require(len(key_of) == sum(parts.values()), f"{id}: rows without a shard")
        return content, key_of

    def shard(self, row: dict[str, Any]) -> tuple[list[str], list[dict[str, bytes]]]:
        """(keys, the fields of each) of a tar file and its index. Raises: Broken."""
        path = row["path"]
        require(path in self.objects and row["index_path"] in self.objects, f"{path} or its index is gone")
        if path not in self.parsed:
            data, index = self.get(path), self.get(row["index_path"])
            require(len(data) == row["nbytes"] and sha256(data) == row["sha256"], f"{path} is other bytes")
            whole = len(index) == row["index_nbytes"] and google_crc32c.value(index) == row["index_crc32c"]
            require(whole, f"{row['index_path']} is other bytes")
            self.parsed[path] = members(data, read_parquet(index, row["index_path"], "index"), path)
        keys, payloads = self.parsed[path]
        require(len(keys) == row["n_rows"], f"{path} has {len(keys)} samples")
        return keys, payloads

    def samples(
        self,
        manifest: dict[str, Any],
        parts: dict[str, int],
        key_of: dict[Row, str],
        excluded: set[Row],
        content: Content,
    ) -> None:
        """Check the keys; put the values of metadata into the content, annotations on top of what came before."""
        named: dict[Row, str] = {}
        for file in manifest["samples"]:
            rows = self.table(file, f"samples-{file['group']}")
            for row in rows:
                at = row["part"], row["row"]
                require(at in key_of, f"{file['path']} names {at}, which is not a row")
                if file["group"] == "keys":
                    require(named.setdefault(at, row["key"]) == row["key"], f"{file['path']}: {at} twice")
                    continue
                removed = row.get("annotated_removed") or []
                for name in file["columns"]:
                    if at in excluded or name.startswith("annotated_"):
                        continue
                    if name in removed:
                        content[key_of[at]].pop(f"column {name}", None)
                    elif row.get(name) is not None:
                        content[key_of[at]][f"column {name}"] = row[name]
        require(named == key_of, "the keys in the samples tables are not those of the shards")

    def hashes(self, manifest: dict[str, Any], key_of: dict[Row, str]) -> None:
        files = manifest.get("key_hashes", [])
        if sum(file["n_rows"] for file in files) != manifest["n_rows"]:
            return
        found = []
        for file in files:
            some = [row["hash"] for row in self.table(file, "key-hashes")]
            require(some == sorted(some), f"{file['path']} does not ascend")
            found += some
        require(sorted(found) == sorted(map(key_hash, key_of.values())), "the hashes are of other keys")


def key_hash(key: str) -> int:
    """The first 8 bytes of the blake2b-128, little endian, shifted right by one."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest()[:8], "little") >> 1


def read_parquet(data: bytes, path: str, kind: str) -> list[dict[str, Any]]:
    """Raises: Broken."""
    try:
        table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read(use_threads=False)
    except (OSError, ValueError) as error:
        raise Broken(f"{path} is not Parquet: {error}") from error
    said = table.schema.metadata or {}
    require(said.get(b"penstock.table") == kind.encode(), f"{path} is a table of {said}")
    require(said.get(b"penstock.schema") == b"1", f"{path} has another schema")
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def members(data: bytes, index: list[dict[str, Any]], path: str) -> tuple[list[str], list[dict[str, bytes]]]:
    """A tar file held against its index. Raises: Broken."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        there = {one.name: one for one in archive.getmembers()}
        order = [one.name for one in archive.getmembers()]
    names, keys, payloads = [], [], []
    for row in index:
        key, fields = row["key"], {}
        for column in sorted(name for name in row if name.endswith("_offset")):
            name = column.removesuffix("_offset")
            offset, nbytes, crc = (row[f"{name}_{what}"] for what in ("offset", "nbytes", "crc32c"))
            member = there.get(f"{key}.{name}")
            require(member is not None, f"{path} has no member {key}.{name}")
            require(
                (member.offset_data, member.size) == (offset, nbytes), f"{path}: {key}.{name} is elsewhere"
            )
            fields[name] = data[offset : offset + nbytes]
            require(google_crc32c.value(fields[name]) == crc, f"{path}: the CRC-32C of {key}.{name}")
            names.append(f"{key}.{name}")
        keys.append(key)
        payloads.append(fields)
    require(order == names, f"{path}: its members are not those of its index, in their order")
    return keys, payloads
