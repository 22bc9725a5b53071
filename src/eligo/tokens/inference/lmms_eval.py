"""A pruned host under lmms-eval 0.7: `lmms-eval --model eligo --model_args pretrained=...`.

lmms-eval finds `manifest` by the entry point `lmms_eval.models`, and calls it while it is itself
being imported; `PrunedModel`, which inherits from a class of lmms-eval, is built on first use.
Prompts go through the processor of the host; decoding is greedy unless a task sets a temperature.
The mean costs are logged in the results of lmms-eval.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from PIL import Image

from eligo.config import load_config
from eligo.errors import InputError
from eligo.images import open_image
from eligo.pretrained.chat import plain_text, render_chat, tokenize
from eligo.pretrained.devices import resolve_device
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.flops import Schedule
from eligo.tokens.cost.plan_cost import mean_cost, trace_schedules
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.prompts import build_prompt
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.load import floats_of, load_host
from eligo.tokens.inference.resolve import load_plan, move_plan
from eligo.train.progress import ProgressBar

_DEFAULT_UNTIL = "\n\n"  # lmms-eval sets it if a task sets none; answers may have paragraphs
_MAX_NEW_TOKENS = 1024  # if a task sets none


def manifest() -> Any:
    """Describe the model for the registry of lmms-eval."""
    from lmms_eval.models.registry_v2 import (  # pyright: ignore[reportMissingImports]
        ModelManifest,
    )

    return ModelManifest(model_id="eligo", chat_class_path=f"{__name__}.PrunedModel")


def __getattr__(name: str) -> Any:
    if name != "PrunedModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lmms_eval.api.model import lmms  # pyright: ignore[reportMissingImports]

    model_class = type(
        name, (_PrunedModel, lmms), {"__module__": __name__, "__doc__": _PrunedModel.__doc__}
    )
    return globals().setdefault(name, model_class)


class Prompt(NamedTuple):
    """A request, ready for the processor."""

    number: int
    text: str
    images: list[Image.Image]
    settings: dict[str, Any]


class _PrunedModel:
    """A chat model of lmms-eval: a host, pruned by a plan or a training-free method.

    `pretrained` is a folder or hub name (none: the tiny LLaVA that comes with eligo). Give a `plan`
    (a folder or a name), or a `method` with its `budget`: a number of vision tokens, or a share of
    them; several, with a `layer` for each, are joined by +. `method=none` prunes nothing.
    """

    is_simple = False
    rank: int
    task_dict: Any

    def __init__(
        self,
        pretrained: str | None = None,
        plan: str | None = None,
        method: str | None = None,
        budget: int | float | str | None = None,
        layer: int | float | str | None = None,
        dtype: str | None = None,
        device: str = "auto",
        batch_size: int | str = 1,
    ) -> None:
        super().__init__()
        (self.batch_size,) = numbers("batch_size", batch_size)
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError(f"batch_size: got {batch_size}, expected a whole number, 1 or more")
        self.plan = load_plan(plan, method, numbers("budget", budget), numbers("layer", layer))
        state = PartialState()
        is_distributed = state.num_processes > 1
        self.device: Any = state.device if is_distributed else resolve_device(device)
        dtype = dtype or ("bfloat16" if self.device.type == "cuda" else "float32")
        host = load_config(HostConfig, {"model": pretrained, "dtype": dtype})
        self.model, self.processor = load_host(host, device=self.device)
        self.shape = HostShape.of(self.model)
        self.plan.resolve(self.shape.num_layers, self.shape.vision)
        move_plan(self.plan, self.device)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return an answer for each request, in their order."""
        from lmms_eval.models.model_utils.gen_metrics import (  # pyright: ignore[reportMissingImports]
            log_metrics,
        )

        answers = [""] * len(requests)
        schedules: Counter[Schedule] = Counter()
        seconds, num_tokens, done = 0.0, 0, 0
        with ProgressBar("answers", len(requests), visible=self.rank == 0) as bar:
            for indices in batches([request.args[2] for request in requests], self.batch_size):
                prompts = [self._read(index, requests[index]) for index in indices]
                for batch in split_by_images(prompts):
                    started = time.perf_counter()
                    output, counted = self._generate(batch)
                    texts = self.processor.batch_decode(output, skip_special_tokens=True)
                    seconds += time.perf_counter() - started
                    num_tokens += int((output != self.processor.tokenizer.pad_token_id).sum())
                    schedules.update(counted)
                    for prompt, text in zip(batch, texts, strict=True):
                        answers[prompt.number] = truncate(text, prompt.settings.get("until"))
                done += len(indices)
                bar.update(done)
        cost = mean_cost(self.shape, self.plan, schedules) if schedules else {}
        logged = {name: value for name, value in cost.items() if isinstance(value, float)}
        log_metrics(seconds, num_tokens, num_tokens / max(seconds, 1e-9), logged)
        return answers

    def loglikelihood(self, requests: Sequence[Any]) -> Any:
        """Not supported: these tasks score likelihoods after the full prompt."""
        raise NotImplementedError("eligo supports generate_until tasks only; choose one of those")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> Any:
        """Not supported: a later round may add images, which a pruned prompt does not support."""
        raise NotImplementedError("eligo supports single-round tasks only; choose one of those")

    def _read(self, index: int, request: Any) -> Prompt:
        _, to_messages, settings, document, task, split = request.args
        turns, images, words = [], [], []
        for message in to_messages(self.task_dict[task][split][document]):
            parts = []
            for part in message["content"]:
                if part["type"] == "text":
                    words.append(part["text"])
                    text = plain_text(self.processor, part["text"])
                    parts.append({"type": "text", "text": text})
                elif part["type"] == "image":
                    url = part["url"]
                    images.append(
                        url.convert("RGB") if isinstance(url, Image.Image) else open_image(url)
                    )
                    parts.append({"type": "image"})
                else:
                    raise InputError(
                        f"task {task}: document {document} has {part['type']}, expected text and "
                        "images only"
                    )
            turns.append({"role": message["role"], "content": parts})
        if getattr(self.processor, "chat_template", None):
            text = render_chat(self.processor, turns, add_generation_prompt=True)
        elif len(images) == 1:
            text = build_prompt(self.processor, "\n".join(words))
        else:
            raise InputError(
                f"task {task}: document {document} has {len(images)} images; expected one, as "
                f"{type(self.processor).__name__} has no chat template"
            )
        return Prompt(index, text, images, settings)

    @torch.no_grad()
    def _generate(self, batch: Sequence[Prompt]) -> tuple[torch.Tensor, list[Schedule]]:
        """Return the new tokens and the schedule of each prompt (none without images)."""
        with_images = {"images": [prompt.images for prompt in batch]} if batch[0].images else {}
        texts = [prompt.text for prompt in batch]
        encoded = tokenize(
            self.processor, text=texts, padding=True, return_tensors="pt", **with_images
        )
        # The processor of PaliGemma also returns labels of the prompts.
        tensors = {name: value for name, value in encoded.items() if name != "labels"}
        inputs = {name: v.to(self.device) for name, v in floats_of(self.model, tensors).items()}
        settings = generation(batch[0].settings)
        length = inputs["input_ids"].shape[1]
        model: Any = self.model
        if not batch[0].images:
            return model.generate(**inputs, **settings)[:, length:], []
        with pruning(self.model, self.plan) as trace:
            output = model.generate(**inputs, **settings)[:, length:]
        padded = inputs["attention_mask"].cpu()
        return output, trace_schedules(trace, self.shape.num_layers, padded)


def batches(settings: Sequence[dict[str, Any]], size: int) -> Iterator[list[int]]:
    """Yield the indices of requests with the same settings, `size` at a time."""
    groups: dict[str, list[int]] = {}
    for index, task_settings in enumerate(settings):
        key = json.dumps(task_settings, sort_keys=True, default=str)
        groups.setdefault(key, []).append(index)
    for group in groups.values():
        for first in range(0, len(group), size):
            yield group[first : first + size]


def split_by_images(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """Yield the prompts with images, then those without, which cannot be pruned."""
    for has_images in (True, False):
        if part := [prompt for prompt in prompts if bool(prompt.images) == has_images]:
            yield part


def generation(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a task as arguments of `generate`."""
    options: dict[str, Any] = {
        "max_new_tokens": settings.get("max_new_tokens", _MAX_NEW_TOKENS),
        "num_beams": settings.get("num_beams") or 1,
        "do_sample": bool(settings.get("temperature")),
    }
    if options["do_sample"]:
        options["temperature"] = settings["temperature"]
        if settings.get("top_p"):
            options["top_p"] = settings["top_p"]
    return options


def truncate(answer: str, until: str | Sequence[str] | None) -> str:
    """Return the answer up to the first stop string of a task.

    >>> truncate(" yes\\nno", ["\\n", "\\n\\n"])
    'yes'
    """
    for end in [until] if isinstance(until, str) else until or ():
        if end and end != _DEFAULT_UNTIL:
            answer = answer.split(end)[0]
    return answer.strip()


def numbers(name: str, given: int | float | str | None) -> tuple[Any, ...]:
    """Parse one number, or several joined by +.

    >>> numbers("budget", "288+100")
    (288, 100)
    """
    try:
        parts = [] if given is None else str(given).split("+")
        return tuple(float(part) if "." in part else int(part) for part in parts)
    except ValueError:
        raise InputError(
            f"{name}: got {given!r}, expected a number, or several joined by +: 288+100"
        ) from None
