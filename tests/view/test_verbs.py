"""`penstock batch`, `penstock trail show` and the first address of `penstock view`, without a browser."""

import json
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import loader
from loader.errors import InvalidPlan, InvalidRuntime, NotARoot, RunNotFound
from penstock.cli import main
from penstock.verbs.view import _first, first_place, read_metrics
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until
from tests.view.conftest import BATCH, STEPS

RECIPE = "tests.view.recipes:recipe"


def run_verb(capsys, *arguments):
    """Exit status and output of `penstock`."""
    status = main([str(one) for one in arguments])
    return status, capsys.readouterr().out


def test_step_as_text_names_proofs_marks_and_slots(trained, capsys):
    status, out = run_verb(capsys, "batch", "one@2", "--root", trained, "--recipe", RECIPE)
    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith(f"one step 2: rank 0 of 1, {BATCH} of {BATCH} slots, digest ")
    assert [line.split()[:2] for line in lines[2:6]] == [
        [name, "proved"] for name in ("planned", "bytes", "code", "tensors")
    ]
    with loader.Root(trained) as root:
        keys = [one.address.key for one in loader.explain(loader.plan_of(root, "one"), 2)]
    assert [line.split()[2] for line in lines if line.startswith("slot ")] == keys


def test_slot_as_text_names_once_the_verb_that_searches_other_runs(trained, capsys):
    _, out = run_verb(capsys, "batch", "one@2", "--slot", 3, "--root", trained)
    assert out.count("penstock seen RUN SOURCE KEY searches one of the other runs") == 1
    assert "penstock seen" not in run_verb(capsys, "batch", "one@2", "--root", trained)[1]


def test_part_of_a_step_and_its_json(trained, capsys):
    status, out = run_verb(
        capsys, "batch", "three", "--step", 1, "--world", 3, "--rank", 2, "--root", trained, "--json"
    )
    body = json.loads(out)
    assert status == 0
    assert (body["rank"], body["world_size"], body["step"]) == (2, 3, 1)
    assert [one["slot"] for one in body["slots"]] == [4, 5]


def test_part_of_a_step_is_saved(trained, tmp_path, capsys):
    part = "three", "--step", 1, "--world", 3, "--rank", 2, "--root", trained
    assert run_verb(capsys, "batch", *part, "--save", tmp_path)[0] == 0
    record = json.loads((tmp_path / "record.json").read_text())
    assert [one["slot"] for one in record["slots"]] == [4, 5]
    assert {path.name.split("-")[1] for path in tmp_path.glob("slot-*")} == {"00004", "00005"}


def test_saved_values_are_the_tensors(trained, tmp_path, capsys):
    folder = tmp_path / "out"
    status, _ = run_verb(
        capsys, "batch", "one@2", "--slot", 3, "--root", trained, "--recipe", RECIPE, "--save", folder
    )
    assert status == 0
    record = json.loads((folder / "record.json").read_text())
    assert (record["step"], record["slot"]) == (2, 3)
    saved = np.load(folder / "slot-00003-jpg.npy")
    with (
        loader.Root(trained) as root,
        loader.Replay(loader.plan_of(root, "one"), framework="numpy") as replay,
    ):
        from tests.view.recipes import crop

        seen = replay.slot(2, 3)
        with loader.Replay(replay.plan, transform=crop, framework="numpy") as own:
            np.testing.assert_array_equal(saved, own.slot(2, 3).trained["jpg"])
    drawn = np.asarray(Image.open(folder / "slot-00003-jpg.png").convert("RGB"))
    np.testing.assert_array_equal(drawn, saved.transpose(1, 2, 0))
    assert json.loads((folder / "slot-00003-cls.json").read_text()) == seen.decoded["cls"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["batch", "one"], "a step of one is needed"),
        (["batch", "nobody@1"], "nobody"),
        (["batch", "one@1", "--slot", "99"], "slot = 99"),
        (["batch", "one@1", "--recipe", "train"], "module:function"),
        (["trail", "show", "nobody"], "nobody"),
        (["batch", "one@LONG"], "18 digits"),
        (["batch", "one", "--step", "9" * 30], "the last step"),
        (["batch", "one@1", "--slot", "9" * 30], "slot = 9"),
        (["batch", "xLONG"], "x999"),
        (["batch", "one@1", "--save", "/dev/null/folder"], "--save /dev/null/folder"),
        (["view", "one", "--step", "-1"], "steps count from 0"),
        (["view", "--port", "99999"], "--port 99999"),
        (["view", "--host", "no host"], "is unavailable"),
        (["show", "photos@LONG"], "5000 digits"),
        (["exclude", "photos@LONG", "p/1", "--reason", "r", "--by", "ada"], "5000 digits"),
    ],
)
def test_what_cannot_be_shown_is_said(trained, capsys, arguments, message):
    arguments = [one.replace("LONG", "9" * 5000) for one in arguments]
    assert main([*arguments, "--root", str(trained)]) == 2
    assert message in capsys.readouterr().err


def test_run_as_text_lists_the_largest_notes(trained, capsys):
    status, out = run_verb(capsys, "trail", "show", "one", "--root", trained)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == f"one: {STEPS} steps, 0 to {STEPS - 1}"
    assert lines[1].endswith("of photos@1, 1 ranks, recipe tests.view.recipes:recipe")
    assert "step 0 slot 5  loss 5" in lines


@pytest.mark.parametrize(
    ("where", "step", "address"),
    [
        ("", None, ""),
        ("photos", None, "v/photos/1"),
        ("photos@1", None, "v/photos/1"),
        ("one", None, "r/one"),
        ("one@4", None, "r/one/4"),
        ("one", 3, "r/one/3"),
    ],
)
def test_first_page_is_that_of_its_place(trained, where, step, address):
    with loader.Root(trained) as root:
        assert _first(root, where, step) == address


@pytest.mark.parametrize("first", [_first, first_place])
def test_no_page_is_opened_of_what_is_not_there(trained, tmp_path, first):
    with refusal(RunNotFound, what="run", given="nobody", accepted="floats, one, three"):
        first(loader.Root(trained), "nobody", None)
    with refusal(RunNotFound, what="run", given="nobody"):
        first(loader.Root(trained), "nobody@3", None)
    with refusal(InvalidPlan, what="plan", given="p-" + 64 * "0"):
        first(loader.Root(trained), "p-" + 64 * "0", None)
    with refusal(NotARoot, where=tmp_path / "nothing", given="nothing is there"):
        first(loader.Root(tmp_path / "nothing"), "", None)


def test_metrics_of_another_tool_are_told_with_the_step_of_their_run(trained, capsys, tmp_path):
    path = tmp_path / "wandb.csv"
    path.write_text("step,grad_norm\n2,41.5\n3,7\n")
    status, out = run_verb(capsys, "batch", "one@2", "--root", trained, "--metrics", path)
    assert status == 0
    assert "grad_norm 41.5  loss 1.02" in out
    with loader.Root(trained) as root:
        assert list(read_metrics(root, "one@2", path)) == ["one"]
        assert read_metrics(root, "", None) == {}
        for given in ("", "photos", "photos@1"):
            with refusal(InvalidRuntime, what="run of --metrics", where=path, given=given):
                read_metrics(root, given, path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_ends_at_once_while_a_recipe_hangs(trained, tmp_path, number):
    (tmp_path / "train.py").write_text(
        "import pathlib, time\n"
        "def recipe():\n"
        "    pathlib.Path(__file__).with_name('hangs').touch()\n"
        "    time.sleep(600)\n"
    )
    path = tmp_path / "socket"
    command = ["view", "--root", trained, "--socket", path, "--recipe", f"{tmp_path}/train.py:recipe"]
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    token = server.stdout.readline().decode().strip().rpartition("token=")[2]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        lines = ("GET /r/one/2 HTTP/1.1", "Host: localhost", f"Cookie: penstock-socket={token}", "", "")
        client.sendall("\r\n".join(lines).encode())
        until((tmp_path / "hangs").exists, process=server)
        server.send_signal(number)
        assert server.wait(PATIENCE_S) == 0
        page = b"".join(iter(lambda: client.recv(2**16), b""))
    assert page.startswith(b"HTTP/1.1 200")
    assert not path.exists()
    assert b"Traceback" not in server.communicate()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_the_first_page_ends_the_server(trained, number):
    program = (
        "import os, sys; import loader; from penstock.view.web.serve import serve;"
        "signal_self = lambda line: os.kill(os.getpid(), int(sys.argv[2]));"
        "serve(loader.Root(sys.argv[1]), port=0, announce=signal_self); print('ended')"
    )
    command = [sys.executable, "-c", program, trained, str(int(number))]
    server = subprocess.run(list(map(str, command)), capture_output=True, timeout=PATIENCE_S)
    assert (server.returncode, server.stdout, server.stderr) == (0, b"ended\n", b"")
