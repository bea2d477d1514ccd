from .python import PagedSha256 as PagedSha256
from .python import crc32c as crc32c
from .python import gather as gather
from .python import hash_texts as hash_texts
from .python import instructions as instructions
from .python import resample as resample
from .python import tar_contents as tar_contents
