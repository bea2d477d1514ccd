"""What is measured: the rows of the page, what each is to reach, and what bounds penstock in it now."""

from dataclasses import dataclass, field

OURS, LIMIT = "penstock", "limit"
AS_IT_COMES = "as it comes"
"""Nothing is set: the Loader has its plan, and chooses executor, workers and prefetch by itself."""
TORCH = "torch_files"

PEERS = (
    LIMIT,
    OURS,
    TORCH,
    "webdataset",
    "streaming",
    "litdata",
    "grain",
    "spdl",
    "lance",
    "energon",
    "hf_datasets",
    "video",
)
"""Modules of benchmarks/peers, in the order of the tables."""

TITLES = {
    LIMIT: "limit",
    TORCH: "torch DataLoader",
    "streaming": "mosaicml-streaming",
    "energon": "megatron-energon",
    "hf_datasets": "HF datasets",
    "video": "torchcodec",
}


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Ours against theirs: "limit", a peer's or a contestant's name, or the fastest of "workers", "in process", "any".

    figure: "" for samples per second of the whole turn; of a store also "steady" and "with its start".
    """

    of: str
    at_least: float
    ours: str = "any"
    figure: str = ""

    @property
    def text(self) -> str:
        theirs = {
            LIMIT: "the limit",
            "any": "the fastest peer",
            "workers": "the fastest peer with workers",
            "in process": "the fastest peer in process",
        }
        if self.of.startswith(f"{OURS},"):
            return f"{self.ours}, against {self.of}"
        figure = f"{self.figure}, " if self.figure else ""
        ours = f"{self.ours}, against " if self.ours.startswith(f"{OURS},") else ""
        return f"{ours}{figure}{theirs.get(self.of, TITLES.get(self.of, self.of))}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kind of samples, served in a way, by everybody.

    samples: how many the data set has. decode: JPEGs, to pixels; crop: and a random box of them, resized to 224 px.
    """

    name: str
    title: str
    kind: str
    samples: int
    batch: int = 64
    decode: bool = False
    crop: bool = False
    aims: tuple[Aim, ...] = field(default=())
    limit: str
    bound: str


@dataclass(frozen=True, kw_only=True)
class Store(Row):
    """The same from a store; `part` of an epoch is read. resume_at: from the state after so much of an epoch."""

    part: float = 0.6
    resume_at: float = 0.0
    latency_s: float = 0.02


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            name="images",
            title="Images: 256 px JPEG, decoded, batches of 64",
            kind="images",
            samples=20_000,
            decode=True,
            aims=(
                Aim(of=LIMIT, at_least=0.9),
                Aim(of="any", at_least=1.2),
                Aim(of=TORCH, at_least=2),
            ),
            limit="processes read JPEGs at random places of one file and decode them (simplejpeg) into one buffer.",
            bound="the decoder, then memory: an image takes 195 us in one buffer, 213 in rows of batches, 245 in the "
            "Loader.",
        ),
        Row(
            name="crops",
            title="Photos: 256 px JPEG, decoded and cropped at random to 224 px in the user's decoder",
            kind="images",
            samples=20_000,
            decode=True,
            crop=True,
            aims=(
                Aim(of=LIMIT, at_least=0.85, ours=f"{OURS}, {AS_IT_COMES}"),
                Aim(of="any", at_least=1.2, ours=f"{OURS}, {AS_IT_COMES}"),
            ),
            limit="processes read JPEGs at random places of one file, decode them (simplejpeg) and crop them.",
            bound="the decoder and the resizing, which are the limit's.",
        ),
        Row(
            name="raw",
            title="Images: the same, raw bytes",
            kind="images",
            samples=20_000,
            aims=(
                Aim(of="workers", at_least=7, ours="workers"),
                Aim(of="in process", at_least=2, ours="in process"),
                Aim(of="in process", at_least=2, ours="penstock, in process, made into bytes"),
            ),
            limit="processes read JPEGs at random places of one file and keep nothing.",
            bound="memory, two thirds of the time: bytes are copied and checked in one pass; then plans, look-ups and "
            "objects. Peers in process verify nothing.",
        ),
        Store(
            name="store",
            title="Images: raw bytes from a store with 20 ms latency",
            kind="images",
            samples=20_000,
            aims=(
                Aim(of="any", at_least=1.5, figure="steady"),
                Aim(of="any", at_least=4, figure="with its start"),
            ),
            limit="ranges of 1 MiB of one object, 32 at once, by penstock's client. (litdata 0.2.76 reads a whole "
            "cached chunk of 64 MB for each window of its samples.)",
            bound="six round trips in turn, then the client, and pages cut into samples under the interpreter's lock.",
        ),
        Store(
            name="resume",
            title="The same: going on in mid-epoch",
            kind="images",
            samples=20_000,
            part=0,
            resume_at=0.5,
            limit="",
            bound="six round trips in turn, and Python between them.",
        ),
        Row(
            name="mixture",
            title="Mixture: raw images of 32 sources against one source, 2 threads",
            kind="images",
            samples=20_000,
            aims=(Aim(of="penstock, 1 source", ours="penstock, 32 sources", at_least=0.95),),
            limit="",
            bound="a look at each source's shard file, index and view.",
        ),
        Row(
            name="windows",
            title="Video: random windows of 16 frames, 320 x 240 px, of H.264 clips of 64 frames, batches of 8",
            kind="clips",
            samples=160,
            batch=8,
            aims=(Aim(of="any", at_least=1.1, ours=f"{OURS}, {AS_IT_COMES}"),),
            limit="processes decode random windows of clips in memory (PyAV), from the keyframe before.",
            bound="FFmpeg's decoder and the conversion of colours, which are the limit's.",
        ),
        Row(
            name="latents",
            title="Latents: float16 [4, 64, 64] and int32 [77], batches of 64",
            kind="latents",
            samples=20_000,
            aims=(
                Aim(of="workers", at_least=7, ours="workers"),
                Aim(of="in process", at_least=1.2, ours="in process"),
                Aim(of="in process", at_least=2, ours="penstock, 2 threads"),
            ),
            limit="processes copy random records of one mapped file into one batch.",
            bound="a millisecond of Python per call of the stages, half of the time; the other half copies and checks. "
            "Peers that read whole batches over a map verify nothing.",
        ),
        Row(
            name="tokens",
            title="Tokens: uint16 [2048], batches of 32",
            kind="tokens",
            samples=100_000,
            batch=32,
            aims=(Aim(of="any", at_least=1.5), Aim(of="workers", at_least=10)),
            limit="processes copy random records of one mapped file into one batch.",
            bound="85 us of one core per batch. The fastest peer only gathers out of a map: 40 us.",
        ),
    )
}

ORDER = (
    "images",
    "crops",
    "raw",
    "store",
    "resume",
    "mixture",
    "resumed",
    "latents",
    "tokens",
    "first_step",
    "video",
)
"""The page's: those not in ROWS are of benchmarks/alone.py, without peers."""

NODE = ("crops", "tokens", "latents", "windows")
"""Those of `python -m benchmarks.node`, for each number of workers."""
