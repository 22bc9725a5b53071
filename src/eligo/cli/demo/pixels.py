"""Rooms segmented without and with tags: of two names for one look, only the tags tell which."""

from time import perf_counter

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.cli.demo.part import Part, Row, Work
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.pixels.config import AugmentConfig, ScenesDataConfig
from eligo.pixels.data.scene_source import SceneSet, SceneSource
from eligo.pixels.inference.predict import segment
from eligo.pixels.inference.record import record
from eligo.pixels.inference.segmenter import SHIPPED, Segmenter
from eligo.pixels.metrics import confusion_matrix
from eligo.pixels.text.batch import Provenance
from eligo.pixels.text.encoders import WordsEncoder
from eligo.pretrained.load import shipped_models
from eligo.report.pictures import depth_picture
from eligo.scenes.config import ROOMS
from eligo.scenes.words import LABELS, TWINS
from eligo.train.progress import ProgressBar

NAME, ASKS = "pixels", "which words guide which pixel?"
ARMS: dict[str, Provenance] = {
    "no tags": "none",
    "another room's tags": "shuffled",
    "a tagger's (90 %)": "predicted",
    "its own tags": "oracle",
}
OURS = "a tagger's (90 %)"
_ROOMS, _BATCH, _RECORDS = 96, 12, 3
_RESAMPLES = 1000
_TWINS = [LABELS.index(name) for pair in TWINS.items() for name in pair]
_DEPTH_RANGE = (1.0, 6.0)  # metres
_NOTE = (
    "{count} fresh rooms, each twice: the second time its twins (ring or hoop, gem or tile, moon "
    "or horn: one look, two names) go by their other name. Score: mean IoU of the twins; looks "
    "alone can give 33 % at most. The tagger's precision and recall are 90 %."
)


@torch.no_grad()
def run(work: Work) -> Part:
    """Segment all rooms with every kind of tags."""
    if SHIPPED not in shipped_models():
        return Part(NAME, ASKS, "no trained model is shipped yet")
    segmenter = Segmenter.from_pretrained(device=torch.device(work.device))
    source = _source(segmenter, work)
    rooms = source.scenes("test")
    worlds = (rooms, rooms.renamed())
    rows = []
    with ProgressBar(NAME, len(ARMS)) as bar:
        for arm, provenance in ARMS.items():
            pixels = sum(count_pixels(segmenter, source, world, provenance) for world in worlds)
            assert isinstance(pixels, Tensor)
            kept = "" if provenance == "none" else f"{_words(rooms, provenance):.1f} words"
            rows.append(Row(arm, *twin_iou(pixels, work.seed), kept, is_ours=arm == OURS))
            bar.update(len(rows))
    note = _NOTE.format(count=len(rooms))
    picked = range(min(_RECORDS, len(rooms)))
    return Part(
        NAME, ASKS, note, tuple(rows), tuple(_record(segmenter, source, worlds, r) for r in picked)
    )


def _source(segmenter: Segmenter, work: Work) -> SceneSource:
    config = segmenter.config
    assert segmenter.encoder is None or isinstance(segmenter.encoder, WordsEncoder)
    data = ScenesDataConfig(
        scenes=ROOMS.replace({"seed": work.seed}), test_images=work.count(_ROOMS)
    )
    where = torch.device(work.device)
    return SceneSource(data, config.inputs, config.text, segmenter.encoder, AugmentConfig(), where)


def _words(rooms: SceneSet, provenance: Provenance) -> float:
    """Tags of a room, on average."""
    return float((rooms.tags(provenance).labels >= 0).sum(-1).float().mean())


def count_pixels(
    segmenter: Segmenter, source: SceneSource, rooms: SceneSet, provenance: Provenance
) -> Int[Tensor, "rooms classes classes"]:
    """Pixels of each room by label and prediction."""
    found = []
    for rows in torch.arange(len(rooms), device=segmenter.device).split(_BATCH):
        text = source.words(rooms, rows, provenance, 0)
        batch = rooms.batch(rows, source.inputs, text)
        said = segmenter.model(
            batch.rgb, batch.depth, batch.depth_mask, batch.text, maps=False
        ).logits.argmax(1)
        count = segmenter.config.num_classes
        found += [
            confusion_matrix(one, labels.long(), count)
            for one, labels in zip(said, batch.labels, strict=True)
        ]
    return torch.stack(found).cpu()


def twin_iou(
    pixels: Int[Tensor, "rooms classes classes"], seed: int = 0
) -> tuple[float, float, float]:
    """Mean IoU of the twins, and its 95 % interval: rooms are drawn with replacement."""
    rooms = len(pixels)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(rooms, (_RESAMPLES, rooms), generator=generator)
    times = torch.zeros(_RESAMPLES, rooms).scatter_add_(1, drawn, torch.ones(drawn.shape))
    times = torch.cat([torch.ones(1, rooms), times]).double()  # first as they are
    counts = torch.einsum("sr,rij->sij", times, pixels.double())
    right = counts.diagonal(dim1=1, dim2=2)
    union = counts.sum(1) + counts.sum(2) - right
    means = (right / union)[:, _TWINS].nanmean(1)
    low, high = means[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(means[0]), low, high


def _record(
    segmenter: Segmenter, source: SceneSource, worlds: tuple[SceneSet, SceneSet], row: int
) -> ExplorerRecord:
    """A room with its own tags; beside it, what was said without any and with other names."""
    rooms, renamed = worlds
    rendered = rooms.rendered
    batch = rooms.batch(torch.tensor([row], device=segmenter.device), source.inputs, None)
    depth = None
    if batch.depth is not None and batch.depth_mask is not None:
        depth = (batch.depth[0].cpu(), batch.depth_mask[0].cpu())
    rgb = rendered.rgb[row].cpu()
    silent = segment(segmenter, rgb, depth)
    other = segment(segmenter, rgb, depth, tags=renamed.tags("oracle").text(row))
    began = perf_counter()
    told = segment(segmenter, rgb, depth, tags=rooms.tags("oracle").text(row))
    seconds = perf_counter() - began
    near, far = _DEPTH_RANGE
    truth, other_truth = (world.rendered.labels[row].cpu() for world in worlds)
    judged = (("without tags", silent, truth), ("with tags", told, truth))
    if other.words != told.words:  # a room without a twin has no other names
        judged += ((f"told {', '.join(other.words)}", other, other_truth),)
    return record(
        told,
        depth=depth_picture(rendered.depth[row].cpu(), near=near, far=far),
        labels={
            "without tags": silent.labels, "twins' other names": other.labels, "the truth": truth
        },
        answers=[
            Answer(who, f"{float((one.labels == wanted).float().mean()):.1%} of the pixels right")
            for who, one, wanted in judged
        ],
        cost={"one forward": f"{1000 * seconds:.0f} ms"},
    )  # fmt: skip
