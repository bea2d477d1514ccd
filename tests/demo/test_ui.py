"""`make ui`: what is started, and that all of it ends."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.compute.process_groups import end_group
from tests.servers.patience import PATIENCE_S
from tests.servers.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def pages(into: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """`make ui` as a shell without job control starts it in the background: with SIGINT ignored."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo.ui", "--into", str(into), "--port", str(port)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield process
    finally:
        end_group(process)
        if process.stdout is not None:
            process.stdout.close()


def test_one_signal_to_one_process_ends_everything(
    tmp_path: Path, at_scale: Callable[..., Sequence[signal.Signals]]
) -> None:
    (tmp_path / "root").mkdir()
    for sent in at_scale([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]):
        with pages(tmp_path, free_port()) as process:
            assert process.stdout is not None
            heard = []
            for line in process.stdout:
                heard.append(line)
                if "Serving dagster-webserver" in line:
                    break
            assert "Serving" in heard[-1], "".join(heard)
            assert any("demo_discovery " in line for line in heard), "which sensors to turn on"
            process.send_signal(sent)
            process.communicate(timeout=PATIENCE_S)  # its end: the last process that could write has gone


def test_without_a_demo_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pages(tmp_path, free_port()) as process:
        said, _ = process.communicate()
    assert process.returncode == 1
    assert "run make demo first" in said


def test_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pages(tmp_path, port) as process:
            said, _ = process.communicate()
    assert process.returncode == 1
    assert f"port {port} is in use" in said
    assert "make ui PORT=<port>" in said


def test_make_ui_passes_its_port(tmp_path: Path) -> None:
    port = free_port()
    target = ["make", "--dry-run", "ui", f"PORT={port}"]
    commands = subprocess.run(target, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert f"-m examples.demo.ui --port '{port}'" in commands
