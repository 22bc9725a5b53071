"""Answer one question on one image or video from fewer tokens; return tokens and cost too."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor, nn

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.images import ImageLike, as_image
from eligo.io.files import write_text, writing
from eligo.pretrained.chat import ContextWatch
from eligo.pretrained.devices import resolve_device
from eligo.pretrained.load import SHIPPED, load_part
from eligo.report.tokens_picture import stages_picture
from eligo.selection import Selection
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.flops import Cost, Measured, count_cost
from eligo.tokens.cost.plan_cost import selectors_of, trace_schedules
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import Collator, TokenExample
from eligo.tokens.data.prompts import encode_clip, image_token_id
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.frames import by_frame
from eligo.tokens.inference.load import dtype_of, floats_of, load_host
from eligo.tokens.inference.resolve import load_plan, move_plan
from eligo.tokens.plan import Plan
from eligo.tokens.trace import StageTrace, Stopwatch, Trace
from eligo.video import Clip

PICTURE, RESULT = "tokens.png", "result.json"
"""Files that `Prediction.save` writes, beside the record for the explorer."""
_SHIPPED_HOST, _SHIPPED_PLAN = "vlm", "tokens_default"
_REPEATS = 10


@dataclass(frozen=True)
class Prediction:
    """An answer under a plan, the tokens that were kept for it, and its cost."""

    question: str
    answer: str
    cost: Cost
    trace: Trace
    images: tuple[Image.Image, ...]
    """Input of the vision tower, cropped and scaled: the image, its tiles, or the first frames of
    each group of frames that share tokens."""

    @property
    def selection(self) -> Selection:
        """The vision tokens that survive all stages: one row per image, tile or video, on the CPU.

        Candidates are all tokens of the grid; a score is from the last stage that scored the token.
        """
        return _surviving(self.trace)

    @property
    def picture(self) -> Image.Image:
        """A picture of the tokens that survive each stage, drawn at every access."""
        trace = by_frame(self.trace)
        return stages_picture(
            self.images,
            [(_heading(stage), _kept(stage, trace)) for stage in trace.stages],
            title=self.question,
            caption=f"answer: {self.answer}",
        )

    def summary(self) -> dict[str, Any]:
        """Return question, answer, tokens kept by each stage, and cost as plain values."""
        schedule = self.cost.schedule
        return {
            "question": self.question,
            "answer": self.answer,
            "vision_tokens": schedule.vision,
            "kept": [schedule.merged, *(budget for _, budget in schedule.cuts)],
            "layers": [0, *(layer for layer, _ in schedule.cuts)],
            "cost": self.cost.as_plain(),
        }

    def save(self, folder: str | Path) -> Path:
        """Write picture, summary (JSON) and a record for `eligo explore`; return the folder."""
        from eligo.explorer.folder import save_prediction
        from eligo.tokens.inference.record import record

        folder = Path(folder)
        with writing(folder / PICTURE) as temporary:
            self.picture.save(temporary, "PNG")
        write_text(folder / RESULT, json.dumps(self.summary(), indent=1) + "\n")
        save_prediction(record(self), folder)
        return folder


def predict(
    image: ImageLike | Clip,
    question: str,
    *,
    model: str | Path | nn.Module,
    plan: Plan | str | Path | None = None,
    method: str | None = None,
    budget: int | float | None = None,
    processor: Any = None,
    max_new_tokens: int = 16,
    device: str = "auto",
    timed: bool = False,
) -> Prediction:
    """Answer a question about an image or a video from the vision tokens that a plan keeps.

    Args:
        image: A file, a PIL image, a NumPy array (height, width, channels) or a tensor; or a video,
            as `eligo.video.open_clip` returns it.
        question: The question.
        model: Folder, shipped name or hub name of a host; or a loaded model of transformers.
        plan: A plan, its folder, or the name of a shipped one.
        method: A training-free method instead of a plan, such as "fastv" or "divprune".
        budget: Vision tokens that the method keeps, or a share of them below 1.
        processor: The processor of a loaded model; by default that of the folder it came from.
        max_new_tokens: Maximum length of the answer.
        device: Where to load a named model: auto, cpu or cuda.
        timed: Also measure the time to the first token, in ten repeats.

    Without plan and method, the tiny LLaVA that comes with eligo is pruned by its own plan.

    >>> predict(photo, "what is it?", model=folder, method="divprune", budget=0.25).answer
    ... # doctest: +SKIP
    """
    check_count("max_new_tokens", max_new_tokens)
    image = image if isinstance(image, Clip) else as_image(image)
    chosen = None
    if plan is not None or method is not None or budget is not None:
        chosen = load_plan(plan, method, () if budget is None else (budget,))
    host: Any = model
    if not isinstance(model, nn.Module):
        host, loaded = load_host(HostConfig(model=str(model)), device=resolve_device(device))
        processor = processor or loaded
    elif processor is None:
        processor = _processor_of(host)
    return _answer(host, processor, chosen or _shipped_plan(host), image, question,
                   max_new_tokens=max_new_tokens, timed=timed)  # fmt: skip


def _answer(
    model: Any,
    processor: Any,
    plan: Plan,
    image: Image.Image | Clip,
    question: str,
    *,
    max_new_tokens: int,
    timed: bool,
) -> Prediction:
    if isinstance(image, Clip):
        encoded, unit = encode_clip(processor, image, question), "video"
        is_vision = encoded["input_ids"] == model.config.video_token_id
        question_mask = encoded["attention_mask"].bool() & ~is_vision
    else:
        batch = Collator(processor)([TokenExample("question", image, question, ())])
        encoded, question_mask, unit = batch.inputs, batch.question_mask, "image"
        is_vision = encoded["input_ids"] == image_token_id(processor)
        upright = batch.examples[0].image
        assert isinstance(upright, Image.Image)
        image = upright
    device, dtype = next(model.parameters()).device, dtype_of(model)
    move_plan(plan, device)
    inputs = {name: v.to(device) for name, v in floats_of(model, encoded).items()}
    length = inputs["input_ids"].shape[1]
    plan.check_budgets(int(is_vision.sum()), f"of this {unit}")
    ContextWatch(model).look(length)
    # Read before `pruning`, which may replace it.
    backend = getattr(model.config.get_text_config(), "_attn_implementation", None)
    with pruning(model, plan, question_mask.to(device)) as trace, torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        measured = _measure(model, inputs, trace, backend) if timed else Measured()
    answer = processor.batch_decode(output[:, length:], skip_special_tokens=True)[0].strip()
    shape = HostShape.of(model)
    cost = count_cost(
        shape,
        trace_schedules(trace, shape.num_layers)[0],
        selectors=selectors_of(plan),
        dtype=str(dtype).removeprefix("torch."),
        measured=measured,
    )
    if isinstance(image, Clip):
        images = _first_frames(image, trace)
    else:
        images = _tower_images(processor, encoded, image, trace)
    return Prediction(question, answer, cost, trace, tuple(images))


def _processor_of(model: Any) -> Any:
    """Return the processor from the folder or hub name that a model was loaded from."""
    from transformers import AutoProcessor

    try:
        return load_part(AutoProcessor, str(model.config.name_or_path))
    except InputError as error:
        raise InputError(f"processor: needed for a loaded model ({error})") from None


def _shipped_plan(model: Any) -> Plan:
    """Return the plan that comes with the shipped host; raise for any other host."""
    if Path(str(model.config.name_or_path)) == SHIPPED / _SHIPPED_HOST:
        return Plan.from_pretrained(_SHIPPED_PLAN)
    raise InputError(
        "this model has no plan of its own; give a training-free method with a budget (such as "
        "divprune), or a plan that `eligo tokens train` trained for it"
    )


def _surviving(trace: Trace) -> Selection:
    """Compose the selections of all stages into one over the full grid of each image."""
    assert trace.grid is not None
    sizes = trace.grid.prod(-1).tolist()
    width = max(sizes)
    mask = torch.arange(width) < torch.tensor(sizes)[:, None]
    remaining = torch.arange(width).expand(mask.shape).masked_fill(~mask, -1)
    scores = torch.zeros(mask.shape)
    weights: Float[Tensor, "images kept width"] | None = None
    for stage in trace.stages:
        selection = stage.selection.to("cpu")
        for image, scored in enumerate(selection.mask):
            count = int(scored.sum())
            places = remaining[image, remaining[image] >= 0][:count].long()
            scores[image, places] = selection.scores[image, :count]
        if weights is not None or selection.assignment is not None:
            weights = _composed(selection, remaining, weights, width)
        remaining = stage.positions.cpu()
    return Selection(remaining, scores, mask, weights)


def _composed(
    selection: Selection, remaining: Tensor, weights: Tensor | None, width: int
) -> Float[Tensor, "images kept width"]:
    """Return how much of each token of the grid is in each kept token after one more stage."""
    if weights is None:  # nothing was merged so far
        weights = torch.nn.functional.one_hot(remaining.clamp(min=0).long(), width).float()
        weights = weights * (remaining >= 0)[..., None]
    if selection.assignment is None:
        return selection.gather(weights[:, : selection.mask.shape[1]])
    return selection.assignment.float() @ weights[:, : selection.mask.shape[1]]


def _measure(model: Any, inputs: dict[str, Tensor], trace: Trace, backend: str | None) -> Measured:
    """Measure the time to the first token, tower included, and that of the selector."""
    device = next(model.parameters()).device
    first, selector = [], []
    for _ in range(_REPEATS):
        watch = Stopwatch(device)
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
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )


def _heading(stage: StageTrace) -> str:
    place = "before layer 0" if stage.layer == 0 else f"from layer {stage.layer} on"
    kept = int((stage.positions >= 0).sum())
    return f"{stage.name} {place}: {kept} tokens"


def _kept(stage: StageTrace, trace: Trace) -> list[Bool[Tensor, "_ _"]]:
    """Return which tokens of each grid a stage kept."""
    assert trace.grid is not None
    masks = []
    for positions, (rows, columns) in zip(stage.positions.cpu(), trace.grid.tolist(), strict=True):
        mask = torch.zeros(rows * columns, dtype=torch.bool)
        mask[positions[positions >= 0].long()] = True
        masks.append(mask.view(rows, columns))
    return masks


def _with_newlines(image: Image.Image, columns: int) -> Image.Image:
    """Return the image with room for the last of `columns`, which holds the newlines."""
    wider = Image.new("RGB", (image.width + image.width // max(columns - 1, 1), image.height))
    wider.paste(image)
    return wider


def _first_frames(clip: Clip, trace: Trace) -> list[Image.Image]:
    """Return a frame for each grid in time: the tower encodes several frames together."""
    assert trace.grid is not None
    count = 1 if trace.frames is None else int(trace.frames[0])
    together = -(-len(clip.frames) // count)
    return [clip.frames[min(number * together, len(clip.frames) - 1)] for number in range(count)]


def _tower_images(
    processor: Any, inputs: dict[str, Tensor], image: Image.Image, trace: Trace
) -> list[Image.Image]:
    """Return the image (or its tiles) as the processor cropped and scaled it."""
    pixels = inputs["pixel_values"]
    assert trace.grid is not None
    if pixels.ndim < 4:  # a list of patches: the whole image
        return [image] * len(trace.grid)
    if type(processor).__name__ in ("LlavaNextProcessor", "LlavaOnevisionProcessor"):
        return [image, _with_newlines(image, int(trace.grid[1, 1]))]
    mean, std = (
        torch.tensor(getattr(processor.image_processor, name)).view(3, 1, 1)
        for name in ("image_mean", "image_std")
    )
    colours = pixels.flatten(0, -4).float().cpu() * std + mean
    arrays = (colours.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(np.ascontiguousarray(array)) for array in arrays]
