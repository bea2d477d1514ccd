"""Save slot values as files: media, NPY arrays, JSON for other values, and the record."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .json_record import plain
from .kinds import kind_of
from .shown_values import facts_of

_ENDINGS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/webp": "webp",
    "audio/wav": "wav",
    "video/mp4": "mp4",
}
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def save(folder: Path, record: Mapping[str, Any], slots: Mapping[int, Mapping[str, Any]]) -> list[Path]:
    """Write `record.json` and each slot's values into a folder, and return the paths.

    slots: slot -> field -> value. Arrays are written bit for bit; media also as image and audio files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "record.json"]
    written[0].write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    for slot, sample in slots.items():
        for field, value in sample.items():
            stem = folder / f"slot-{slot:05d}-{_ODD.sub('_', field)[:80]}"
            facts = facts_of(sample, field, None)
            media = kind_of(value, facts).detail(value, facts)
            for i, item in enumerate(media):
                number = f"-{i:03d}" if len(media) > 1 else ""
                written.append(Path(f"{stem}{number}.{_ENDINGS.get(item.type, 'bin')}"))
                written[-1].write_bytes(item.data)
            written.append(_value(stem, value))
    return written


def _value(stem: Path, value: Any) -> Path:
    if isinstance(value, bytes):
        path = Path(f"{stem}.bin")
        path.write_bytes(value)
    elif hasattr(value, "__array__") and hasattr(value, "ndim") and value.ndim:
        path = Path(f"{stem}.npy")
        np.save(path, _array(value), allow_pickle=False)
    else:
        path = Path(f"{stem}.json")
        scalar = value.item() if hasattr(value, "item") else value
        path.write_text(json.dumps(plain(scalar), ensure_ascii=False), encoding="utf-8")
    return path


def _array(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(value)
    except TypeError:  # bfloat16 and other dtypes that only torch has
        import torch

        array: np.ndarray[Any, Any] = value.contiguous().view(torch.uint8).numpy()
        return array
