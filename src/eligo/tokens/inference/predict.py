"""One question on one image: the answer from fewer tokens, which they were, and what that cost."""

from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from PIL import Image
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.pretrained.chat import ContextWatch
from eligo.report.tokens_picture import stages_picture
from eligo.tokens.cost.count import Cost, Measured, Schedule, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import Collator, TokenExample
from eligo.tokens.data.prompts import image_token_id
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.load import dtype_of, floats_of
from eligo.tokens.plan import Plan
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

_REPEATS = 10


@dataclass(frozen=True)
class Prediction:
    """What was said, and all that can be told about it."""

    question: str
    answer: str
    cost: Cost
    trace: Trace
    seen: tuple[Image.Image, ...]
    """What the tower was shown, cropped and scaled: the image, or its tiles."""

    @property
    def picture(self) -> Image.Image:
        """Which tokens survived each stage, drawn anew at every call."""
        return stages_picture(
            self.seen,
            [(_heading(stage), _kept(stage, self.trace)) for stage in self.trace.stages],
            title=self.question,
            caption=f"answer: {self.answer}",
        )


def predict(
    model: Any,
    processor: Any,
    plan: Plan,
    image: Image.Image,
    question: str,
    *,
    max_new_tokens: int = 16,
    timed: bool = False,
) -> Prediction:
    """Answer greedily under a plan; `timed` repeats the prefill to say how long it takes."""
    check_count("max_new_tokens", max_new_tokens)
    batch = Collator(processor)([TokenExample("question", image, question, ())])
    device, dtype = next(model.parameters()).device, dtype_of(model)
    inputs = {name: v.to(device) for name, v in floats_of(model, batch.inputs).items()}
    _refuse_budgets(plan, int((inputs["input_ids"] == image_token_id(processor)).sum()))
    ContextWatch(model).look(inputs["input_ids"].shape[1])
    # Asked before, as `pruning` may wrap it.
    backend = getattr(model.config.get_text_config(), "_attn_implementation", None)
    with pruning(model, plan, batch.question_mask.to(device)) as trace, torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        measured = _measure(model, inputs, trace, backend) if timed else Measured()
    said = processor.batch_decode(
        output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )[0].strip()
    host = HostShape.of(model)
    cost = count_cost(
        host,
        trace_schedule(trace, host.num_layers),
        selectors=[plan.stage1 and plan.stage1.reducer, *(cut.reducer for cut in plan.cuts)],
        dtype=str(dtype).removeprefix("torch."),
        measured=measured,
    )
    shown = batch.examples[0].image
    assert isinstance(shown, Image.Image)
    seen = _seen(processor, batch.inputs, shown, trace)
    return Prediction(question, said, cost, trace, tuple(seen))


def _refuse_budgets(plan: Plan, supply: int) -> None:
    """Budgets above all vision tokens of a prompt would keep everything and say otherwise."""
    budgets = [stage.budget for stage in plan.stages if stage.budget is not None]
    if budgets and max(budgets) > supply:
        raise InputError(
            f"Plan: got a budget of {max(budgets)}; expected at most {supply}, the number of "
            "vision tokens of this image"
        )


def trace_schedule(trace: Trace, num_layers: int, row: int = 0) -> Schedule:
    """How many vision tokens of a row of the batch were left where."""
    return trace_schedules(trace, num_layers)[row]


def trace_schedules(
    trace: Trace, num_layers: int, attention_mask: Int[Tensor, "batch length"] | None = None
) -> list[Schedule]:
    """The same for all rows, with one look at the device for each stage.

    A row costs what it costs alone: `attention_mask` says what of a padded prompt is its own.
    """
    assert trace.grid is not None
    assert trace.rows is not None
    lengths = (trace.columns[0] >= 0).sum(-1).cpu()
    rows = trace.rows.cpu()
    padding = [0] * len(lengths)
    if attention_mask is not None:
        padding = (attention_mask == 0).sum(-1).tolist()

    def per_row(counts: Tensor) -> list[int]:
        return torch.zeros_like(lengths).index_add(0, rows, counts.cpu().to(lengths.dtype)).tolist()

    vision = per_row(trace.grid.prod(-1))
    left = {stage.layer: per_row((stage.positions >= 0).sum(-1)) for stage in trace.stages}
    merged = left.pop(0, vision)
    return [
        Schedule(
            vision[row],
            merged[row],
            tuple((layer, left[layer][row]) for layer in sorted(left)),
            length - merged[row] - padding[row],
            num_layers,
        )
        for row, length in enumerate(lengths.tolist())
    ]


def _measure(model: Any, inputs: dict[str, Tensor], trace: Trace, backend: str | None) -> Measured:
    """Time to the first token, tower included, and the selector's part of it."""
    parameter = next(model.parameters())
    first, selector = [], []
    for _ in range(_REPEATS):
        watch = Stopwatch(parameter.device)
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
        watch.stop()
        first.append(watch.milliseconds)
        selector.append(trace.selector_ms)
    return Measured(
        selector_ms=median(selector) if trace.stages else None,
        ttft_p50_ms=median(first),
        ttft_p90_ms=quantiles(first, n=10, method="inclusive")[-1],
        batch=1,
        dtype=str(dtype_of(model)).removeprefix("torch."),
        backend=backend,
        device=_device_name(parameter.device),
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _heading(stage: StageTrace) -> str:
    place = "before layer 0" if stage.layer == 0 else f"from layer {stage.layer} on"
    kept = int((stage.positions >= 0).sum())
    return f"{stage.name} {place}: {kept} tokens"


def _kept(stage: StageTrace, trace: Trace) -> list[Bool[Tensor, "rows columns"]]:
    """Which tokens of each image's grid a stage left."""
    assert trace.grid is not None
    masks = []
    for positions, (rows, columns) in zip(stage.positions.cpu(), trace.grid.tolist(), strict=True):
        mask = torch.zeros(rows * columns, dtype=torch.bool)
        mask[positions[positions >= 0].long()] = True
        masks.append(mask.view(rows, columns))
    return masks


def _seen(
    processor: Any, inputs: dict[str, Tensor], image: Image.Image, trace: Trace
) -> list[Image.Image]:
    """What the tower was shown: the image (or its tiles) cropped and scaled by the processor."""
    pixels = inputs["pixel_values"]
    assert trace.grid is not None
    if pixels.ndim < 4:  # patches in a row: the whole image, whatever its shape
        return [image] * len(trace.grid)
    mean, std = (
        torch.tensor(getattr(processor.image_processor, name)).view(3, 1, 1)
        for name in ("image_mean", "image_std")
    )
    shown = pixels.flatten(0, -4).float().cpu() * std + mean
    arrays = (shown.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(np.ascontiguousarray(array)) for array in arrays]
