"""Detect a file's type from its first bytes."""

import re

HEAD_BYTES = 4096
"""Bytes that `sniff` reads."""

EMPTY = "application/x-empty"
UNKNOWN = "application/octet-stream"
SUBTITLES = ("text/vtt", "application/x-subrip", "text/x-ssa")
"""Subtitle types: WebVTT, SubRip, SubStation Alpha."""

ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
MXF_PARTITION = bytes.fromhex("060e2b34020501010d01020101")
"""First bytes of a partition's key (SMPTE 377M); 02 (header), 03 (body) or 04 (footer) follows."""
MP4_FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")

_PREFIXES = (
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"BM", "image/bmp"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"#!AMR", "audio/amr"),
    (b"FLV\x01", "video/x-flv"),
    (b"\x00\x00\x01\xba", "video/mpeg"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"#?RADIANCE", "image/vnd.radiance"),
    (b"YUV4MPEG2", "video/x-yuv4mpeg"),
    (b"nut/multimedia container\0", "video/x-nut"),
)
# First bytes that may also start a text.
_BINARY_PREFIXES = (
    (b"caff", "audio/x-caf"),
    (b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00", "audio/x-w64"),
    (ASF_HEADER, "video/x-ms-asf"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "image/jp2"),
    (b"\xff\x4f\xff\x51", "image/jp2"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "image/jxl"),
    (b"\xff\x0a", "image/jxl"),
    (b"8BPS", "image/vnd.adobe.photoshop"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
    (b"\x76\x2f\x31\x01", "image/x-exr"),
    (b"DDS ", "image/vnd-ms.dds"),
    (b"qoif", "image/x-qoi"),
    (b"FUJIFILMCCD-RAW", "image/x-raw"),
    (b"IIRO", "image/x-raw"),
    (b"IIU\x00", "image/x-raw"),
    (b".snd", "audio/basic"),
    (b"MThd", "audio/midi"),
    (b"MAC ", "audio/x-ape"),
    (b"wvpk", "audio/x-wavpack"),
    (b"TTA1", "audio/x-tta"),
    (b"MPCK", "audio/x-musepack"),
    (b"MP+", "audio/x-musepack"),
    (b"DSD ", "audio/x-dsd"),
    (b"FRM8", "audio/x-dsd"),
    (b"\x7f\xfe\x80\x01", "audio/vnd.dts"),
    (b"DKIF", "video/x-ivf"),
    (b".RMF", "application/vnd.rn-realmedia"),
    (b"FWS", "application/x-shockwave-flash"),
    (b"CWS", "application/x-shockwave-flash"),
    (b"\x00\x00\x01\xb3", "video/mpeg-es"),
)
_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}
_IMAGE_BRANDS = {
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"heim": "image/heic",
    b"heis": "image/heic",
    b"hevc": "image/heic",
    b"hevx": "image/heic",
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"crx ": "image/x-raw",
}
# HEIF major brands that leave the codec to the compatible brands (ISO/IEC 23008-12, 10).
_ANY_CODEC = (b"mif1", b"msf1")
_AUDIO_BRANDS = (b"M4A ", b"M4B ")
_TS_PACKET_BYTES = 188


def sniff(head: bytes) -> str:
    """Return the MIME type by the first 4096 bytes; a container (mp4, ogg, matroska) has its usual content's."""
    if not head:
        return EMPTY
    for prefix, mime in _PREFIXES:
        if head.startswith(prefix):
            return mime
    if _ANYMAP.match(head):
        return "image/x-portable-anymap"
    mime_type = _container(head) or _mpeg(head) or (_text(head) if _is_text(head) else None)
    return mime_type or _binary(head) or _raw_stream(head) or _sniff_padded(head)


def _container(head: bytes) -> str | None:
    if head[:4] in (b"RIFF", b"RF64"):
        return _RIFF.get(head[8:12])
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "audio/aiff"
    if head[4:8] in MP4_FIRST_BOXES:
        brand = head[8:12]
        if brand in _ANY_CODEC:
            others = head[16 : int.from_bytes(head[:4], "big")]
            named = {_IMAGE_BRANDS.get(others[at : at + 4]) for at in range(0, len(others), 4)}
            if "image/avif" in named:
                return "image/avif"
            return "image/heic"
        audio = "video/mp4"
        if brand in _AUDIO_BRANDS:
            audio = "audio/mp4"
        if head[4:8] == b"ftyp":
            return _IMAGE_BRANDS.get(brand, audio)
        return "video/quicktime"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        if b"webm" in head[:64]:
            return "video/webm"
        return "video/x-matroska"
    if head.startswith(b"OggS"):
        if b"theora" in head[:256]:
            return "video/ogg"
        return "audio/ogg"
    return None


def _binary(head: bytes) -> str | None:
    for prefix, mime in _BINARY_PREFIXES:
        if head.startswith(prefix):
            return mime
    if MXF_PARTITION + b"\x02" in head:  # a run-in may precede the header
        return "video/mxf"
    if _is_tga(head):
        return "image/x-tga"
    return None


def _is_tga(head: bytes) -> bool:
    """Return whether the bytes are a plausible TGA header, which has no magic bytes."""
    if len(head) < 18:
        return False
    palette_kind = head[1]  # 1: with a palette
    image_kind = head[2]  # 1 and 9 use the palette; from 9 on pixels are run-length encoded
    palette = head[3:8]  # first entry, number of entries, bits of an entry
    width = head[12:14]
    height = head[14:16]
    pixel_bits = head[16]
    flags = head[17]
    if image_kind not in (1, 2, 3, 9, 10, 11) or pixel_bits not in (8, 15, 16, 24, 32):
        return False
    if flags & 0xC0 or not any(width) or not any(height):  # the two upper flags are unused
        return False
    uses_palette = image_kind in (1, 9)
    if palette_kind == 1:
        return uses_palette and palette[-1] in (15, 16, 24, 32)
    return palette_kind == 0 and not uses_palette and not any(palette)


def _raw_stream(head: bytes) -> str | None:
    if (n_bytes := ac3_bytes(head)) and (len(head) < n_bytes + 6 or ac3_bytes(head[n_bytes:])):
        if head[5] >> 3 > 10:
            return "audio/eac3"
        return "audio/ac3"
    # DIF blocks of 80 bytes: a header, then subcode (IEC 61834-2).
    if (
        head[0] == 0x1F
        and head[1] & 7 == 7
        and head[2:3] == b"\0"
        and head[80:81]
        and head[80] & 0xE0 == 0x20
    ):
        return "video/dv"
    start = head.removeprefix(b"\0")
    if start.startswith(b"\0\0\x01") and len(start) > 4:
        if start[3] in (0x40, 0x42, 0x46) and start[4] == 1:
            return "video/h265"
        if start[3] & 0x80 == 0 and start[3] & 0x1F in (7, 9):
            return "video/h264"
    return None


AC3_SYNC = b"\x0b\x77"
_AC3_KBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)


def ac3_bytes(header: bytes) -> int:
    """Return an AC-3 or E-AC-3 frame's bytes (ETSI TS 102 366, 4.3 and E.1.2); 0 if it is none."""
    if len(header) < 6 or header[:2] != AC3_SYNC:
        return 0
    if 10 < header[5] >> 3 <= 16:
        return 2 * (((header[2] & 7) << 8 | header[3]) + 1)
    rate = header[4] >> 6
    code = header[4] & 0x3F
    if header[5] >> 3 > 10 or rate == 3 or code >= 2 * len(_AC3_KBITS):
        return 0
    kbits = _AC3_KBITS[code // 2]
    return (4 * kbits, 2 * (320 * kbits // 147 + code % 2), 6 * kbits)[rate]


def _mpeg(head: bytes) -> str | None:
    if head[0] == 0x47 and len(head) > 2 * _TS_PACKET_BYTES and head[_TS_PACKET_BYTES] == 0x47:
        return "video/mp2t"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        layer = head[1] >> 1 & 3
        rate = head[2] >> 4
        if head[1] & 0xF6 == 0xF0:
            return "audio/aac"  # ADTS: the layer bits are zero
        if layer and rate not in (0, 15):
            return "audio/mpeg"
        return None
    return None


def _sniff_padded(head: bytes) -> str:
    at = head.find(b"\xff")
    while 0 <= at < len(head) - 4:
        first = second = 0
        if _mpeg(head[at:]) == "audio/mpeg" and (first := _layer3_bytes(head[at:])):
            second = _layer3_bytes(head[at + first :])
        if first and second and _layer3_bytes(head[at + first + second :]):
            return "audio/mpeg"
        at = head.find(b"\xff", at + 1)
    return UNKNOWN


_KBITS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),  # MPEG-1 layer III
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),  # MPEG-2 and 2.5 layer III
)
_RATES_HZ = (44100, 48000, 32000)


def _layer3_bytes(header: bytes) -> int:
    """Return a layer III frame's bytes (ISO/IEC 11172-3, 2.4.3.1); 0 if it is none."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    version = header[1] >> 3 & 3
    layer = header[1] >> 1 & 3
    rate = header[2] >> 2 & 3
    if layer != 1 or rate == 3 or version == 1:
        return 0
    divisor = {3: 1, 2: 2, 0: 4}[version]
    kbits = _KBITS[version != 3][header[2] >> 4]
    slots = 72
    if version == 3:
        slots = 144
    return slots * kbits * 1000 * divisor // _RATES_HZ[rate] + (header[2] >> 1 & 1)


def _is_text(head: bytes) -> bool:
    if b"\x00" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and len(head) >= HEAD_BYTES  # truncated inside the last character
    return True


_ANYMAP = re.compile(rb"P(?:[1-6]\s+(?:#[^\n]*\n\s*)*\d+\s+\d+\s|7\s+(?:#[^\n]*\n)*WIDTH)")
# Start of a SubRip file: a cue's number and times.
_CUE = re.compile(r"(?:\d+\s*\r?\n)?\d{1,2}:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d{1,2}:\d\d:\d\d[,.]\d{1,3}")
_ADVANCED_SUBTITLES = "[script info]"


def _text(head: bytes) -> str:
    text = head.decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    if re.match(r"WEBVTT[ \t\r\n]|WEBVTT$", text):
        return SUBTITLES[0]
    if _CUE.match(text):
        return SUBTITLES[1]
    start = text[:64].lower()
    if start.startswith(_ADVANCED_SUBTITLES):
        return SUBTITLES[2]
    if start.startswith("<svg") or (start.startswith(("<?xml", "<!doctype svg")) and "<svg" in text.lower()):
        return "image/svg+xml"
    if start.startswith(("{", "[")):
        return "application/json"
    is_page = start.startswith(("<!doctype html", "<html", "<head", "<body"))
    may_be = start.startswith(("<?xml", "<!--")) and "<html" in text.lower()
    if is_page or may_be:
        return "text/html"
    return "text/plain"
