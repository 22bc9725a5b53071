"""Tiny hosts that read text: random models of the real families with real processors.

The processors are stock, but for a check of their parts that needs torchvision; letters are
tokens, and `red` behind a space is one of its own, so that answers are more than single letters.
"""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import transformers.models.smolvlm.processing_smolvlm as smolvlm
from hosts import build
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CLIPImageProcessorPil, LlamaConfig, LlamaForCausalLM, LlavaProcessor
from transformers import PreTrainedTokenizerFast as Fast
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from eligo.shots.hosts.reader import Reader

FAMILIES = ("llava", "qwen", "smolvlm", "internvl")
_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.?:!", "Ġ", "Ċ", "re", "red", "Ġred", "ll"]
_SPECIAL = {
    "llava": ["<image>", "<video>", "<v>", "</v>"],
    "qwen": ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"],
    "smolvlm": ["<image>", "<global-img>", "<fake_token_around_image>", "<end_of_utterance>"],
    "internvl": ["<IMG_CONTEXT>", "<video>", "<img>", "</img>"],
    "text": ["<i>", "<v>", "<x>", "<y>"],
}
_IMAGE = {"qwen": "<|vision_start|><|image_pad|><|vision_end|>", "internvl": "<IMG_CONTEXT>"}
_ROLE_END = {"qwen": "\n", "internvl": "\n"}  # for the others, answers start with a space


def tokenizer(family: str, **options: Any) -> Fast:
    """64 tokens: 0-2 pad, end, begin; 60-63 specific to the family."""
    words = ["<pad>", "<eos>", "<bos>", *_LETTERS]
    words += [f"<unused{n}>" for n in range(60 - len(words))] + _SPECIAL[family]
    vocabulary = {word: number for number, word in enumerate(words)}
    merges = [("r", "e"), ("re", "d"), ("Ġ", "red"), ("l", "l")]
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = {"additional_special_tokens": _SPECIAL[family]}
    return Fast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
        clean_up_tokenization_spaces=False, **special, **options,
    )  # fmt: skip


def template(family: str) -> str:
    """Turns as `user:` and `assistant:`."""
    image = _IMAGE.get(family, "<image>")
    end = _ROLE_END.get(family, "")
    return (
        "{% for m in messages %}{{ m['role'] + ':" + end.replace("\n", "\\n") + "' }}"
        "{% if m['content'] is string %}{{ ' ' + m['content'] }}{% else %}"
        "{% for part in m['content'] %}{% if part['type'] == 'image' %}" + image + "{% else %}"
        "{{ " + ("" if end else "' ' + ") + "part['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{{ '.\\n' }}{% endfor %}{% if add_generation_prompt %}assistant:" + end + "{% endif %}"
    )


def _lax(kind: type) -> Any:
    """The same processor without the check of its parts' classes."""

    def fine(self: Any, name: str, part: Any) -> type:
        return type(part)

    body = {"check_argument_for_proper_class": fine, "__init__": kind.__init__}
    return type(kind.__name__, (kind,), body)


def processor(family: str) -> Any:
    """The stock processor of a family."""
    chat = {"chat_template": template(family)}
    if family == "llava":
        images = CLIPImageProcessorPil(
            size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
        )
        return LlavaProcessor(
            images, tokenizer(family), patch_size=4, vision_feature_select_strategy="default",
            num_additional_image_tokens=1, image_token="<image>", **chat,
        )  # fmt: skip
    if family == "qwen":
        images = Qwen2VLImageProcessorPil(
            patch_size=4, temporal_patch_size=2, merge_size=2, min_pixels=64, max_pixels=1024
        )
        return _lax(Qwen2_5_VLProcessor)(images, tokenizer(family), None, **chat)
    if family == "smolvlm":
        smolvlm.num2words = str  # pyright: ignore[reportPrivateImportUsage]
        side = {"longest_edge": 32}
        images = SmolVLMImageProcessorPil(do_image_splitting=False, size=side, max_image_size=side)
        videos = SimpleNamespace(num_frames=1, fps=1)  # only its numbers are used
        return _lax(smolvlm.SmolVLMProcessor)(
            images, tokenizer(family), videos, image_seq_len=16, **chat
        )
    named = {
        "start_image_token": "<img>", "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>",
    }  # fmt: skip
    images = GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, max_patches=1)
    return _lax(InternVLProcessor)(
        images, tokenizer(family, extra_special_tokens=named), None, image_seq_length=16, **chat
    )


def text_model(**changes: Any) -> Any:
    """A causal language model without images."""
    import torch

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2,
        "eos_token_id": 1, "tie_word_embeddings": False, "initializer_range": 0.3,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()


@lru_cache
def reader(family: str) -> Reader:
    """A host of a family; `text` reads no images, and has a template."""
    if family == "text":
        return Reader(text_model(), tokenizer(family, chat_template=template(family)))
    return Reader(build(family).model, processor(family))


def picture(path: Any, seed: int, size: tuple[int, int] = (40, 30)) -> str:
    """A noisy image file."""
    import torch

    noise = torch.randint(256, (size[1], size[0], 3), generator=torch.Generator().manual_seed(seed))
    Image.fromarray(noise.byte().numpy()).save(path)
    return str(path)
