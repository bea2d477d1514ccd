"""Limits for untrusted media and tables, checked before anything is decoded or allocated."""

MAX_IMAGE_PX = 2**28 // 3
"""Pixels of a decoded image: 256 MiB as RGB, Pillow's threshold for a decompression bomb."""

MAX_RAW_IMAGE_PX = 80_000_000
"""Pixels of a photo that ingest accepts; a 60 Mpx camera fits."""

MAX_TIFF_PAGES = 100
"""Pages of a TIFF searched for a second image."""

MAX_JPEG_SCANS = 100
"""Scans of a JPEG, each a pass over all pixels; encoders write about ten."""

MAX_JPEG_SCAN_PX = 2**31
"""Pixels that more than `JPEG_SCANS_ANYWAY` scans of a JPEG may process in total: about 3 s."""

JPEG_SCANS_ANYWAY = 20
"""Scans accepted in a JPEG of any size: twice as many as encoders write."""

MAX_FRAME_PX = 2**26
"""Pixels of a video frame: twice 8K."""

MAX_CLIP_BYTES = 2**32
"""Bytes of a decoded clip: 16 frames at 8K are 1.6 GB."""

MAX_AUDIO_BYTES = 2**32
"""Bytes of decoded float32 samples: 4 GiB is three hours of stereo at 48 kHz."""

MAX_TRACK_SAMPLES = 2**24
"""Samples (packets) in one MP4 track: 155 hours at 30 frames/s, 99 hours of AAC at 48 kHz."""

MAX_MP4_BOXES = 2**20
"""Boxes in an MP4: a day in 2 s fragments has half as many."""

MAX_MP4_EDITED, MP4_SAMPLES_ANYWAY = 4, 2**20
"""Index entries from a track's edit lists: maximum per byte of the file, and always accepted. FFmpeg
repeats the samples of each edit: 3,000 edits in 38 KB took 43 s and 4.3 GiB.
"""

MAX_PACKET_BYTES_RATIO = 8
"""Bytes of a video's packets per byte of the file: packets may be compressed or repeated."""

MAX_MP4_HEADER_BYTES = 64 * 2**20
"""Bytes of an MP4's compressed header (`cmov`) after decompression."""

MAX_ARROW_BATCH_BYTES, MIN_ARROW_BATCH_BYTES, MAX_ARROW_RATIO = 2**32, 2**28, 200
"""Decompressed bytes of an Arrow record batch: maximum, always accepted, maximum per compressed byte."""

MAX_LOG_LINE_BYTES = 64 * 2**20
"""Bytes of one action in a Delta table's log."""

MAX_STATE_BYTES = 64 * 2**20
"""Bytes of a `state.json` written by Hugging Face's datasets; a larger one belongs to another tool."""

MAX_LINE_BYTES = 64 * 2**20
"""Bytes of one line of JSON or CSV."""

MAX_JSON_CHARACTERS = 64 * 2**20
"""Characters of one object in a JSON array."""

MAX_MASK_BYTES = 64 * 2**20
"""Bytes of the names in a robomimic filter: about a million demonstrations."""

MAX_EXPRESSION_WORDS = 5000
"""Words and operators in an SQL expression: polars overflows its stack at about 6,000."""

MAX_EXPRESSION_COPIES = 20_000
"""Words and operators after polars has copied operands: thirty nested BETWEENs never finished."""

MAX_MADE_CHARACTERS = 512
"""Characters that an SQL expression may make of one character: 0.5 GB for a million rows."""


def limit_message(what: str, value: int, unit: str, most: int, advice: str = "") -> str:
    return f"{what}: {value:,} {unit}; at most {most:,} are accepted" + (f". {advice}" if advice else "")
