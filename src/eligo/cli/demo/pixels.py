"""Segmentation of rooms without and with tags; only the tags distinguish twin classes."""

from time import perf_counter

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.cli.demo.part import DemoSettings, MethodResult, Part
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

NAME, QUESTION = "pixels", "which words guide which pixel?"
METHODS: dict[str, Provenance] = {
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
    "{count} new rooms, each used twice: the second time with the other name of its twin classes "
    "(ring/hoop, gem/tile, moon/horn look identical). Score: mean IoU of the twins; without tags, "
    "33 % at most. The tagger's precision and recall are 90 %."
)


@torch.no_grad()
def run(settings: DemoSettings) -> Part:
    """Segment all rooms with every source of tags."""
    if SHIPPED not in shipped_models():
        return Part(NAME, QUESTION, "no trained model is shipped yet")
    segmenter = Segmenter.from_pretrained(device=torch.device(settings.device))
    source = _source(segmenter, settings)
    rooms = source.scenes("test")
    worlds = (rooms, rooms.renamed())
    rows = []
    with ProgressBar(NAME, len(METHODS)) as bar:
        for method, provenance in METHODS.items():
            pixels = sum(count_pixels(segmenter, source, world, provenance) for world in worlds)
            assert isinstance(pixels, Tensor)
            kept = "" if provenance == "none" else f"{_words(rooms, provenance):.1f} words"
            rows.append(
                MethodResult(method, *twin_iou(pixels, settings.seed), kept, is_ours=method == OURS)
            )
            bar.update(len(rows))
    note = _NOTE.format(count=len(rooms))
    picked = range(min(_RECORDS, len(rooms)))
    return Part(
        NAME,
        QUESTION,
        note,
        tuple(rows),
        tuple(_record(segmenter, source, worlds, r) for r in picked),
    )


def _source(segmenter: Segmenter, settings: DemoSettings) -> SceneSource:
    config = segmenter.config
    assert segmenter.encoder is None or isinstance(segmenter.encoder, WordsEncoder)
    data = ScenesDataConfig(
        scenes=ROOMS.replace({"seed": settings.seed}), test_images=settings.count(_ROOMS)
    )
    where = torch.device(settings.device)
    return SceneSource(data, config.inputs, config.text, segmenter.encoder, AugmentConfig(), where)


def _words(rooms: SceneSet, provenance: Provenance) -> float:
    """Return the mean number of tags of a room."""
    return float((rooms.tags(provenance).labels >= 0).sum(-1).float().mean())


def count_pixels(
    segmenter: Segmenter, source: SceneSource, rooms: SceneSet, provenance: Provenance
) -> Int[Tensor, "rooms classes classes"]:
    """Return the confusion matrix of each room."""
    matrices = []
    for rows in torch.arange(len(rooms), device=segmenter.device).split(_BATCH):
        text = source.words(rooms, rows, provenance, 0)
        batch = rooms.batch(rows, source.inputs, text)
        predicted = segmenter.model(
            batch.rgb, batch.depth, batch.depth_mask, batch.text, maps=False
        ).logits.argmax(1)
        count = segmenter.config.num_classes
        matrices += [
            confusion_matrix(classes, labels.long(), count)
            for classes, labels in zip(predicted, batch.labels, strict=True)
        ]
    return torch.stack(matrices).cpu()


def twin_iou(
    pixels: Int[Tensor, "rooms classes classes"], seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean IoU of the twins and its 95 % bootstrap interval over rooms."""
    rooms = len(pixels)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(rooms, (_RESAMPLES, rooms), generator=generator)
    times = torch.zeros(_RESAMPLES, rooms).scatter_add_(1, drawn, torch.ones(drawn.shape))
    times = torch.cat([torch.ones(1, rooms), times]).double()  # first without resampling
    counts = torch.einsum("sr,rij->sij", times, pixels.double())
    right = counts.diagonal(dim1=1, dim2=2)
    union = counts.sum(1) + counts.sum(2) - right
    means = (right / union)[:, _TWINS].nanmean(1)
    low, high = means[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(means[0]), low, high


def _record(
    segmenter: Segmenter, source: SceneSource, worlds: tuple[SceneSet, SceneSet], row: int
) -> ExplorerRecord:
    """Return the record of a room with its tags, without tags, and with its twins' other names."""
    rooms, renamed = worlds
    rendered = rooms.rendered
    batch = rooms.batch(torch.tensor([row], device=segmenter.device), source.inputs, None)
    depth = None
    if batch.depth is not None and batch.depth_mask is not None:
        depth = (batch.depth[0].cpu(), batch.depth_mask[0].cpu())
    rgb = rendered.rgb[row].cpu()
    untagged = segment(segmenter, rgb, depth)
    other = segment(segmenter, rgb, depth, tags=renamed.tags("oracle").text(row))
    began = perf_counter()
    tagged = segment(segmenter, rgb, depth, tags=rooms.tags("oracle").text(row))
    seconds = perf_counter() - began
    near, far = _DEPTH_RANGE
    truth, other_truth = (world.rendered.labels[row].cpu() for world in worlds)
    compared = (("without tags", untagged, truth), ("with tags", tagged, truth))
    if other.words != tagged.words:  # a room without twins has no other names
        compared += ((f"with other tags: {', '.join(other.words)}", other, other_truth),)
    return record(
        tagged,
        depth=depth_picture(rendered.depth[row].cpu(), near=near, far=far),
        labels={
            "without tags": untagged.labels, "twins' other names": other.labels, "the truth": truth
        },
        answers=[
            Answer(who, f"{(result.labels == labels).float().mean():.1%} of the pixels right")
            for who, result, labels in compared
        ],
        cost={"one forward": f"{1000 * seconds:.0f} ms"},
    )  # fmt: skip
