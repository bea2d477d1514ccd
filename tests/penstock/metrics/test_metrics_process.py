"""A process of `penstock metrics`: scraped over HTTP, ended by a signal; and its file."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import loader
from penstock.cli import main
from tests.servers.patience import PATIENCE_S


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    root = loader.Root(tmp_path / "root")
    with root.write("photos") as writer:
        writer.add("k", {"txt": "x"})
    return root


@pytest.fixture
def process(root: loader.Root) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """(process, port)."""
    command = [sys.executable, "-m", "penstock", "metrics", root.url, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("metrics at http://127.0.0.1:")
        yield process, int(line.rsplit(":", 1)[1].partition("/")[0])
        process.kill()


def ask(port: int, path: str = "/metrics", host: str = "", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    headers = {"Host": host} if host else {}
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_process_serves_metrics_and_ends_by_sigterm(
    process: tuple[subprocess.Popen[str], int], root: loader.Root
) -> None:
    running, port = process
    status, text = ask(port)
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["penstock_version_samples"].samples
    assert (sample.labels, sample.value) == ({"dataset": "photos"}, 1)
    with root.write("photos") as writer:
        writer.add("later", {"txt": "x"})
    assert 'penstock_version_samples{dataset="photos"} 2.0' in ask(port)[1]
    assert ask(port, host="attacker.example")[0] == 421
    assert ask(port, host=f"localhost:{port}")[0] == 200
    assert ask(port, path="/secrets")[0] == 404
    assert ask(port, method="POST")[0] == 405
    running.send_signal(signal.SIGTERM)
    assert running.wait(PATIENCE_S) == 0


def test_textfile_is_written_whole(root: loader.Root, tmp_path: Path) -> None:
    path = tmp_path / "penstock.prom"
    path.write_text("before")
    inode = path.stat().st_ino
    assert main(["metrics", root.url, "--textfile", str(path)]) == 0
    assert path.stat().st_ino != inode  # replaced by a rename, never written in place
    assert 'penstock_version_samples{dataset="photos"} 1.0' in path.read_text()
    assert set(os.listdir(tmp_path)) == {"penstock.prom", "root"}


def test_textfile_of_a_damaged_root_has_the_other_parts_and_exit_status_1(
    root: loader.Root, tmp_path: Path
) -> None:
    root.store.put(root.state.versions("photos")[0].manifest, b"torn")
    path = tmp_path / "penstock.prom"
    assert main(["metrics", root.url, "--textfile", str(path)]) == 1
    text = path.read_text()
    assert 'penstock_up{part="versions"} 0.0' in text
    assert 'penstock_up{part="trainings"} 1.0' in text


@pytest.mark.parametrize(
    "words",
    [["--listen", "9464"], ["--listen", "127.0.0.1:99999"], ["--listen", "1.2.3.4:1", "--textfile", "x"]],
)
def test_wrong_address_is_a_usage_error(root: loader.Root, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["metrics", root.url, *words])
    assert ended.value.code == 2


def test_folder_that_is_no_root_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", str(tmp_path / "nothing"), "--textfile", str(tmp_path / "x")]) == 2
    assert "is not a root" in capsys.readouterr().err


def test_taken_port_is_named(
    process: tuple[subprocess.Popen[str], int], root: loader.Root, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", root.url, "--listen", f"127.0.0.1:{process[1]}"]) == 2
    assert "is unavailable" in capsys.readouterr().err
