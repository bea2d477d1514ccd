"""Checks of a node: real processes, by Nagios' exit codes."""

import os
import sys
from itertools import count
from pathlib import Path

import pytest

import loader
from loader.json_text import parse_json_object
from penstock.compute.cluster import NodeCheck
from penstock.nodes import store_check
from penstock.nodes.node_check import (
    CHECKS,
    OUTPUT_BYTES,
    CheckStatus,
    NodeCheckResult,
    put_failures,
    run_check,
    run_checks,
    worst,
)
from tests.servers.http import HttpServer
from tests.servers.patience import until
from tests.servers.s3 import SmallS3


def shell(line: str, limit_s: int = 30) -> NodeCheckResult:
    return run_check("planted", NodeCheck(command=("sh", "-c", line), limit_s=limit_s))


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("echo all right; exit 0", CheckStatus.OK, "all right"),
        ("echo hot; exit 1", CheckStatus.WARNING, "hot"),
        ("echo >&2; echo broken >&2; exit 2", CheckStatus.FAILED, "broken"),
        ("exit 3", CheckStatus.UNKNOWN, "exit code 3"),
        ("echo odd; exit 4", CheckStatus.UNKNOWN, "exit code 4, and 0 to 3 are accepted: odd"),
        ("kill -9 $$", CheckStatus.UNKNOWN, "exit code -9, and 0 to 3 are accepted"),
        (
            "no-such-command",
            CheckStatus.UNKNOWN,
            "exit code 127, and 0 to 3 are accepted: sh: 1: no-such-command",
        ),
    ],
)
def test_check_ends_with_nagios_exit_codes_or_is_unknown(line: str, status: CheckStatus, text: str) -> None:
    result = shell(line)
    assert result.status is status
    assert result.text.startswith(text)


def test_check_that_is_missing_is_unknown() -> None:
    result = run_check("gone", NodeCheck(command=("/nowhere/check",)))
    assert (result.status, result.text.startswith("does not start")) == (CheckStatus.UNKNOWN, True)


def test_check_that_hangs_is_unknown_and_leaves_no_process(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = shell(f"echo begins; echo $$ > {pids}; sleep 1000 & echo $! >> {pids}; wait", limit_s=1)
    assert (result.status, result.text) == (CheckStatus.UNKNOWN, "killed after 1 s")
    assert result.output == "begins\n"
    for pid in map(int, pids.read_text().split()):
        stat = Path("/proc", str(pid), "stat")
        until(lambda stat=stat: not stat.exists() or "Z" in stat.read_text())  # type: ignore[misc]


def test_check_that_leaves_a_process_behind_ends_at_once() -> None:
    result = shell("echo done; sleep 1000 &", limit_s=600)  # the pipe stays open in `sleep`
    assert (result.status, result.text) == (CheckStatus.OK, "done")


def test_output_is_bounded_and_cannot_move_the_cursor() -> None:
    result = run_check("loud", NodeCheck(command=(sys.executable, "-c", "print('\\x1b[2J' + 'x' * 2**20)")))
    assert result.status is CheckStatus.OK
    assert len(result.output) <= OUTPUT_BYTES + 10
    assert (result.text[:4], "\x1b" in result.output) == ("\\x1b", False)


def test_worst_check_counts_and_no_check_is_unknown() -> None:
    def worst_status(*statuses: int) -> CheckStatus:
        return worst(NodeCheckResult(check="a", status=CheckStatus(one), text="") for one in statuses)

    assert [worst_status(), worst_status(0, 1), worst_status(0, 1, 3), worst_status(3, 2, 0)] == [3, 1, 3, 2]


def test_only_failed_checks_are_stored(tmp_path: Path) -> None:
    store = loader.Root(tmp_path / "root").store
    checks = {
        name: NodeCheck(command=("sh", "-c", f"exit {code}")) for name, code in (("a", 2), ("b", 3), ("c", 1))
    }
    put_failures(store, "m1", run_checks(checks))
    (info,) = store.list(CHECKS)
    body = parse_json_object(store.get(info.key).data)
    assert (body["node"], body["check"], body["text"]) == ("m1", "a", "exit code 2")


@pytest.fixture
def root(tmp_path: Path) -> str:
    with loader.Root(tmp_path / "root") as root, root.write("points", part_samples=50) as writer:
        for number in range(100):
            writer.add(f"{number:03d}", {"cls": number})
    return str(tmp_path / "root")


def store_checked(root: str, capsys: pytest.CaptureFixture[str], scratch: object) -> tuple[int, str]:
    code = store_check.main(["--root", root, "--scratch", str(scratch)])
    return code, capsys.readouterr().out


def test_store_check_reads_ranges_and_scratch(
    root: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text = store_checked(root, capsys, tmp_path)
    assert (code, text.startswith("OK: 64 ranges are right")) == (0, True)
    assert list(tmp_path.glob("penstock-check-*")) == []
    assert store_checked(root, capsys, tmp_path / "gone")[0] == 3
    assert store_checked(f"{root}-gone", capsys, tmp_path)[0] == 1  # a record without datasets
    for entry in Path(root, "log").iterdir():
        entry.write_text("{")
    assert store_checked(root, capsys, tmp_path)[0] == 3


def test_store_check_tells_a_damaged_store_from_a_bad_node(
    root: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for shard in Path(root, "data").rglob("*.tar"):
        data = bytearray(shard.read_bytes())
        for number in range(512, len(data), 1024):  # the first byte of each payload
            data[number] ^= 1
        status = shard.stat()
        shard.write_bytes(data)
        os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    code, text = store_checked(root, capsys, tmp_path)
    assert (code, "damaged in the store" in text) == (1, True)


def test_store_check_fails_on_a_node_whose_reads_change(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, reads = HttpServer(SmallS3()), count()
    server.origin.page_keys = 1000  # type: ignore[attr-defined]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    try:
        with loader.Root("s3://bucket/lab") as root, root.write("points") as writer:
            for number in range(100):
                writer.add(f"{number:03d}", {"cls": number})
        assert store_checked("s3://bucket/lab", capsys, tmp_path)[0] == 0
        server.fault_of = lambda asked: (
            "flip" if asked.method == "GET" and ".tar" in asked.target and next(reads) % 2 == 0 else None
        )
        code, text = store_checked("s3://bucket/lab", capsys, tmp_path)
        server.fault_of = lambda _: 403
        assert store_checked("s3://bucket/lab", capsys, tmp_path)[0] == 2
    finally:
        server.close()
    assert (code, "64 of 64 ranges came wrong" in text) == (2, True), text
