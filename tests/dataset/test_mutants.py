"""Plants a bug in the format and shows that the property which should catch it does.

A property that holds of a broken format is no property. Each case patches the real code, runs one of the
functions of properties.py that the other tests run, and expects its AssertionError.
"""

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from loader.dataset.publishing import commit as publish
from loader.dataset.reading import places, verified_bucket_reads
from loader.dataset.shards import bitmap, parts_table, shard
from loader.dataset.tables import stats
from loader.dataset.writing import part_writer, spill

real_crc32c = shard.crc32c
SAMPLES = {f"{'long/' * (i % 4 * 9)}k{i}": {"b.bin": b"%d" % i * 99, "a": b"%d" % i} for i in range(12)}


def crc_of_the_padded_payload(patch):
    def padded(data):
        return real_crc32c(bytes(data) + bytes(-len(data) % 512))

    patch.setattr(shard, "crc32c", padded)


def offset_of_the_header(patch):
    real = shard.ShardWriter.add

    def add(self, key, field, data):
        at = self.nbytes
        _, nbytes, crc = real(self, key, field, data)
        return at, nbytes, crc

    patch.setattr(shard.ShardWriter, "add", add)


def mtime_of_now(patch):
    real = shard._block

    def block(name, prefix, nbytes, kind):
        made = bytearray(real(name, prefix, nbytes, kind))
        made[136:148] = b"%011o\0" % 1_700_000_000
        made[148:156] = b"        "
        made[148:156] = b"%06o\0 " % sum(made)
        return bytes(made)

    patch.setattr(shard, "_block", block)


def no_pax_header(patch):
    patch.setattr(shard, "_split", lambda raw: (b"", raw[:100]))


def prefix_cut_in_the_wrong_place(patch):
    patch.setattr(shard, "_split", lambda raw: (b"", raw) if len(raw) <= 100 else (raw[:40], raw[40:140]))


def no_padding(patch):
    patch.setattr(shard, "BLOCK_BYTES", 512)

    def add(self, key, field, data):
        self._write(shard.member_header(shard.member_name(key, field), len(data)))
        offset = self.nbytes
        self._write(data)
        return offset, len(data), real_crc32c(data)

    patch.setattr(shard.ShardWriter, "add", add)


def fields_as_they_came(patch):
    def layout(self, fields):
        groups = {}
        for field in fields:
            groups.setdefault(self._group_of(field), []).append(field)
        return {group: tuple(fields) for group, fields in sorted(groups.items())}

    patch.setattr(part_writer.PartWriter, "_layout_of", layout)


def order_of_adding(patch):
    patch.setattr(spill, "sorted", lambda held: list(held), raising=False)


def process_dependent_hash(patch):
    patch.setattr(spill, "key_hash", lambda key: hashlib.md5(key[::-1].encode()).digest())


def one_bucket_too_few(patch):
    patch.setattr(spill, "BUCKETS", 255)


def most_significant_bit_first(patch):
    patch.setattr(bitmap, "pack", lambda members: np.packbits(members).tobytes())


def one_member_lost_at_a_block_border(patch):
    real = bitmap.SelectTable.select
    patch.setattr(bitmap.SelectTable, "select", lambda self, x: real(self, x - (x >= self._before[1])))


def exclusions_ignored_in_locate(patch):
    real = parts_table.locate
    for module in (parts_table, places):
        patch.setattr(module, "locate", lambda first, live_rows, ordinals: real(first, {}, ordinals))


def last_exclusion_wins(patch):
    def live(self, exclusions):
        rows = [row for table in exclusions for row in table.to_pylist()]
        gone = {self.position(row["part"]): bitmap.unpack(row["bitmap"], row["n_rows"]) for row in rows}
        return {p: bitmap.SelectTable(bitmap.pack(~members), len(members)) for p, members in gone.items()}

    patch.setattr(parts_table.PartsTable, "_live_rows", live)


def minima_of_the_first_run(patch):
    patch.setattr(stats, "min", lambda known: known[0], raising=False)


def histogram_of_the_last_run(patch):
    patch.setattr(stats, "_added", lambda a, b: dict(b) or dict(a))


def nulls_hide_the_categories(patch):
    real = stats._merged

    def merged(a, row):
        return {**real(a, row), "categories": None} if "null" in (a["type"], row["type"]) else real(a, row)

    patch.setattr(stats, "_merged", merged)


def stale_parent_at_rebase(patch):
    """The manifest is built on the version that was newest first, and names the newest as its parent."""
    real, first = publish.child, []

    def child(base, change, **facts):
        first.append(base)
        return real(first[0], change, **facts)

    patch.setattr(publish, "child", child)


def parents_parts_dropped(patch):
    real = publish.child
    patch.setattr(publish, "child", lambda base, change, **facts: real(None, change, **facts))


def no_check_of_keys(patch):
    patch.setattr(publish.NewKeys, "__call__", lambda self, parent: None)


def keys_checked_against_the_first_parent_only(patch):
    real, seen = publish.NewKeys.__call__, set()

    def check(self, parent):
        if id(self) not in seen:
            seen.add(id(self))
            real(self, parent)

    patch.setattr(publish.NewKeys, "__call__", check)


def crc_not_checked(patch):
    class Equal(int):
        def __eq__(self, other):
            return True

        def __ne__(self, other):
            return False

        __hash__ = int.__hash__

    patch.setattr(verified_bucket_reads, "crc32c", lambda data: Equal(real_crc32c(data)))


def tar(properties):
    properties.tar_holds(SAMPLES)


def any_order(properties):
    backwards = {key: dict(reversed(fields.items())) for key, fields in SAMPLES.items()}
    properties.same_bytes_in_any_order(SAMPLES, [list(SAMPLES)[::-1]])
    hashes = {hashlib.sha256(properties.shard_of(made)[0]).hexdigest() for made in (SAMPLES, backwards)}
    assert len(hashes) == 1


def hash_order(properties):
    properties.key_order_is_hash_order(list(SAMPLES))


def spilled(properties):
    # Keys whose hashes begin with every byte: a bucket that is not read loses samples.
    keys = {spill.key_hash(f"k{i}")[0]: f"k{i}" for i in range(3000)}
    assert 255 in keys
    properties.tar_holds({key: {"x": b"1"} for key in keys.values()}, memory_bytes=1)


def select(properties):
    rng = np.random.default_rng(0)
    properties.select_finds_members(rng.random(20_000) < 0.3)


def locate(properties):
    gone = [np.arange(9) % 3 == 0, np.arange(9) % 4 == 1]
    properties.locate_finds_live_rows([5, 9, 7], [(1, gone[0]), (1, gone[1]), (2, np.arange(7) < 2)])


def merged_stats(properties):
    properties.merged_stats_are_stats_of_all(
        [
            pa.table({"key": ["a", "b"], "x": [3.0, 4.0], "s": ["u", "v"]}),
            pa.table({"key": ["c"], "x": [-1.0], "s": pa.nulls(1)}),
        ]
    )


def rebase(properties):
    properties.later_publisher_keeps_the_earlier()


def keys_once(properties):
    properties.a_key_is_refused_the_second_time()


def exclusion(properties):
    properties.excluded_keys_are_gone()


def flips(properties):
    properties.a_flipped_byte_is_corrupt()


CASES = [
    (crc_of_the_padded_payload, tar),
    (offset_of_the_header, tar),
    (mtime_of_now, tar),
    (no_pax_header, tar),
    (prefix_cut_in_the_wrong_place, tar),
    (no_padding, tar),
    (fields_as_they_came, any_order),
    (order_of_adding, any_order),
    (order_of_adding, hash_order),
    (process_dependent_hash, hash_order),
    (one_bucket_too_few, spilled),
    (most_significant_bit_first, select),
    (one_member_lost_at_a_block_border, select),
    (exclusions_ignored_in_locate, locate),
    (exclusions_ignored_in_locate, exclusion),
    (last_exclusion_wins, locate),
    (minima_of_the_first_run, merged_stats),
    (histogram_of_the_last_run, merged_stats),
    (nulls_hide_the_categories, merged_stats),
    (stale_parent_at_rebase, rebase),
    (parents_parts_dropped, rebase),
    (no_check_of_keys, keys_once),
    (keys_checked_against_the_first_parent_only, keys_once),
    (crc_not_checked, flips),
]


@pytest.mark.parametrize(("plant", "prop"), CASES, ids=lambda case: case.__name__)
def test_a_planted_bug_is_caught(monkeypatch, properties, plant, prop):
    with monkeypatch.context() as patch:
        plant(patch)
        # The native hashes refuse bytes that are no whole blocks before the property looks at the archive.
        with pytest.raises((AssertionError, ValueError)):
            prop(properties)


@pytest.mark.parametrize("prop", sorted({prop for _, prop in CASES}, key=lambda prop: prop.__name__))
def test_the_properties_hold_without_a_bug(properties, prop):
    prop(properties)
