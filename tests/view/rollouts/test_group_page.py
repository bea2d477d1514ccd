"""A group's page: the samples of one transaction with one value, side by side, with links there and back."""

import re
from urllib.parse import urljoin

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.view.rollouts import group_members
from penstock.view.rollouts import group_record as group_record_module
from penstock.view.rollouts.group_record import group_record
from tests.refusals import refusal
from tests.view.rollouts.rig import GROUPS, MEMBERS, find_ordinal, rollout, write_rollouts
from tests.view.test_web import Served


def member_keys(record):
    return sorted(one.key for one in record.members)


def test_group_is_that_of_its_transaction(root):
    version = write_rollouts(root)
    for step in range(2):
        for group in range(GROUPS):
            record = group_record(version, find_ordinal(version, f"{step}/{group}/2"))
            assert member_keys(record) == [f"{step}/{group}/{number}" for number in range(MEMBERS)]
            assert (record.column, record.value, record.n_samples) == ("group_id", f"g{group}", MEMBERS)
            ordinals = [one.ordinal for one in record.members]
            assert ordinals == sorted(find_ordinal(version, key) for key in member_keys(record))


def test_group_in_a_rollout_s_page_leads_to_its_members(root):
    """The list's addresses are relative to the page of the sample, not to its own."""
    version = write_rollouts(root, steps=1)
    ordinal = find_ordinal(version, "0/0/1")
    record = group_record(version, ordinal)
    page = f"/v/rl/1/s/{ordinal}"
    served = Served(root, recipe=None)
    try:
        assert f'hx-get="../../../../v/rl/1/s/{ordinal}/group?by=group_id"' in served.get(page).text
        text = served.get(f"{page}/group?by=group_id", hx_request="true").text
        links = [urljoin(page, link) for link in re.findall('href="([^"]*)"', text)]
        assert links == [f"{page}/group?by=group_id", *(f"/v/rl/1/s/{one.ordinal}" for one in record.members)]
        assert {served.get(link).status_code for link in links} == {200}
    finally:
        served.close()
    assert text.count("aria-current") == 1
    assert [f"{one.advantage:+.3g}" for one in record.members] == re.findall(r'"num">([+-][0-9.]+)<', text)


def test_members_have_the_values_of_their_fields_and_columns(root):
    version = write_rollouts(root, steps=1)
    record = group_record(version, 0)
    for one in record.members:
        step, group, number = map(int, one.key.split("/"))
        _, fields, metadata = rollout(step, group, number)
        assert one.numbers["reward"] == metadata["reward"]
        assert one.numbers["n_tokens"] == metadata["n_tokens"]
        assert one.advantage == pytest.approx(metadata["reward"] - 0.5)
        (stripe,) = one.sampled
        longest = max(member.numbers["n_tokens"] for member in record.members)
        assert one.width == pytest.approx(1000 * metadata["n_tokens"] / longest, abs=0.01)
        assert stripe.x == pytest.approx(1000 * int(fields["mask.npy"].argmax()) / longest, abs=0.01)
        assert one.answer == f"It is {number}."
        assert not one.errors
    assert record.mean_reward == 0.5


def test_excluded_sample_is_no_member(root):
    version = write_rollouts(root, steps=1)
    root.exclude("rl", keys=["0/0/1"], reason="poisoned")
    version = root.open("rl@latest")
    assert member_keys(group_record(version, find_ordinal(version, "0/0/2"))) == ["0/0/0", "0/0/2", "0/0/3"]


def test_edited_reward_is_shown(root):
    version = write_rollouts(root, steps=1)
    key = "0/0/2"
    root.annotate("rl", "judged", {key: {"reward": 0.75}}, author="ada")
    version = root.open("rl@latest")
    record = group_record(version, find_ordinal(version, key))
    assert {one.key: one.numbers["reward"] for one in record.members}[key] == 0.75


def test_pair_is_shown_by_its_column(root):
    with root.write("pairs", groups=loader.ROLLOUT_GROUPS) as writer:
        for pair in range(3):
            for chosen in (True, False):
                key, fields, metadata = loader.rollout(
                    f"{pair}/{chosen}", [1, 2, 3], [0, 1, 1], group_id="all"
                )
                writer.add(key, fields, metadata={**metadata, "pair_id": f"pair {pair}", "chosen": chosen})
    version = root.open("pairs@1")
    record = group_record(version, find_ordinal(version, "1/False"), "pair_id")
    assert member_keys(record) == ["1/False", "1/True"]
    assert {one.key: one.texts["chosen"] for one in record.members} == {"1/True": "True", "1/False": "False"}
    assert (record.shown_texts, record.other_columns) == (("chosen",), ("group_id",))
    assert group_record(version, 0).n_samples == 6


def test_sample_without_the_column_names_the_others(root):
    version = write_rollouts(root, steps=1)
    for column in ("pair_id", "reward", "key"):
        with refusal(InvalidRuntime, what="column of a group", given=column, accepted=["group_id"]):
            group_record(version, 0, column)


def test_members_with_fields_that_are_not_read_are_counted_beside_a_rollout(root, monkeypatch):
    monkeypatch.setattr(group_record_module, "MOST_TOTAL_BYTES", 1000)
    version = write_rollouts(root, steps=1)
    ordinal = find_ordinal(version, "0/0/1")
    record = group_record(version, ordinal)
    unread = [one for one in record.members if one.errors]
    assert 0 < len(unread) < MEMBERS
    assert "bytes and is not read here" in unread[0].errors[0]
    served = Served(root, recipe=None)
    try:
        text = served.get(f"/v/rl/1/s/{ordinal}/group?by=group_id", hx_request="true").text
    finally:
        served.close()
    assert f"{len(unread)} of them have fields that were not read" in text


def test_large_group_is_bounded(root, monkeypatch):
    monkeypatch.setattr(group_members, "MOST_MEMBERS", 3)
    version = write_rollouts(root, steps=1)
    record = group_record(version, 0)
    assert (len(record.members), record.n_samples) == (3, MEMBERS)
    monkeypatch.setattr(group_members, "MOST_ROWS", 5)
    with refusal(InvalidRuntime, what="rows", where=version.name, accepted=5):
        group_record(version, 0)


def test_search_reads_the_tables_of_its_transaction_alone(root, monkeypatch):
    version = write_rollouts(root, steps=4)
    paths = []
    original = group_members.get_table_bytes

    def record_path(store, file):
        paths.append(file.path)
        return original(store, file)

    monkeypatch.setattr(group_members, "get_table_bytes", record_path)
    group_record(version, find_ordinal(version, "2/1/0"))
    assert {path.split("/")[1] for path in paths} == {"run-2"}


def test_links_lead_to_the_group_and_back(root):
    version = write_rollouts(root, steps=1)
    here, other = find_ordinal(version, "0/2/0"), find_ordinal(version, "0/2/3")
    served = Served(root, recipe=None)
    try:
        page = served.get(f"/v/rl/1/s/{here}").text
        assert f's/{here}/group?by=group_id"' in page
        group = served.get(f"/v/rl/1/s/{here}/group?by=group_id")
        assert group.status_code == 200
        for ordinal in (here, other):
            assert f'v/rl/1/s/{ordinal}"' in group.text
        assert group.text.count("<tr ") == 1
        record = served.get(f"/v/rl/1/s/{here}/group.json?by=group_id").json()
        assert len(record["members"]) == MEMBERS
    finally:
        served.close()


def test_advantages_that_are_not_finite_have_no_mean(root):
    with root.write("nan", groups=loader.ROLLOUT_GROUPS) as writer:
        fields = {"tokens.npy": np.arange(3), "mask.npy": np.ones(3, bool)}
        fields["advantages.npy"] = np.array([np.nan, 1, 1], np.float32)
        writer.add("a", fields, metadata={"group_id": "g", "reward": float("nan")})
    (member,) = group_record(root.open("nan@1"), 0).members
    assert member.advantage is None
    assert "reward" not in member.numbers


def test_members_of_older_policies_have_their_lag(root):
    version = write_rollouts(root, steps=1)
    record = group_record(version, find_ordinal(version, "0/0/1"))
    policies = [one.numbers["policy_min"] for one in record.members]
    lags = [int(policy - record.newest_policy) for policy in policies]
    assert record.newest_policy == max(one.numbers["policy_max"] for one in record.members)
    served = Served(root, recipe=None)
    try:
        page = f"/v/rl/1/s/{record.ordinal}/group?by=group_id"
        text = served.get(page, hx_request="true").text
    finally:
        served.close()
    assert min(lags) < 0
    shown = re.findall(r'<td class="num lag">(-?[0-9]*)</td>', text)
    assert shown == [str(lag) if lag else "" for lag in lags]
