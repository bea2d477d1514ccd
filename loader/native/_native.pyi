from .python import crc32c as crc32c
from .python import gather_bytes as gather_bytes
from .python import gather_rows as gather_rows
from .python import instructions as instructions
