"""The scripts of docs/robots.md run as they stand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.modalities.video.packet_table import index_packets
from tests.run.numbered_video import video

PAGE = (Path(__file__).parents[3] / "docs/robots.md").read_text()


def test_scripts_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = {f"{name}.npy": {"fps": "30"} for name in ("action", "observation.state")}
    clip = video(40, pts=[-(-1000 * row // 30) for row in range(40)])
    clock = np.array([row * 10**9 // 30 for row in range(40)])
    rows = np.arange(80, dtype=np.float32).reshape(40, 2)
    with loader.Root("data") as root, root.write("arm", facts=facts) as writer:
        for number in range(3):
            fields: dict[str, Any] = {"observation.images.top.mp4": clip}
            fields["observation.images.top.mp4.packets"] = index_packets(clip)
            fields |= {"action.npy": rows, "action.ns.npy": clock}
            fields |= {"observation.state.npy": rows, "observation.state.ns.npy": clock}
            writer.add(f"{number}", fields)
    names: dict[str, Any] = {}
    for script in re.findall(r"```python \w+\n(.*?)```", PAGE, re.S):
        exec(compile(script, "docs/robots.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "torch.Size([8, 2, 224, 224, 3]) torch.Size([8, 50, 2])" in printed
    assert "'action': (8, 50, 2)" in printed
