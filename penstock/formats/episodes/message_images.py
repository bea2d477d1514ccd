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
from loader.modalities.video.episode_packets import PacketSpan, episode_mp4, last_frame_end, open_video

_PACKAGES = ("sensor_msgs", "foxglove", "foxglove_msgs")
_KINDS = {"Image": "raw", "RawImage": "raw", "CompressedImage": "encoded", "CompressedVideo": "encoded"}

_CHANNELS = {"mono": 1, "rgb": 3, "bgr": 3, "rgba": 4, "bgra": 4, "bayer_rggb": 1, "bayer_bggr": 1}
_CHANNELS |= {"bayer_gbrg": 1, "bayer_grbg": 1}
_DEPTHS = {"8U": "u1", "8S": "i1", "16U": "u2", "16S": "i2", "32S": "i4", "32F": "f4", "64F": "f8"}

_DEMUXERS = {"jpeg": "jpeg_pipe", "png": "png_pipe", "h264": "h264", "h265": "hevc", "av1": "obu"}
_JPEG = b"\xff\xd8\xff"
_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_DEPTH_BYTES = 2**30
_MOST_TICKS = 2**31 - 1
"""Longest time between two mp4 packets, in ticks."""


def image_kind(type_name: str) -> str:
    """Return "raw", "encoded", or "" for no image."""
    words = re.split(r"[./]", type_name)
    if words[0] not in _PACKAGES:
        return ""
    return _KINDS.get(words[-1], "")


def raw_image(message: Mapping[str, Any]) -> Any:
    """Return a raw image, [height, width, channels]."""
    dtype, channels = _pixel_type(str(message["encoding"]))
    height = int(message["height"])
    width = int(message["width"])
    line_bytes = int(message["step"])  # with padding
    data = _image_bytes(message["data"])
    pixel_bytes = width * channels * dtype.itemsize
    if not 0 < pixel_bytes <= line_bytes or len(data) != height * line_bytes:
        raise Corrupt(
            f"its image of {width} x {height} x {channels} has {len(data):,} bytes, {line_bytes:,} in a line"
        )
    # uint8 [height, line_bytes].
    lines = np.frombuffer(data, np.uint8).reshape(height, line_bytes)
    pixels = lines[:, :pixel_bytes].tobytes()
    pixel_dtype = dtype.newbyteorder("<")
    if message.get("is_bigendian"):
        pixel_dtype = dtype.newbyteorder(">")
    values = np.frombuffer(pixels, pixel_dtype)
    return values.astype(dtype).reshape(height, width, channels)


def _pixel_type(encoding: str) -> tuple[np.dtype[Any], int]:
    """Return the dtype and the number of channels of an encoding of ROS, such as rgb8 or 16UC1."""
    by_colours = re.fullmatch(r"([a-z_]+)(8|16)", encoding)
    if by_colours and by_colours[1] in _CHANNELS:
        n_bytes = int(by_colours[2]) // 8
        return np.dtype(f"u{n_bytes}"), _CHANNELS[by_colours[1]]
    by_number = re.fullmatch(r"(8U|8S|16U|16S|32S|32F|64F)C([1-4])", encoding)
    if by_number:
        return np.dtype(_DEPTHS[by_number[1]]), int(by_number[2])
    raise InvalidSample(f"its images have the encoding {encoding!r}, which is not read")


def frame_codec(message: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return (codec with size, bytes)."""
    data = _image_bytes(message["data"])
    format = str(message["format"])
    if format in ("h264", "h265", "av1"):
        return format, data
    if data.startswith(_PNG):
        width, height, bits, colours = struct.unpack_from(">IIBB", data, 16)
        if bits != 8 or colours not in (0, 2):  # 0 is grey, 2 is RGB
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


def _image_bytes(data: Any) -> bytes:
    if isinstance(data, str):  # from JSON
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise Corrupt(f"its image is not base64: {error}") from error
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        return data.tobytes()
    raise InvalidSample("its images are not bytes")


def depth_images(images: Sequence[bytes], what: str) -> Any:
    """Return 16-bit grey PNGs of one size as uint16 [images, height, width, 1]."""
    headers = {image[:8] + image[16:26] for image in images}  # magic, width, height, bits, colours
    header = headers.pop()
    width, height = struct.unpack_from(">II", header.ljust(16), 8)
    is_depth = header.startswith(_PNG) and header[16:] == b"\x10\0"  # 16 bits, grey
    decoded_bytes = 2 * width * height * len(images)
    if not is_depth or headers or decoded_bytes > _MOST_DEPTH_BYTES:
        raise InvalidSample(
            f"{what}: its images are not PNG of one size, grey, of 16 bits, and {_MOST_DEPTH_BYTES:,} bytes together"
        )
    frames: list[Any] = []
    for image in images:
        with open_video(io.BytesIO(image), what, _DEMUXERS["png"]) as (container, stream):
            frames += [frame.to_ndarray() for frame in container.decode(stream)]
    if len(frames) != len(images):
        raise Corrupt(f"{what}: {len(images)} images hold {len(frames)} frames")
    return np.stack(frames).astype(np.uint16)[..., None]


def mp4_of_frames(codec: str, frames: Sequence[bytes], ns: Any, what: str) -> bytes:
    """Return an mp4 file. ns: frame times, int64 [frames], strictly ascending."""
    demuxer = _DEMUXERS[codec.partition(" ")[0]]
    with open_video(io.BytesIO(b"".join(frames)), what, demuxer) as video:
        container, stream = video
        packets = [packet for packet in container.demux(stream) if packet.size]
        sizes = [packet.size for packet in packets]
        is_key = [packet.is_keyframe for packet in packets]
        if sizes != [len(frame) for frame in frames]:
            raise Corrupt(
                f"{what}: {len(frames)} messages hold {len(sizes)} frames; each message is to be one frame"
            )
        if not is_key[0]:
            raise Corrupt(f"{what}: its first frame is not a keyframe; packets are never encoded anew")
        tick_s, ticks = _ticks(ns, what)
        pts = ticks.tolist()
        span = PacketSpan(
            bodies=frames,
            pts=pts,
            key=is_key,
            end=last_frame_end(pts),
            places=[-1] * len(frames),
            time_base=tick_s,
            kind=(),
        )
        return episode_mp4(video, span, what, tick_s)


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
