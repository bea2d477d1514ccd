from .python import PagedSha256 as PagedSha256
from .python import copy_bytes as copy_bytes
from .python import crc32c as crc32c
from .python import gather as gather
from .python import hash_numbers as hash_numbers
from .python import hash_texts as hash_texts
from .python import instructions as instructions
from .python import tar_contents as tar_contents
