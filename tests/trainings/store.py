"""The store of the run that is disturbed: data, checkpoints and record, with faults planted in its answers."""

from tests.servers.http import HttpServer, Request
from tests.servers.s3 import SmallS3

URL, RUN = "s3://bucket", "big-7"
MARKERS = f"checkpoints/{RUN}/steps/"
RECORD = ("trainings/", "trails/")


class Store:
    """One bucket, and what goes wrong in it."""

    def __init__(self) -> None:
        self.objects = SmallS3()
        self.objects.page_keys = 1000
        self.server = HttpServer(self.objects)
        self.server.fault_of = self._fault
        self.refuses_record, self.flips, self.refused = False, 0, 0
        self.flipped = set[str]()
        """Objects that came wrong in this fault: bytes that are wrong twice are a corrupt sample."""
        self.n_flipped = 0
        self.damaged = set[int]()
        """Steps whose checkpoint was damaged, and was not saved again since."""

    def _fault(self, request: Request) -> int | str | None:
        key = request.path.removeprefix("/bucket/")
        if self.flips and request.method == "GET" and key.endswith(".tar") and key not in self.flipped:
            self.flips, self.n_flipped = self.flips - 1, self.n_flipped + 1
            self.flipped.add(key)
            return "flip"
        if self.refuses_record and request.method == "PUT" and key.startswith(RECORD):
            self.refused += 1
            return 507
        if request.method == "PUT" and key.startswith(MARKERS):
            self.damaged.discard(marker_step(key))
        return None

    def saved(self) -> int:
        """Return the newest step with a checkpoint that is whole."""
        steps = {marker_step(key) for key in self.objects.held() if key.startswith(MARKERS)}
        return max(steps - self.damaged, default=0)

    def damage_newest(self) -> None:
        """Flip a byte in the middle of the largest part of the newest checkpoint."""
        step = self.saved()
        prefix = f"checkpoints/{RUN}/parts/{step:012d}/"
        parts = [
            key for key in self.objects.held() if key.startswith(prefix) and key.endswith(".safetensors")
        ]
        largest = max(parts, key=lambda key: len(self.objects.objects[key]))
        content = bytearray(self.objects.objects[largest])
        content[len(content) // 2] ^= 1
        self.objects.hold(largest, bytes(content))
        self.damaged.add(step)


def marker_step(key: str) -> int:
    """Return the step of a checkpoint's marker."""
    return int(key.removeprefix(MARKERS).removesuffix(".json"))
