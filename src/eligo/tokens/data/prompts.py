"""Prompts, inputs and answer tokens of a host, through its own processor."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.pretrained.chat import place_image, plain_text, render_chat, spoken_ids, tokenize
from eligo.video import Clip

_PLAIN = "USER: {image}\n{question} ASSISTANT:"  # as for LLaVA-1.5, without a chat template
_NO_TEMPLATE = {"PaliGemmaProcessor": "{image}answer en {question}\n"}


def image_token_id(processor: Any) -> int:
    """Return the id of the placeholder of one vision token."""
    # The processor of Gemma 3 calls the token that starts an image so.
    token_id = getattr(processor.tokenizer, "image_token_id", None)
    token_id = getattr(processor, "image_token_id", None) if token_id is None else token_id
    if token_id is None and (token := getattr(processor, "image_token", None)) is not None:
        token_id = processor.tokenizer.convert_tokens_to_ids(str(token))
    if token_id is None:
        raise InputError(
            f"{type(processor).__name__} has no image token; expected a processor for images"
        )
    return int(token_id)


def build_prompt(processor: Any, question: str, *, with_image: bool = True) -> str:
    """Return the prompt of one image and one question, by the chat template of the host.

    `<image>` in the question marks the place of the image; control tokens become plain text.
    `with_image=False`: the same question without an image.
    """
    question = plain_text(processor, place_image(question, "question"))
    if getattr(processor, "chat_template", None):
        content = [{"type": "text", "text": question}]
        if with_image:
            content.insert(0, {"type": "image"})
        message = {"role": "user", "content": content}
        return render_chat(processor, [message], add_generation_prompt=True)
    plain = _NO_TEMPLATE.get(type(processor).__name__, _PLAIN)
    image = processor.image_token if with_image else ""
    return plain.format(image=image, question=question)


def encode(
    processor: Any, images: Sequence[Image.Image | Tensor], prompts: Sequence[str]
) -> dict[str, Tensor]:
    """Return the inputs of the host: one image per prompt, rows padded to one length.

    For a LLaVA, several consecutive prompts may share an image; its pixels stand there once.
    """
    pixels = _prepared(processor, images)
    if pixels is None and len(images) < len(prompts):
        pixels = processor.image_processor(list(images), return_tensors="pt")["pixel_values"]
    if pixels is not None:
        text = [_expanded(processor, prompt) for prompt in prompts]
        encoded = tokenize(processor.tokenizer, text, padding=True, return_tensors="pt")
        return {**{n: v.to(pixels.device) for n, v in encoded.items()}, "pixel_values": pixels}
    encoded = tokenize(
        processor,
        images=[[image] for image in images],
        text=list(prompts),
        padding=True,
        return_tensors="pt",
    )
    # The processor of PaliGemma also returns labels of the prompts.
    return {name: value for name, value in encoded.items() if name != "labels"}


def encode_clip(processor: Any, clip: Clip, question: str) -> dict[str, Tensor]:
    """Return the inputs of the host for a question about a video, as its processor writes them."""
    if getattr(processor, "video_processor", None) is None:
        raise InputError(
            f"{type(processor).__name__} takes no videos; expected the processor of a Qwen2-VL, "
            "Qwen2.5-VL or Qwen3-VL (pip install 'eligo[hosts]')"
        )
    question = plain_text(processor, place_image(question, "question"))
    content = [{"type": "video"}, {"type": "text", "text": question}]
    message = {"role": "user", "content": content}
    prompt = render_chat(processor, [message], add_generation_prompt=True)
    frames = np.stack([np.asarray(frame.convert("RGB")) for frame in clip.frames])
    count = len(frames)
    metadata = {"total_num_frames": count, "fps": clip.fps, "frames_indices": list(range(count))}
    encoded = tokenize(
        processor,
        text=[prompt],
        videos=[frames],
        video_metadata=[metadata],
        do_sample_frames=False,
        return_tensors="pt",
    )
    if encoded.get("second_per_grid_ts") is not None:  # some processors return a list
        encoded["second_per_grid_ts"] = torch.as_tensor(encoded["second_per_grid_ts"])
    return {name: value for name, value in encoded.items() if isinstance(value, Tensor)}


def _prepared(processor: Any, images: Sequence[Image.Image | Tensor]) -> Tensor | None:
    """Return normalised pixels if all images are tensors of a LLaVA's image size, else None.

    Same values as from the processor, but images on a GPU stay there.
    """
    if not has_fixed_grid(processor):
        return None
    size = processor.image_processor.crop_size
    shape = (3, size["height"], size["width"])
    ready = [i for i in images if isinstance(i, Tensor) and tuple(i.shape) == shape]
    if len(ready) < len(images) or not ready:
        return None
    pixels = torch.stack(ready).float() / 255
    mean, std = (
        torch.tensor(values, device=pixels.device).view(3, 1, 1)
        for values in (processor.image_processor.image_mean, processor.image_processor.image_std)
    )
    return (pixels - mean) / std


def has_fixed_grid(processor: Any) -> bool:
    """Return whether this is the processor of a LLaVA, with equally many tokens for all images."""
    size = getattr(processor.image_processor, "crop_size", None)
    return type(processor).__name__ == "LlavaProcessor" and size is not None


def _expanded(processor: Any, prompt: str) -> str:
    """Return the prompt with a placeholder for every vision token of a LLaVA."""
    return prompt.replace(processor.image_token, processor.image_token * num_vision(processor))


def num_vision(processor: Any) -> int:
    """Return the number of vision tokens of an image, by the processor of a LLaVA."""
    size, patch = processor.image_processor.crop_size, processor.patch_size
    count = (size["height"] // patch) * (size["width"] // patch)
    count += processor.num_additional_image_tokens
    return count - (processor.vision_feature_select_strategy == "default")


def answer_ids(processor: Any, prompt: str, answer: str) -> list[int]:
    """Return the tokens of the answer after the prompt, and the end of text."""
    tail = prompt.rpartition(str(processor.image_token))[2].lstrip()
    ids = spoken_ids(processor.tokenizer, tail, answer)
    if not ids:
        raise InputError(f"the answer {answer!r} has no tokens in the vocabulary of this host")
    return [*ids, processor.tokenizer.eos_token_id]


def text_lengths(processor: Any, questions: Sequence[str]) -> list[int]:
    """Return the number of prompt tokens without vision tokens, for each question."""
    token = str(processor.image_token)
    texts = [build_prompt(processor, question).replace(token, "") for question in questions]
    return [len(ids) for ids in tokenize(processor.tokenizer, texts)["input_ids"]]
