"""What is measured: the rows of the page, and what each is to reach."""

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
        if self.of.startswith(f"{OURS},"):
            return ""
        ours = self.ours.removeprefix(f"{OURS}, ") if self.ours.startswith(f"{OURS},") else ""
        return ", ".join(filter(None, (ours, self.figure, LIMIT if self.of == LIMIT else "")))


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

    @property
    def short(self) -> str:
        """Title up to its colon."""
        return self.title.partition(":")[0]


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
        ),
        Row(
            name="raw",
            title="Raw images: the same, as bytes",
            kind="images",
            samples=20_000,
            aims=(
                Aim(of="workers", at_least=7, ours="workers"),
                Aim(of="in process", at_least=2, ours="in process"),
                Aim(of="in process", at_least=2, ours="penstock, in process, made into bytes"),
            ),
            limit="processes read JPEGs at random places of one file and keep nothing.",
        ),
        Store(
            name="store",
            title="Store: raw images, 20 ms of latency",
            kind="images",
            samples=20_000,
            aims=(
                Aim(of="any", at_least=1.5, figure="steady"),
                Aim(of="any", at_least=4, figure="with its start"),
            ),
            limit="ranges of 1 MiB of one object, 32 at once, by penstock's client. (litdata 0.2.76 reads a whole "
            "cached chunk of 64 MB for each window of its samples.)",
        ),
        Store(
            name="resume",
            title="The first batch from a state in mid-epoch",
            kind="images",
            samples=20_000,
            part=0,
            resume_at=0.5,
            limit="",
        ),
        Row(
            name="mixture",
            title="Mixture: raw images of 32 sources, 2 threads",
            kind="images",
            samples=20_000,
            aims=(Aim(of="penstock, 1 source", ours="penstock, 32 sources", at_least=0.95),),
            limit="",
        ),
        Row(
            name="windows",
            title="Video: random windows of 16 frames, 320 x 240 px, of H.264 clips of 64 frames, batches of 8",
            kind="clips",
            samples=160,
            batch=8,
            aims=(Aim(of="any", at_least=1.1, ours=f"{OURS}, {AS_IT_COMES}"),),
            limit="processes decode random windows of clips in memory (PyAV), from the keyframe before.",
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
        ),
        Row(
            name="tokens",
            title="Tokens: uint16 [2048], batches of 32",
            kind="tokens",
            samples=100_000,
            batch=32,
            aims=(Aim(of="any", at_least=1.5), Aim(of="workers", at_least=10)),
            limit="processes copy random records of one mapped file into one batch.",
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
)
"""The page's: those not in ROWS are of benchmarks/alone.py, without peers."""

NODE = ("crops", "tokens", "latents", "windows")
"""Those of `python -m benchmarks.node`, for each number of workers."""
