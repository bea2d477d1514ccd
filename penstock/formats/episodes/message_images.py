"""Images in messages: raw images become arrays, encoded frames mp4 packets without decoding."""

import base64
import binascii
import io
import re
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.modalities.video.episode_packets import PacketSpan, end_of, mp4_of, opened

_PACKAGES = ("sensor_msgs", "foxglove", "foxglove_msgs")
_KINDS = {"Image": "raw", "RawImage": "raw", "CompressedImage": "encoded", "CompressedVideo": "encoded"}

_CHANNELS = {"mono": 1, "rgb": 3, "bgr": 3, "rgba": 4, "bgra": 4, "bayer_rggb": 1, "bayer_bggr": 1}
_CHANNELS |= {"bayer_gbrg": 1, "bayer_grbg": 1}
_DEPTHS = {"8U": "u1", "8S": "i1", "16U": "u2", "16S": "i2", "32S": "i4", "32F": "f4", "64F": "f8"}

_DEMUXERS = {"jpeg": "jpeg_pipe", "png": "png_pipe", "h264": "h264", "h265": "hevc", "av1": "obu"}
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MOST_DEPTH_BYTES = 2**30
_MOST_TICKS = 2**31 - 1
"""Longest time between two mp4 packets, in ticks."""


def kind_of(type_name: str) -> str:
    """Return "raw", "encoded", or "" for no image."""
    words = re.split(r"[./]", type_name)
    return _KINDS.get(words[-1], "") if words[0] in _PACKAGES else ""


def raw_image(message: Mapping[str, Any]) -> Any:
    """Return a raw image, [height, width, channels]."""
    encoding = str(message["encoding"])
    named = re.fullmatch(r"([a-z_]+)(8|16)", encoding)
    counted = re.fullmatch(r"(8U|8S|16U|16S|32S|32F|64F)C([1-4])", encoding)
    if named and named[1] in _CHANNELS:
        dtype, channels = np.dtype(f"u{int(named[2]) // 8}"), _CHANNELS[named[1]]
    elif counted:
        dtype, channels = np.dtype(_DEPTHS[counted[1]]), int(counted[2])
    else:
        raise InvalidSample(f"its images have the encoding {encoding!r}, which is not read")
    height, width, step = (int(message[name]) for name in ("height", "width", "step"))
    data = _bytes_of(message["data"])
    row = width * channels * dtype.itemsize
    if not 0 < row <= step or len(data) != height * step:
        raise Corrupt(
            f"its image of {width} x {height} x {channels} has {len(data):,} bytes, {step:,} in a line"
        )
    lines = np.frombuffer(data, np.uint8).reshape(height, step)[:, :row]
    values = np.frombuffer(lines.tobytes(), dtype.newbyteorder(">" if message.get("is_bigendian") else "<"))
    return values.astype(dtype).reshape(height, width, channels)


def encoded_frame(message: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return (codec with size, bytes)."""
    data, format = _bytes_of(message["data"]), str(message["format"])
    if format in ("h264", "h265", "av1"):
        return format, data
    if data.startswith(_PNG):
        width, height, bits, colours = struct.unpack_from(">IIBB", data, 16)
        if bits != 8 or colours not in (0, 2):
            raise InvalidSample(
                "its images are PNG with alpha, a palette, or other than 8 bits, which a decoder of videos changes: "
                "record raw images"
            )
        return f"png {width} x {height}", data
    if data.startswith(_JPEG):
        from simplejpeg import decode_jpeg_header

        height, width = decode_jpeg_header(data)[:2]
        return f"jpeg {width} x {height}", data
    raise InvalidSample(f"its images are of the format {format!r}; read are jpeg, png, h264, h265 and av1")


def _bytes_of(data: Any) -> bytes:
    if isinstance(data, str):  # from JSON
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise Corrupt(f"its image is no base64: {error}") from error
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        return data.tobytes()
    raise InvalidSample("its images are no bytes")


def depth_images(images: Sequence[bytes], what: str) -> Any:
    """Return 16-bit grey PNGs of one size as uint16 [images, height, width, 1]."""
    head, *others = {one[:8] + one[16:26] for one in images}  # magic, width, height, bits, colours
    width, height = struct.unpack_from(">II", head.ljust(16), 8)
    is_read = head.startswith(_PNG) and head[16:] == b"\x10\0" and not others
    if not is_read or 2 * width * height * len(images) > _MOST_DEPTH_BYTES:
        raise InvalidSample(
            f"{what}: its images are no PNG of one size, grey, of 16 bits, and {_MOST_DEPTH_BYTES:,} bytes together"
        )
    decoded = list[Any]()
    for image in images:
        with opened(io.BytesIO(image), what, _DEMUXERS["png"]) as (container, stream):
            decoded += [frame.to_ndarray() for frame in container.decode(stream)]
    if len(decoded) != len(images):
        raise Corrupt(f"{what}: {len(images)} images hold {len(decoded)} frames")
    return np.stack(decoded).astype(np.uint16)[..., None]


def mp4_of_frames(codec: str, frames: Sequence[bytes], ns: Any, what: str) -> bytes:
    """Return an mp4 file. ns: frame times, int64 [frames], strictly ascending."""
    with opened(io.BytesIO(b"".join(frames)), what, _DEMUXERS[codec.partition(" ")[0]]) as video:
        container, stream = video
        packets = [packet for packet in container.demux(stream) if packet.size]
        sizes, key = [packet.size for packet in packets], [packet.is_keyframe for packet in packets]
        if sizes != [len(frame) for frame in frames]:
            raise Corrupt(
                f"{what}: {len(frames)} messages hold {len(sizes)} frames; each message is to be one frame"
            )
        if not key[0]:
            raise Corrupt(f"{what}: its first frame is no keyframe; packets are never encoded anew")
        base, pts = _ticks(ns, what)
        span = PacketSpan(
            bodies=frames,
            pts=pts.tolist(),
            key=key,
            end=end_of(pts.tolist()),
            places=[-1] * len(frames),
            time_base=base,
            kind=(),
        )
        return mp4_of(video, span, what, base)


def _ticks(ns: Any, what: str) -> tuple[Fraction, Any]:
    """Return (tick in seconds, each frame's tick): 1 ns, or 1 µs if mp4 needs it."""
    pts = ns - ns[0]
    for step in (1, 1000):
        ticks = pts // step
        gaps = np.diff(ticks)
        if not len(gaps) or (gaps.min() > 0 and gaps.max() <= _MOST_TICKS):
            return Fraction(step, 10**9), ticks
    raise InvalidSample(
        f"{what}: two frames lie further apart than {_MOST_TICKS:,} us, or two in one, which mp4 cannot hold"
    )
