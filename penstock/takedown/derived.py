"""What was made of versions with samples that are taken down: cards, pages of gates, plans, views, packs, ledgers.

Nothing of it is needed to read a version, and all of it but ledgers is made again when it is asked for.
"""

import json
import re
from collections.abc import Iterable

from loader.dataset.history import VersionRecord
from loader.dataset.parquet import parse_table, table_facts
from loader.storage import Store

from ..card.stored import card_folder
from .cells import scrubbed
from .edits import Edits
from .marks import TAKEN_DOWN, Marks

_VIEW = re.compile(rb'"w-([0-9a-f]{64})"')


def page_edits(store: Store, dataset: str) -> Edits:
    """All pages of the gate go: they show samples, also of batches that no version has. Raises: StoreError."""
    return Edits(deletes=tuple(info.key for info in store.list(f"gates/{dataset}/")))


def derived_edits(store: Store, versions: Iterable[VersionRecord], marks: Marks) -> Edits:
    """Cards of these versions go, plans with their views, and packs that no other plan names; ledgers are rewritten.
    Costs a read of each plan, pack and ledger. Raises: StoreError."""
    records = list(versions)
    if not records:
        return Edits()
    gone = [
        info.key for one in records for info in store.list(f"{card_folder(one.dataset, one.number, one.id)}/")
    ]
    ids = [one.id.encode() for one in records]
    kept = b""
    views: set[str] = set()
    for info in store.list("plans/"):
        data = store.get(info.key).data
        if any(one in data for one in ids):
            gone.append(info.key)
            views |= {match.decode() for match in _VIEW.findall(data)}
        else:
            kept += data
    remade = []
    for info in store.list("views/"):
        name = info.key.removeprefix("views/").removesuffix(".parquet")
        if name in views and name.encode() not in kept:
            remade.append(info.key)
    for info in store.list("packs/"):
        said = table_facts(parse_table(store.get(info.key).data, info.key)).get("content_sha256")
        if said is None or said.encode() not in kept:  # without: checksums of pieces, beside a table
            remade.append(info.key)
    puts = _ledgers(store, {one.id for one in records}, marks)
    return Edits(puts=puts, deletes=tuple(gone), remade=tuple(remade))


def _ledgers(store: Store, ids: set[str], marks: Marks) -> dict[str, bytes]:
    puts = {}
    for info in store.list("ledgers/"):
        lines = [json.loads(line) for line in store.get(info.key).data.splitlines()]
        new = [_line(line, marks) if line.get("version_id") in ids else line for line in lines]
        if new != lines:
            text = "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in new)
            puts[info.key] = text.encode()
    return puts


def _line(line: dict[str, object], marks: Marks) -> dict[str, object]:
    """A line of a ledger; of a sample that is taken down it quotes no error, which may quote the sample."""
    new: dict[str, object] = scrubbed(line, marks)
    return {**new, "error": TAKEN_DOWN} if new["key"] != line["key"] else new
