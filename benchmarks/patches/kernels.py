"""Speed of scoring all pairs of images and texts, against a plain loop over the texts.

    python -m benchmarks.patches.kernels                     CPU, one thread
    python -m benchmarks.patches.kernels --device cuda       one GPU
    python -m benchmarks.patches.kernels --images 16 --texts 16 --rounds 1
    python -m benchmarks.patches.kernels --exhaustive --device cuda --dtype float16 \\
        --images 5000 --texts 25000

The baseline is the published network written from its definition: for every text, select in all
images, gather, fold, match. It shares only the layers with eligo. The two alternate, and ratios are
of medians. In half precision the loop also ranks in half precision and so keeps a few other patches
than eligo, which ranks in float32: differences of scores are given for all pairs, and for pairs
with equal selections. Memory is the peak of one training step in a separate process: growth of the
resident set on a CPU, torch's allocations on a GPU.

`--exhaustive` is a whole evaluation by eligo alone: every image with every text, features streamed
from host memory through the device and the scores back; transfers count, encoding does not. Text
lengths are those of COCO's captions (mean 13, at most 52 word pieces).

Writes one entry per device, dtype and size to results/kernels.json and keeps the others.
"""

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import torch
import tyro
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import timed, timed_in_turns, used_bytes, write_results
from eligo.patches import CrossSparseAggrNet, PatchScores, TokenSparse

RESULTS = Path(__file__).parent / "results" / "kernels.json"
NUM_PATCHES, WIDTH, DENSE_WORDS, LONGEST = 196, 512, 115, 52
_COMPARED = 64  # images and texts whose selections are compared


@dataclass(frozen=True)
class Case:
    """Sizes of one comparison."""

    variant: Literal["open", "paper"]
    images: int
    texts: int
    words: int
    dtype: Literal["float32", "float16"] = "float32"
    device: str = "cpu"

    def build(self) -> tuple[CrossSparseAggrNet, tuple[Tensor, ...]]:
        """Return the network and its inputs, the same in every process."""
        torch.manual_seed(0)
        paper = self.variant == "paper"
        dtype = getattr(torch, self.dtype)
        net = CrossSparseAggrNet(WIDTH, NUM_PATCHES, use_paper_version=paper, compat=True)
        inputs = [
            torch.randn(self.images, NUM_PATCHES + 1, WIDTH),
            torch.randn(self.texts, self.words, WIDTH),
        ]
        if paper:
            inputs.append(torch.randn(self.texts, DENSE_WORDS, WIDTH))
        return net.to(self.device, dtype), tuple(part.to(self.device, dtype) for part in inputs)


def eligo_scores(net: CrossSparseAggrNet, images: Tensor, words: Tensor, *dense: Tensor) -> Tensor:
    """Return the scores of all pairs by eligo."""
    output = net(images, *_with_lengths(words, *dense))
    return output if isinstance(output, Tensor) else output[0]


def _with_lengths(*texts: Tensor) -> tuple[Tensor, ...]:
    """Add the lengths of texts without padding: words, lengths, dense words, lengths."""
    lengths = (torch.full((len(part),), part.shape[1], device=part.device) for part in texts)
    return tuple(both for pair in zip(texts, lengths, strict=True) for both in pair)


def loop_scores(
    net: CrossSparseAggrNet,
    images: Tensor,
    words: Tensor,
    *dense: Tensor,
    masks: list[Tensor] | None = None,
) -> Tensor:
    """Return the scores of all pairs by the plain loop; append the kept patches to `masks`."""
    cls, patches = images[:, :1], images[:, 1:]
    with torch.no_grad():
        units = F.normalize(patches, dim=-1)
        s_im = (F.normalize(patches.mean(1, keepdim=True), dim=-1) * units).sum(-1)
    scores = []
    for index, text in enumerate(words):
        with torch.no_grad():
            s_st = (F.normalize(text.mean(0), dim=-1) * units).sum(-1)
        if not dense:
            kept, extra = _select(patches, s_im + s_st, masks)
            folded = _fold(net, "weight", kept)
        else:
            with torch.no_grad():
                s_dt = (F.normalize(dense[0][index].mean(0), dim=-1) * units).sum(-1)
            first = _paper_score(net.sparse_net_cap, patches, s_im, s_st, s_dt)
            second = _paper_score(net.sparse_net_long, patches, s_im, s_dt, s_st)
            kept, extra = _select(patches, first, masks)
            other, other_extra = _select(patches, second, masks)
            folded = _fold(net, "weight_sparse", kept) + _fold(net, "weight_dense", other)
            extra = (extra + other_extra) / 2
        tokens = F.normalize(torch.cat([cls, folded, extra], 1), dim=-1)
        queries = F.normalize(text, dim=-1).expand(len(images), -1, -1)
        scores.append(_match(net, queries, tokens))
    return torch.stack(scores, 1)


def _select(patches: Tensor, score: Tensor, masks: list[Tensor] | None) -> tuple[Tensor, Tensor]:
    num_kept = -(-patches.shape[1] // 2)
    values, order = score.sort(dim=1, descending=True, stable=True)
    if masks is not None:
        masks.append(
            torch.zeros_like(score, dtype=torch.bool).scatter(1, order[:, :num_kept], True)
        )
    index = order.unsqueeze(-1).expand(-1, -1, patches.shape[-1])
    kept = patches.gather(1, index[:, :num_kept])
    dropped = patches.gather(1, index[:, num_kept:])
    shares = values[:, num_kept:].softmax(1).unsqueeze(-1).to(patches.dtype)
    return kept, (dropped * shares).sum(1, keepdim=True)


def _paper_score(net: TokenSparse, patches: Tensor, x: Tensor, y: Tensor, other: Tensor) -> Tensor:
    def min_max(a: Tensor) -> Tensor:
        low, high = a.amin(1, keepdim=True), a.amax(1, keepdim=True)
        return (a - low) / (high - low + 1e-8)

    guidance = min_max(y) + min_max(other) + 2 * min_max(x)
    return 0.5 * net.score_predictor(patches).squeeze(-1) + 0.25 * guidance


def _fold(net: CrossSparseAggrNet, name: str, kept: Tensor) -> Tensor:
    logits = getattr(net.aggr_net, name)(kept).transpose(1, 2) * net.aggr_net.scale
    return logits.softmax(-1) @ kept


def _match(net: CrossSparseAggrNet, words: Tensor, tokens: Tensor) -> Tensor:
    similarity = words @ tokens.transpose(1, 2)
    if not net.use_paper_version:
        similarity = F.leaky_relu(similarity, 0.1)
    score = torch.zeros(len(words), device=words.device, dtype=words.dtype)
    for maxima in (similarity.amax(2), similarity.amax(1)):
        score = score + maxima.mean(1)
        if net.use_paper_version:
            largest = maxima.topk(5, dim=1).values
            score = score + net.hrpa.relevance_mlp(largest).squeeze(-1)
    return score


def sharded_loop(net: CrossSparseAggrNet, images: Tensor, *texts: Tensor) -> Tensor:
    """Run the loop on 256 images at a time, to bound its memory."""
    return torch.cat([loop_scores(net, chunk, *texts) for chunk in images.split(256)])


SIDES: dict[str, Callable[..., Tensor]] = {"loop": sharded_loop, "eligo": eligo_scores}


def coco_lengths(count: int) -> Tensor:
    """Draw numbers of word pieces of captions, with [CLS] and [SEP]: mean 13, skewed, 7 to 52."""
    draw = torch.Generator().manual_seed(1)
    lengths = 7 + torch.empty(count).log_normal_(1.67, 0.5, generator=draw)
    lengths[-1] = LONGEST
    return lengths.round().clamp(7, LONGEST).long()


def _exhaustive(case: Case, chunk: int) -> dict[str, float]:
    """Time scoring every image with every text, from host memory and back, with our defaults."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    paper = case.variant == "paper"
    net = CrossSparseAggrNet(WIDTH, NUM_PATCHES, use_paper_version=paper, num_prefix_tokens=1)
    net = net.to(case.device, dtype).eval()
    pinned = case.device == "cuda"

    def features(*shape: int) -> Tensor:
        values = torch.empty(*shape, dtype=dtype, pin_memory=pinned)
        for rows in values.split(1000):  # drawn in pieces: float32 of all would not fit
            rows.copy_(torch.randn(rows.shape))
        return values

    images = features(case.images, NUM_PATCHES + 1, WIDTH)
    lengths = coco_lengths(case.texts)
    words = features(case.texts, int(lengths.max()), WIDTH)
    dense = features(case.images, DENSE_WORDS, WIDTH) if paper else None
    warm = min(case.images, 8)
    _stream(net, images[:warm], words, lengths, None if dense is None else dense[:warm], warm)
    seconds, scores = timed(partial(_stream, net, images, words, lengths, dense, chunk))
    assert scores.shape == (case.images, case.texts)
    assert bool(scores.isfinite().all())
    given = [images, words] if dense is None else [images, words, dense]
    return {
        "seconds": seconds,
        "million_pairs_per_second": scores.numel() / seconds / 1e6,
        "mean_words": float(lengths.float().mean()),
        "longest": int(lengths.max()),
        "host_gib": sum(part.numel() * part.element_size() for part in given) / 2**30,
        "peak_device_gib": torch.cuda.max_memory_allocated() / 2**30 if pinned else 0.0,
    }


@torch.no_grad()
def _stream(
    net: CrossSparseAggrNet,
    images: Tensor,
    words: Tensor,
    lengths: Tensor,
    dense: Tensor | None,
    chunk: int,
) -> Tensor:
    """Return the scores in host memory; texts go to the device once, images in chunks."""
    device = next(net.parameters()).device
    words, lengths = words.to(device, non_blocking=True), lengths.to(device)
    pinned = device.type == "cuda"
    scores = torch.empty(len(images), len(words), pin_memory=pinned)
    for start in range(0, len(images), chunk):
        rows = slice(start, start + chunk)
        long = ()
        if dense is not None:
            long = _with_lengths(dense[rows].to(device, non_blocking=True))
        output = net(images[rows].to(device, non_blocking=True), words, lengths, *long)
        assert isinstance(output, PatchScores)
        scores[rows].copy_(output.scores, non_blocking=True)
    if pinned:
        torch.cuda.synchronize()
    return scores


@torch.no_grad()
def _speed(case: Case, rounds: int) -> dict[str, float]:
    net, inputs = case.build()
    net.eval()
    loop_scores(net, *(part[:16] for part in inputs))  # warm-up; all steps of the loop are alike
    runs = {name: partial(side, net, *inputs) for name, side in SIDES.items()}
    outputs = {"eligo": runs["eligo"]()}  # warm-up
    seconds = timed_in_turns(runs, rounds, case.device)
    outputs["loop"] = runs["loop"]()
    medians = {name: median(values) for name, values in seconds.items()}
    ratios = [loop / fast for loop, fast in zip(seconds["loop"], seconds["eligo"], strict=True)]
    return {
        "loop_seconds": medians["loop"],
        "eligo_seconds": medians["eligo"],
        "speedup": medians["loop"] / medians["eligo"],
        "lowest_speedup": min(ratios),
        "highest_speedup": max(ratios),
        "largest_difference": float((outputs["loop"] - outputs["eligo"]).abs().max()),
        **_at_equal_selection(net, *(part[:_COMPARED] for part in inputs)),
    }


def _at_equal_selection(
    net: CrossSparseAggrNet, images: Tensor, words: Tensor, *dense: Tensor
) -> dict[str, float]:
    """Return the share of pairs with equal selections, and the largest difference of scores."""
    masks: list[Tensor] = []
    loop = loop_scores(net, images, words, *dense, masks=masks)
    output = net(images, *_with_lengths(words, *dense), return_selection=True)
    assert isinstance(output, PatchScores)
    same = torch.ones_like(loop, dtype=torch.bool)
    selections = [part for part in (output.sparse, output.dense) if part is not None]
    for which, selection in enumerate(selections):
        of_loop = torch.stack(masks[which :: len(selections)], 1)  # (images, texts, patches)
        same &= (of_loop == selection.kept_mask).all(-1)
    difference = (loop.float() - output.scores).abs()[same]
    return {
        "equal_selections": float(same.float().mean()),
        "difference_at_equal_selection": float(difference.max()) if len(difference) else 0.0,
    }


def _memory(case: Case) -> dict[str, float]:
    """Measure the peak of one training step, each side in a new process."""
    result = {}
    for name in SIDES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, peak = pool.apply(_step, (case, name))
        result |= {f"{name}_peak_mib": peak / 2**20, f"{name}_seconds": seconds}
    return result | {"share": result["eligo_peak_mib"] / result["loop_peak_mib"]}


def _step(case: Case, name: str) -> tuple[float, float]:
    """Return seconds of one forward and backward pass, and its peak bytes above its inputs."""
    torch.set_num_threads(1)
    net, inputs = case.build()
    net.train()
    inputs[0].requires_grad_()
    before = used_bytes(case.device)
    seconds, _ = timed(lambda: SIDES[name](net, *inputs).sum().backward(), case.device)
    on_gpu = case.device == "cuda"
    after = torch.cuda.max_memory_allocated() if on_gpu else used_bytes(case.device)
    return seconds, after - before


def main(
    device: Annotated[Literal["cpu", "cuda"], tyro.conf.arg(help="What to measure on.")] = "cpu",
    images: int = 64,
    texts: int = 64,
    words: int = 30,
    dtype: Literal["float32", "float16"] = "float32",
    variants: tuple[Literal["open", "paper"], ...] = ("open", "paper"),
    rounds: Annotated[int, tyro.conf.arg(help="Measurements of each side.")] = 5,
    memory: Annotated[bool, tyro.conf.arg(help="Also measure training memory.")] = True,
    exhaustive: Annotated[bool, tyro.conf.arg(help="A whole evaluation, by eligo alone.")] = False,
    chunk: Annotated[int, tyro.conf.arg(help="Images on the device at a time (exhaustive).")] = 500,
    out: Annotated[Path, tyro.conf.arg(help="The result file.")] = RESULTS,
) -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    results = {}
    for variant in variants:
        case = Case(variant, images, texts, LONGEST if exhaustive else words, dtype, device)
        measured = _exhaustive(case, chunk) if exhaustive else _speed(case, rounds)
        results[variant] = {"case": asdict(case), **measured}
        if memory and not exhaustive:
            results[variant]["training"] = _memory(case)
        print(variant, json.dumps(results[variant], indent=2))
    key = f"{'exhaustive ' if exhaustive else ''}{device} {dtype} {images}x{texts}"
    write_results(out, results, device, key=key)


if __name__ == "__main__":
    tyro.cli(main)
