"""The type of a file by its first bytes, never by its name."""

HEAD_BYTES = 4096
"""Number of first bytes of a file that `sniff` takes."""

EMPTY = "application/x-empty"
UNKNOWN = "application/octet-stream"

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
}
# What a HEIF file names whose first brand says only that it is one (ISO/IEC 23008-12, 10).
_ANY_CODEC = (b"mif1", b"msf1")
_AUDIO_BRANDS = (b"M4A ", b"M4B ")
_TS_PACKET_BYTES = 188


def sniff(head: bytes) -> str:
    """Return the MIME type of a file that begins with `head` (its first 4096 bytes, or all of a shorter file).

    Gives `application/x-empty` for no bytes and `application/octet-stream` for bytes it does not know. A
    container (mp4, ogg, matroska) is named by what it usually holds; only opening it tells what is inside.
    """
    if not head:
        return EMPTY
    for prefix, mime in _PREFIXES:
        if head.startswith(prefix):
            return mime
    return _container(head) or _mpeg(head) or (_text(head) if _is_text(head) else _padded(head))


def _container(head: bytes) -> str | None:
    if head[:4] in (b"RIFF", b"RF64"):
        return _RIFF.get(head[8:12])
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        brand = head[8:12]
        if brand in _ANY_CODEC:
            others = head[16 : int.from_bytes(head[:4], "big")]
            named = {_IMAGE_BRANDS.get(others[at : at + 4]) for at in range(0, len(others), 4)}
            return "image/avif" if "image/avif" in named else "image/heic"
        audio = "audio/mp4" if brand in _AUDIO_BRANDS else "video/mp4"
        return _IMAGE_BRANDS.get(brand, audio) if head[4:8] == b"ftyp" else "video/quicktime"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "video/webm" if b"webm" in head[:64] else "video/x-matroska"
    if head.startswith(b"OggS"):
        return "video/ogg" if b"theora" in head[:256] else "audio/ogg"
    return None


def _mpeg(head: bytes) -> str | None:
    if head[0] == 0x47 and len(head) > 2 * _TS_PACKET_BYTES and head[_TS_PACKET_BYTES] == 0x47:
        return "video/mp2t"
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        layer, rate = head[1] >> 1 & 3, head[2] >> 4
        if head[1] & 0xF6 == 0xF0:
            return "audio/aac"  # ADTS: the layer bits are zero
        return "audio/mpeg" if layer and rate not in (0, 15) else None
    return None


def _padded(head: bytes) -> str:
    """Return the type of MPEG sound behind something else, as cutters of streams leave it.

    Three frames in a row are no chance.
    """
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
    """Return the length of the layer III frame that begins so (ISO/IEC 11172-3, 2.4.3.1); 0 for anything else."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    version, layer, rate = header[1] >> 3 & 3, header[1] >> 1 & 3, header[2] >> 2 & 3
    if layer != 1 or rate == 3 or version == 1:
        return 0
    divisor = {3: 1, 2: 2, 0: 4}[version]
    kbits = _KBITS[version != 3][header[2] >> 4]
    slots = 144 if version == 3 else 72
    return slots * kbits * 1000 * divisor // _RATES_HZ[rate] + (header[2] >> 1 & 1)


def _is_text(head: bytes) -> bool:
    if b"\x00" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and len(head) >= HEAD_BYTES  # cut inside the last letter
    return True


def _text(head: bytes) -> str:
    start = head.lstrip()[:64].lower()
    if start.startswith((b"{", b"[")):
        return "application/json"
    return "text/html" if start.startswith((b"<!doctype html", b"<html")) else "text/plain"
