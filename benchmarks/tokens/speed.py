"""`python -m benchmarks.tokens.speed`: times for docs/tokens_speed.md.

`llava15` is LLaVA-1.5-7B with random weights: times do not depend on their values, so nothing is
downloaded. `tiny` times whole answers of the LLaVA that comes with eligo on a CPU, one question at
a time, through stock `generate`; the time to enter `pruning` is included.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.studies import reached_or_not
from eligo.cli import run_script
from eligo.cli.console import (
    OutFile,
    messages,
    print_result,
    print_text,
    results,
    write_result_file,
)
from eligo.cli.flags import Count
from eligo.cli.tokens.bench import timing_table
from eligo.errors import InputError
from eligo.pretrained.devices import resolve_device
from eligo.scenes.config import SceneConfig
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.flops import Cost
from eligo.tokens.cost.plan_cost import plan_cost
from eligo.tokens.cost.proposals import default_schedule
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import Collator, SceneExamples
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.bench import (
    WARM_UP,
    BenchCase,
    Timings,
    predicted_speedup,
    run_rounds,
    timing_rows,
)
from eligo.tokens.inference.load import load_host
from eligo.tokens.inference.resolve import load_plan
from eligo.tokens.methods import build
from eligo.tokens.model.layer_pruners import LayerPruners, PrunersShape
from eligo.tokens.model.token_merger import MergerKind, MergerShape, TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.train.progress import ProgressBar

SHARE_OF_PREDICTED, SELECTOR_SHARE, ANSWER_SPEEDUP = 0.85, 0.03, 1.5
"""Targets: speed-up / that predicted by FLOPs; selector / prefill; speed-up of an answer."""
_RANDOM_HOST = "The model has random weights: the times are real, the answers are meaningless."
_RANDOM_PLAN = "Merger and pruners have random weights: the choice of tokens is meaningless."
_NUM_TEXT = 100  # text tokens of a prompt
_MAX_NEW_TOKENS = 8
_NUM_QUESTIONS = 6  # one of each family

Shape = Literal["llava15", "llava05", "llava13", "narrow"]
_TOWER: Mapping[str, Mapping[str, Any]] = {
    "llava15": {
        "image_size": 336, "patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "projection_dim": 768,
    },
    "narrow": {
        "image_size": 84, "patch_size": 14, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": 16,
    },
}  # fmt: skip
_TEXT: Mapping[Shape, Mapping[str, Any]] = {
    "llava05": {  # Qwen2-0.5B
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    "llava15": {
        "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
    },
    "llava13": {
        "vocab_size": 32064, "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
        "max_position_embeddings": 4096,
    },
    "narrow": {
        "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """Kind and width of the learned parts."""

    kind: MergerKind
    dim: int


PARTS: Mapping[str, Parts] = {
    "llava15": Parts("simple", 512),  # configs/tokens/llava15.yaml
    "llava05": Parts("simple", 512),
    "llava13": Parts("simple", 512),
    "tiny": Parts("question_aware", 128),
    "narrow": Parts("simple", 8),
}


@dataclass(frozen=True)
class Target:
    """A measured value and its target."""

    name: str
    value: float
    bound: float
    numbers: Mapping[str, float]
    """Numbers that value and bound were computed from."""
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.value < self.bound if self.at_most else self.value >= self.bound

    def as_plain(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "met": self.met}


def run(
    shape: Literal["llava15", "tiny", "narrow"] = "llava15",
    plan: str | None = None,
    batch_size: tuple[Count, ...] = (1, 8),
    rounds: Count = 20,
    threads: Count = 2,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Time the default plan and FastV in a LLaVA-1.5-7B with random weights, or the tiny LLaVA.

    Args:
        shape: llava15; tiny: whole answers of the shipped LLaVA on the CPU; narrow: a quick test.
        plan: For tiny: a plan's folder, or the name of a shipped one; by default the default
            schedule with random weights.
        batch_size: Prompts at a time, each number in turn; tiny answers one question at a time.
        rounds: Measurements of each case, after a warm-up.
        threads: CPU threads.
        device: Where to run: auto, cpu or cuda; tiny runs on the CPU.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    if plan is not None and shape != "tiny":
        raise InputError(f"--plan needs --shape tiny; {shape} is timed with the default plan")
    if shape == "tiny" and device not in ("auto", "cpu"):
        raise InputError(f"--device: got {device!r}, expected cpu: tiny is timed on the CPU")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        place = resolve_device("cpu" if shape == "tiny" else device)
        if shape == "tiny":
            document = _time_tiny(plan, rounds)
        else:
            document = _time_shape(shape, batch_size, rounds, place)
    finally:
        torch.set_num_threads(before)
    document = {"shape": shape, "rounds": rounds, "threads": threads, **document}
    if json:
        print_result(document, json=True)
    else:
        results().print(timing_table(document["rows"], f"{shape}, {document['dtype']}"))
        for row in document["targets"]:
            target = f"target {'<' if row['at_most'] else '>='} {row['bound']:.3g}"
            print_text(f"{row['name']}: {row['value']:.3g}, {target}: {reached_or_not(row['met'])}")
        for note in document["notes"]:
            messages().print(note, highlight=False, soft_wrap=True)
    write_result_file(out, place, document)


def _time_shape(
    shape: Shape, batches: tuple[int, ...], rounds: int, device: torch.device
) -> dict[str, Any]:
    model = random_llava(shape, device)
    host = HostShape.of(model)
    assert host.vision is not None
    two_stage = default_plan(model, PARTS[shape], _NUM_TEXT)
    fastv = Plan(cuts=[Cut(2, build("fastv"), host.vision // 2)])
    cost = plan_cost(host, two_stage, _NUM_TEXT)
    cases = [
        BenchCase("unpruned", decodes=True),
        BenchCase("two-stage", two_stage, decodes=True),
        BenchCase("fastv", fastv),
        BenchCase("unpruned, eager", attention="eager"),
        BenchCase("fastv, eager", fastv, attention="eager"),
    ]
    rows, targets = [], []
    for size in batches:
        inputs = random_inputs(model, size, _NUM_TEXT)
        with ProgressBar(f"batch {size}", len(cases) * (WARM_UP + rounds)) as bar:
            timings = run_rounds(model, cases, inputs, rounds, bar.update)
        rows += timing_rows(timings, size)
        if size == max(batches):  # small batches are bound by kernel launches
            targets = speed_targets(timings["unpruned"], timings["two-stage"], cost, size)
    return {
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "text": _NUM_TEXT,
        "cost": cost.as_plain(),
        "cost_fastv": plan_cost(host, fastv, _NUM_TEXT).as_plain(),
        "rows": rows,
        "targets": [target.as_plain() for target in targets],
        "notes": [_RANDOM_HOST, _RANDOM_PLAN],
    }


def speed_targets(full: Timings, pruned: Timings, cost: Cost, batch: int) -> list[Target]:
    """Return speed-up against its prediction, and the selector's share of the pruned prefill."""
    t_full, t_pruned = full["ttft"].p50, pruned["ttft"].p50
    predicted = predicted_speedup(full, cost)
    selector, prefill = pruned["selector"].p50, pruned["prefill"].p50
    return [
        Target(
            f"TTFT speed-up, batch {batch}",
            t_full / t_pruned,
            SHARE_OF_PREDICTED * predicted,
            {
                "ttft_full_ms": t_full,
                "ttft_pruned_ms": t_pruned,
                "llm_full_ms": full["llm"].p50,
                "flops_reduction_llm": cost.reduction_llm,
                "predicted": predicted,
                "share_of_predicted": t_full / t_pruned / predicted,
            },
        ),
        Target(
            f"selector share of prefill, batch {batch}",
            selector / prefill,
            SELECTOR_SHARE,
            {
                "selector_ms": selector,
                "prefill_pruned_ms": prefill,
                "share_of_full_prefill": selector / full["prefill"].p50,
            },
            at_most=True,
        ),
    ]


def random_llava(shape: Shape, device: torch.device) -> Any:
    """Return a LLaVA of that shape with SDPA: bfloat16 on a GPU, float32 on a CPU."""
    from transformers import (
        AutoModelForImageTextToText,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
    )

    text = LlamaConfig(**_TEXT[shape], tie_word_embeddings=False)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_TOWER["narrow" if shape == "narrow" else "llava15"]),
        text_config=text,
        image_token_index=_TEXT[shape]["vocab_size"] - 1,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    return model.eval().requires_grad_(False)


def random_inputs(model: Any, batch: int, text: int) -> dict[str, Tensor]:
    """Return prompts of one image and `text` tokens without padding."""
    parameter, config = next(model.parameters()), model.config
    vision = HostShape.of(model).vision
    assert vision is not None
    words = torch.randint(3, config.image_token_id, (batch, text), device=parameter.device)
    image = words.new_full((batch, vision), config.image_token_id)
    input_ids = torch.cat([words[:, :1], image, words[:, 1:]], dim=1)
    side = config.vision_config.image_size
    pixels = torch.randn((batch, 3, side, side), device=parameter.device, dtype=parameter.dtype)
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "pixel_values": pixels,
    }


def default_plan(model: Any, parts: Parts, text: int) -> Plan:
    """Return the default schedule with an untrained merger and untrained pruners."""
    host = HostShape.of(model)
    assert host.vision is not None
    schedule = default_schedule(host, host.vision, text)
    width, device = host.layer.width, next(model.parameters()).device
    aware = parts.kind == "question_aware"
    merger = TokenMerger(
        MergerShape(
            kind=parts.kind,
            width=host.feature_width,
            question_width=width if aware else None,
            dim=parts.dim,
        )
    )
    layers = tuple(layer for layer, _ in schedule.cuts)
    pruners = LayerPruners(PrunersShape(layers=layers, width=width, dim=parts.dim))
    for part in (merger, pruners):
        part.to(device).eval().requires_grad_(False)
    cuts = [Cut(layer, pruners[layer], budget) for layer, budget in schedule.cuts]
    return Plan(Stage1(merger, schedule.merged), cuts)


def _time_tiny(plan: str | None, rounds: int) -> dict[str, Any]:
    model, processor = load_host(HostConfig())
    chosen = load_plan(plan) if plan else default_plan(model, PARTS["tiny"], _NUM_TEXT)
    with ProgressBar("answers", 2 * (WARM_UP + rounds)) as bar:
        timings, lengths = time_answers(model, processor, chosen, rounds, bar.update)
    rows = timing_rows(timings, 1, "answer")
    return {
        "plan": plan,
        "dtype": "float32",
        "rows": [row | {"mean_new_tokens": lengths[row["variant"]]} for row in rows],
        "targets": [answer_target(timings).as_plain()],
        "notes": [] if plan else [_RANDOM_PLAN],
    }


def time_answers(
    model: Any,
    processor: Any,
    plan: Plan,
    rounds: int,
    on_turn: Callable[[int], None] = lambda _done: None,
) -> tuple[dict[str, Timings], dict[str, float]]:
    """Return milliseconds per answer, unpruned and pruned, and mean lengths of the answers."""
    side = model.config.vision_config.image_size
    examples = SceneExamples(SceneConfig(height=side, width=side), "test", _NUM_QUESTIONS)
    batches = [Collator(processor)([examples[index]]) for index in range(_NUM_QUESTIONS)]
    plans = {"unpruned": None, "pruned": plan}
    timings = {name: Timings() for name in plans}
    lengths: dict[str, list[int]] = {name: [] for name in plans}
    for turn in range(WARM_UP + rounds):
        batch = batches[turn % len(batches)]
        for number, (name, case) in enumerate(plans.items(), 1):
            start = time.perf_counter()
            with (
                torch.no_grad(),
                nullcontext() if case is None else pruning(model, case, batch.question_mask),
            ):
                output = model.generate(
                    **batch.inputs, max_new_tokens=_MAX_NEW_TOKENS, do_sample=False
                )
            milliseconds = 1000 * (time.perf_counter() - start)
            on_turn(turn * len(plans) + number)
            if turn >= WARM_UP:
                timings[name].add({"answer": milliseconds})
                lengths[name].append(output.shape[1] - batch.inputs["input_ids"].shape[1])
    return timings, {name: fmean(counts) for name, counts in lengths.items()}


def answer_target(timings: dict[str, Timings]) -> Target:
    """Return the speed-up of an answer."""
    full, pruned = timings["unpruned"]["answer"].p50, timings["pruned"]["answer"].p50
    numbers = {"answer_full_ms": full, "answer_pruned_ms": pruned}
    return Target("answer speed-up", full / pruned, ANSWER_SPEEDUP, numbers)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
