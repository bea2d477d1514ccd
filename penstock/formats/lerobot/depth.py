"""Depth maps of LeRobot 0.6: `info.json` to the fact `depth` and back."""

from collections.abc import Mapping
from typing import Any

from loader.errors import InvalidSample, InvalidStore
from loader.modalities.video.depth import DepthScale
from loader.modalities.video.frame_pixels import is_deep_gray

from .metadata import INFO

MAX_CODE = 4095
"""LeRobot quantizes to 12 bits, whatever the pixel format."""
_PIX_FMT = "gray12le"
"""Pixel format to which LeRobot decodes depth; others change their numbers."""
_NUMBERS = ("video.depth_min", "video.depth_max", "video.shift", "video.use_log")


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Return whether `info.json` marks a feature as a depth map, by LeRobot's current or earlier name."""
    info = _object(feature, "info")
    video_info = _object(feature, "video_info")
    marks = (info.get("is_depth_map"), info.get("video.is_depth_map"), video_info.get("video.is_depth_map"))
    return any(mark is True for mark in marks)


def depth_fact(name: str, feature: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fact `depth`; None for other features, and for a depth map that does not state its scale.

    LeRobot itself takes its defaults for numbers that are missing. Raises: InvalidStore for impossible numbers.
    """
    info = _object(feature, "info")
    # Guessed distances would be wrong in silence: codes remain, and `to_lerobot` refuses them.
    if not is_depth(feature) or any(key not in info for key in _NUMBERS):
        return None
    min_m, max_m, shift_m, is_log = (info[key] for key in _NUMBERS)
    fact = {"max_code": MAX_CODE, "min_m": min_m, "max_m": max_m, "shift_m": shift_m, "is_log": is_log}
    where = f"{INFO}: feature {name!r:.80}"
    try:
        if bool in map(type, (min_m, max_m, shift_m)):  # true is the number 1 to float()
            message = f"{where}: depth = {fact!r:.200}: a distance is not a number"
            raise InvalidSample(message, what="depth", given=fact, accepted="numbers")
        return DepthScale.parse(fact, where).to_json()
    except InvalidSample as error:
        raise InvalidStore(
            f"{error}; correct {', '.join(_NUMBERS)}, or leave the feature out with --without {name}",
            what="depth",
            where=where,
            given=list(fact.values()),
            accepted=error.accepted,
        ) from None


def count_channels(pix_fmt: str | None, feature: Mapping[str, Any]) -> int:
    """Return the channels of LeRobot's frames of a video: 1 for depth and gray of more than 8 bits, else 3."""
    is_gray = pix_fmt is not None and is_deep_gray(pix_fmt)
    return 1 if is_gray or is_depth(feature) else 3


def depth_info(feature: Mapping[str, Any], fact: Any) -> dict[str, Any]:
    """Return the feature's `info`, completed by the fact `depth` unless it marks a depth map itself."""
    info = dict(_object(feature, "info"))
    # The dataset's own marks stay as they are, with settings that the fact lacks.
    if fact is None or is_depth(feature):
        return info
    scale = DepthScale.parse(fact, "facts")
    numbers = dict(zip(_NUMBERS, (scale.min_m, scale.max_m, scale.shift_m, scale.is_log), strict=True))
    return {**info, "is_depth_map": True, **numbers, "video.pix_fmt": _PIX_FMT}


def why_lossy(pix_fmt: str, feature: Mapping[str, Any], fact: Any) -> str:
    """Return why LeRobot would change the numbers of a video's frames; "" if it keeps them."""
    if not is_deep_gray(pix_fmt):
        return ""
    if pix_fmt != _PIX_FMT:
        return f"its frames are {pix_fmt}, and LeRobot reads depth as {_PIX_FMT}"
    if fact is None and not is_depth(feature):
        return "its gray frames of 12 bits are not marked as depth: LeRobot reads them as colour of 8 bits"
    if fact is not None and DepthScale.parse(fact, "facts").max_code != MAX_CODE:
        return f"its largest code is {fact['max_code']}, and LeRobot's is {MAX_CODE}"
    return ""


def _object(feature: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = feature.get(key)
    return value if isinstance(value, Mapping) else {}
