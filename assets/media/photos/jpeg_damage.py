"""What decoders of JPEG pass over: damaged data that come out as grey, scans without end, scans that are missing."""

from contextlib import suppress

from ..unit import rejected
from .parts import SOS, BrokenParts, jpeg_parts, missing_scans

MAX_SCANS = 100
"""Of a progressive JPEG, whose every scan is a pass over all pixels; encoders write about ten."""

# What libjpeg warns of although every pixel may be right: bytes between segments, markers of unusual encoders. (Bytes
# that a scan leaves over before a restart marker are another matter: its data are damaged.)
_HARMLESS = (
    "extraneous bytes before marker",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform code",
    "unknown JFIF revision",
)
_RESTARTS = tuple(f"marker 0x{marker:02x}" for marker in range(0xD0, 0xD8))


def check_jpeg(data: bytes) -> str | None:
    """What libjpeg or the file's scans have to say of a picture whose pixels may all be right; None for nothing.

    Decodes at an eighth of the size, so mostly the entropy coding. Raises: Unusable (damaged; too many scans).
    """
    import simplejpeg

    n_scans = 0
    with suppress(BrokenParts):  # libjpeg says so where it matters
        n_scans = sum(part.name == f"{SOS:02x}" for part in jpeg_parts(data))
    if n_scans > MAX_SCANS:
        raise rejected("probe", "too_many_scans", f"a JPEG of {n_scans} scans; at most {MAX_SCANS}")
    try:
        space = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(
            data, "CMYK" if space in ("CMYK", "YCCK") else "GRAY", min_height=1, min_width=1
        )
    except ValueError as error:
        said = str(error)
        if any(words in said for words in _HARMLESS) and not said.endswith(_RESTARTS):
            return said
        raise rejected("decode", "undecodable", said) from error
    return missing_scans(data)
