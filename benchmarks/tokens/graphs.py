"""`python -m benchmarks.tokens.graphs`: prompts and answers as CUDA graphs (docs/tokens_speed.md).

LLaVA of three sizes with random weights, one image and `_NUM_TEXT` text tokens per row. Variants:
the stock model, `Plan()` (unpruned) with graphs, and the default plan without and with graphs. All
run through stock `generate`, in milliseconds of wall-clock time up to the end of the last kernel:
`first`, an answer of one token; `answer`, one of `_NEW` tokens; `token`, the difference by token;
`forward`, the model without `generate`, up to the logits of the first token; `selector`, all
reducers. `limit` is what the arithmetic or the weights alone would take on the given hardware.
Rows are written as they are done; `--seconds` starts no row after that time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks.tokens.speed import (
    PARTS,
    Shape,
    Target,
    default_plan,
    random_inputs,
    random_llava,
)
from eligo.cli import run_script
from eligo.cli.console import OutFile, print_text, write_result_file
from eligo.cli.flags import Count
from eligo.errors import InputError
from eligo.io.reading import read_json, reading
from eligo.pretrained.devices import resolve_device
from eligo.tokens.cost.plan_cost import plan_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.hooks.model_graphs import drop_graphs, graph_stats
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.plan import Plan

_NUM_TEXT = 100
_NEW = 32
_LARGE = 8  # rows; larger batches are measured fewer times
_MIB = 2**20


@dataclass(frozen=True)
class Variant:
    """A way to run the model."""

    name: str
    plan: Plan | None
    graphs: bool = False

    @property
    def warm_up(self) -> int:
        """Calls that are not counted: with graphs, as it is, recorded, and replayed."""
        return 3 if self.graphs else 1

    def context(self, model: Any) -> Any:
        """Return what the model runs in."""
        return nullcontext() if self.plan is None else pruning(model, self.plan, graphs=self.graphs)


def run(
    shapes: tuple[str, ...] = ("llava15", "llava05", "llava13"),
    batch_size: tuple[Count, ...] = (1, 8, 4, 32),
    rounds: Count = 10,
    answers: Count = 3,
    lengths: Path | None = None,
    tflops: float = 790.0,
    terabytes: float = 4.3,
    seconds: float = 230.0,
    device: str = "auto",
    quick: bool = False,
    out: OutFile | None = None,
) -> None:
    """Time prompts and answers with and without CUDA graphs.

    Args:
        shapes: llava15 (7B), llava05 (0.5B), llava13 (13B) or narrow, in this order.
        batch_size: Rows of a batch, each number in turn.
        rounds: Measurements of prompts, after a warm-up.
        answers: Measurements of whole answers, after a warm-up.
        lengths: A JSON list of the numbers of text tokens of questions; by default 500 generated
            ones.
        tflops: What the hardware computes per second, for the limit.
        terabytes: What it reads per second, for the limit.
        seconds: Start no row after this time.
        device: Where to run: auto, cpu or cuda; a CPU records nothing.
        quick: A test run on a narrow model.
        out: Also write the results, with date, hardware and command, to this JSON file.
    """
    start, place = time.perf_counter(), resolve_device(device)
    if quick:
        shapes, batch_size, rounds, answers = ("narrow",), (1, 2), 1, 1
    if unknown := set(shapes) - set(get_args(Shape)):
        raise InputError(f"--shapes: got {sorted(unknown)}, expected {', '.join(get_args(Shape))}")
    texts = question_lengths(lengths, 8 if quick else 500)
    document: dict[str, Any] = {"rows": [], "replays": [], "targets": [], "skipped": []}
    for shape in shapes:
        if time.perf_counter() - start > seconds:
            document["skipped"].append(shape)
            continue
        model: Any = random_llava(shape, place)  # pyright: ignore[reportArgumentType]
        plan = default_plan(model, PARTS[shape], _NUM_TEXT)
        variants = [
            Variant("stock", None),
            Variant("unpruned, graphs", Plan(), graphs=True),
            Variant("pruned", plan),
            Variant("pruned, graphs", plan, graphs=True),
        ]
        for size in batch_size:
            if time.perf_counter() - start > seconds:
                document["skipped"].append(f"{shape}, batch {size}")
                continue
            rows = time_batch(model, variants, size, rounds, answers)
            limits = limits_of(model, plan, size, tflops, terabytes)
            for row in rows:
                row["limit_ms"] = limits[row["variant"].startswith("pruned")]
                row["share_of_limit"] = row["limit_ms"] / row["forward_ms"]
                document["rows"].append({"shape": shape, "batch": size, **row})
                print_text(_line(document["rows"][-1]))
            targets = targets_of({row["variant"]: row for row in rows}, size)
            document["targets"] += [{"shape": shape, **one.as_plain()} for one in targets]
            write_result_file(out, place, document)
            drop_graphs(model)
        if shape == shapes[0]:
            document["replays"].append({"shape": shape, **replay_share(model, plan, texts)})
            print_text(f"replays: {document['replays'][-1]}")
            write_result_file(out, place, document)
        del model, plan, variants
    for row in document["targets"]:
        word = "reached" if row["met"] else "not reached"
        print_text(f"{row['shape']}: {row['name']}: {row['value']:.3g} ({row['bound']}): {word}")
    write_result_file(out, place, document)


def time_batch(
    model: Any, variants: Sequence[Variant], size: int, rounds: int, answers: int
) -> list[dict[str, Any]]:
    """Return one row per variant; variants alternate, so that load affects all of them."""
    device = next(model.parameters()).device
    inputs = [random_inputs(model, size, _NUM_TEXT) for _ in range(2)]  # takes turns
    times: dict[str, dict[str, list[float]]] = {one.name: {} for one in variants}

    def measure(name: str, work: Callable[..., Any], turns: int) -> None:
        for one in variants:
            for turn in range(one.warm_up):
                work(one, inputs[turn % 2])
        for turn in range(turns if size <= _LARGE else -(-turns // 4)):
            for one in variants:
                _wait(device)
                begin = time.perf_counter()
                selector = work(one, inputs[turn % 2])
                _wait(device)
                found = times[one.name]
                found.setdefault(name, []).append(1000 * (time.perf_counter() - begin))
                if isinstance(selector, float):
                    found.setdefault("selector", []).append(selector)

    peak = {}
    with torch.no_grad():
        measure("forward", partial(_forward, model), rounds)
        measure("first", partial(_generate, model, 1), rounds)
        measure("answer", partial(_generate, model, _NEW), answers)
        for one in variants:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            _generate(model, _NEW, one, inputs[0])
            _wait(device)
            if device.type == "cuda":
                peak[one.name] = torch.cuda.max_memory_allocated(device) / _MIB
    stats, rows = graph_stats(model), []
    for one in variants:
        found = {f"{name}_ms": median(values) for name, values in times[one.name].items()}
        found["token_ms"] = (found["answer_ms"] - found["first_ms"]) / (_NEW - 1)
        row = {"variant": one.name, **found, "peak_mib": peak.get(one.name)}
        if "selector_ms" in found:
            row["selector_share"] = found["selector_ms"] / found["forward_ms"]
        if one.graphs:
            row["graphs_of_both"] = stats["graphs"]
            row["graph_mib_of_both"] = stats["bytes"] / _MIB
        rows.append(row)
    return rows


def _forward(model: Any, variant: Variant, inputs: Mapping[str, Tensor]) -> float | None:
    """Run a prompt; return the milliseconds of the reducers."""
    with variant.context(model) as trace:
        model(**inputs, past_key_values=DynamicCache(), use_cache=True, logits_to_keep=1)
        _wait(inputs["input_ids"].device)
        return trace.selector_ms if trace is not None and trace.stages else None


def _generate(model: Any, tokens: int, variant: Variant, inputs: Mapping[str, Tensor]) -> None:
    with variant.context(model):
        model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)


def limits_of(
    model: Any, plan: Plan, size: int, tflops: float, terabytes: float
) -> tuple[float, float]:
    """Return milliseconds of a prompt, unpruned and pruned, if only arithmetic or weights count."""
    cost = plan_cost(HostShape.of(model), plan, _NUM_TEXT)
    read = 1e3 * sum(x.nbytes for x in model.parameters()) / (terabytes * 1e12)
    full = cost.tower + cost.projector_full + cost.llm_full
    pruned = cost.tower + cost.projector_full + cost.projector + (cost.selector or 0) + cost.llm
    to_ms = 1e3 * size / (tflops * 1e12)
    return max(full * to_ms, read), max(pruned * to_ms, read)


def targets_of(rows: Mapping[str, Mapping[str, Any]], size: int) -> list[Target]:
    """Return the targets of one batch size."""
    stock, full, pruned = rows["stock"], rows["unpruned, graphs"], rows["pruned, graphs"]

    def speedup(name: str, slow: Mapping[str, Any], key: str, bound: float) -> Target:
        numbers = {"before_ms": slow[key], "after_ms": pruned[key]}
        return Target(f"{name}, batch {size}", slow[key] / pruned[key], bound, numbers)

    share = Target(
        f"selector share, batch {size}",
        pruned["selector_share"],
        0.04 if size == 1 else 0.02,
        {"selector_ms": pruned["selector_ms"], "forward_ms": pruned["forward_ms"]},
        at_most=True,
    )
    found = []
    if size == 1:
        found = [
            speedup("first token, of unpruned with graphs", full, "first_ms", 1.5),
            speedup("first token, of stock", stock, "first_ms", 1.6),
            speedup(f"answer of {_NEW} tokens, of stock", stock, "answer_ms", 2.0),
        ]
    if size == 4:
        found = [speedup("first token, of stock", stock, "first_ms", 2.2)]
    if size == 8:
        found = [speedup("first token, of stock", stock, "first_ms", 2.2)]
    if size in (1, 8):
        found += [speedup("token, of unpruned with graphs", full, "token_ms", 1.0), share]
    return found


def question_lengths(file: Path | None, count: int) -> list[int]:
    """Return numbers of text tokens: those of a file, or `count` generated ones."""
    if file is None:
        source = torch.Generator().manual_seed(0)
        words = torch.randn(count, generator=source).mul(0.35).exp().mul(9)  # of a question
        return (40 + words.clamp(2, 60)).int().tolist()  # after a template
    with reading(file, "a JSON list of numbers of text tokens"):
        return [int(length) for length in read_json(file)]


def replay_share(model: Any, plan: Plan, texts: Sequence[int]) -> dict[str, Any]:
    """Return which share of prompts was replayed, one at a time, each in a context of its own."""
    drop_graphs(model)
    before = graph_stats(model)["replays"]
    variant = Variant("pruned, graphs", plan, graphs=True)
    with torch.no_grad():
        for text in texts:
            _forward(model, variant, random_inputs(model, 1, text))
    stats = graph_stats(model)
    return {
        "questions": len(texts),
        "share": (stats["replays"] - before) / len(texts),
        "graphs": stats["graphs"],
        "graph_mib": stats["bytes"] / _MIB,
    }


def _line(row: Mapping[str, Any]) -> str:
    numbers = ("forward_ms", "first_ms", "token_ms", "answer_ms")
    times = ", ".join(f"{name.removesuffix('_ms')} {row[name]:.2f}" for name in numbers)
    return f"{row['shape']}, batch {row['batch']}, {row['variant']}: {times} ms"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
