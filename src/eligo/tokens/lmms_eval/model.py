"""The model that lmms-eval runs: a stock host, asked under a plan.

lmms-eval's interface for chat models: a request holds a context, a function from a document to
messages, generation settings, and where the document is; an answer is a string. Prompts go through
the host's own processor, greedy unless a task says otherwise. What was kept, and what that saved,
goes into lmms-eval's own results beside its times.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from lmms_eval.api.model import lmms  # pyright: ignore[reportMissingImports]
from lmms_eval.models.model_utils.gen_metrics import (  # pyright: ignore[reportMissingImports]
    log_metrics,
)
from PIL import Image

from eligo.config import load_config
from eligo.errors import InputError
from eligo.images import open_image
from eligo.pretrained.chat import plain_text, render_chat, tokenize
from eligo.pretrained.devices import resolve_device
from eligo.tokens.cost.count import Schedule
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.prompts import build_prompt
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.answers import mean_cost, move
from eligo.tokens.inference.load import floats_of, load_host
from eligo.tokens.inference.predict import trace_schedules
from eligo.tokens.inference.resolve import find_plan
from eligo.tokens.inputs_config import HostConfig
from eligo.train.progress import ProgressBar

_NOT_SAID = "\n\n"  # what lmms-eval fills in where a task names no end; answers may have paragraphs
_LONGEST = 1024  # new tokens, where a task says nothing


class Prompt(NamedTuple):
    """A request as the processor wants it."""

    place: int
    text: str
    images: list[Image.Image]
    settings: dict[str, Any]


class PrunedModel(lmms):
    """`pretrained` is a folder or hub name (none: the tiny LLaVA that comes with eligo).

    Either `plan` (a folder or a name) or a `method` with its `budget`: a number of vision tokens,
    or a share of the image's; several, with a `layer` for each, are joined by +. `method=none` is
    the host as it is, through the same code.
    """

    is_simple = False

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
        self.plan = find_plan(plan, method, numbers("budget", budget), numbers("layer", layer))
        state = PartialState()
        several = state.num_processes > 1
        self.device: Any = state.device if several else resolve_device(device)
        dtype = dtype or ("bfloat16" if self.device.type == "cuda" else "float32")
        host = load_config(HostConfig, {"model": pretrained, "dtype": dtype})
        self.model, self.processor = load_host(host, device=self.device)
        self.shape = HostShape.of(self.model)
        self.plan.resolve(self.shape.num_layers, self.shape.vision)  # before any question is asked
        move(self.plan, self.device)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """An answer for each request, in their order."""
        answers = [""] * len(requests)
        schedules: Counter[Schedule] = Counter()
        seconds, num_tokens, done = 0.0, 0, 0
        with ProgressBar("answers", len(requests), visible=self.rank == 0) as bar:
            for places in batches([one.args[2] for one in requests], self.batch_size):
                prompts = [self._read(place, requests[place]) for place in places]
                for batch in with_and_without_images(prompts):
                    began = time.perf_counter()
                    output, seen = self._generate(batch)
                    said = self.processor.batch_decode(output, skip_special_tokens=True)
                    seconds += time.perf_counter() - began
                    num_tokens += int((output != self.processor.tokenizer.pad_token_id).sum())
                    schedules.update(seen)
                    for prompt, answer in zip(batch, said, strict=True):
                        answers[prompt.place] = cut(answer, prompt.settings.get("until"))
                done += len(places)
                bar.update(done)
        cost = mean_cost(self.shape, self.plan, schedules) if schedules else {}
        kept = {name: value for name, value in cost.items() if isinstance(value, float)}
        log_metrics(seconds, num_tokens, num_tokens / max(seconds, 1e-9), kept)
        return answers

    def loglikelihood(self, requests: Sequence[Any]) -> Any:
        """Refused: an answer's tokens behind a pruned prompt are not what these tasks score."""
        raise NotImplementedError("eligo answers generate_until tasks; choose one of those")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> Any:
        """Refused: a later round may bring new images, which a pruned conversation cannot take."""
        raise NotImplementedError("eligo answers single-round tasks; choose one of those")

    def _read(self, place: int, request: Any) -> Prompt:
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
                    images.append(opened(part["url"]))
                    parts.append({"type": "image"})
                else:
                    raise InputError(
                        f"task {task}: document {document} has {part['type']}, expected text and "
                        "images; hosts are pruned on those"
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
        return Prompt(place, text, images, settings)

    @torch.no_grad()
    def _generate(self, batch: Sequence[Prompt]) -> tuple[torch.Tensor, list[Schedule]]:
        """New tokens, and how many vision tokens were left where; without images, none were."""
        with_images = {"images": [prompt.images for prompt in batch]} if batch[0].images else {}
        encoded = tokenize(
            self.processor,
            text=[prompt.text for prompt in batch],
            padding=True,
            return_tensors="pt",
            **with_images,
        )
        # PaliGemma's makes labels of prompts too.
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
    """Places of requests with the same settings, so many at a time; images are not opened yet."""
    alike: dict[str, list[int]] = {}
    for place, one in enumerate(settings):
        alike.setdefault(json.dumps(one, sort_keys=True, default=str), []).append(place)
    for group in alike.values():
        for first in range(0, len(group), size):
            yield group[first : first + size]


def with_and_without_images(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """The two kinds apart, if there are any of each: a prompt without images cannot be pruned."""
    for wanted in (True, False):
        if found := [prompt for prompt in prompts if bool(prompt.images) == wanted]:
            yield found


def generation(settings: dict[str, Any]) -> dict[str, Any]:
    """A task's settings as `generate` takes them."""
    found: dict[str, Any] = {
        "max_new_tokens": settings.get("max_new_tokens", _LONGEST),
        "num_beams": settings.get("num_beams") or 1,
        "do_sample": bool(settings.get("temperature")),
    }
    if found["do_sample"]:
        found["temperature"] = settings["temperature"]
        if settings.get("top_p"):
            found["top_p"] = settings["top_p"]
    return found


def cut(answer: str, until: str | Sequence[str] | None) -> str:
    """The answer up to the first of the ends that a task names.

    >>> cut(" yes\\nno", ["\\n", "\\n\\n"])
    'yes'
    """
    for end in [until] if isinstance(until, str) else until or ():
        if end and end != _NOT_SAID:
            answer = answer.split(end)[0]
    return answer.strip()


def opened(image: Any) -> Image.Image:
    """An image of a document, or the file that it names, in RGB."""
    return image.convert("RGB") if isinstance(image, Image.Image) else open_image(image)


def numbers(name: str, given: int | float | str | None) -> tuple[Any, ...]:
    """One number, or several joined by +.

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
