"""The tiny LLaVA: the classes of LLaVA-1.5 in `transformers`, a few million parameters.

336 px, patch 14, 576 vision tokens from the last layer but one of a CLIP tower with [CLS], a linear
projector pair, a Llama decoder, so that it runs the code of a real LLaVA. Differs from LLaVA-1.5 in
size, and in its word-level tokenizer of the scenes' vocabulary.
"""

from copy import deepcopy
from pathlib import Path

import torch
from jaxtyping import Float
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from eligo.errors import InputError
from eligo.io.files import writing_folder
from eligo.pretrained.identity import GENERATOR, check_tokenizer
from eligo.pretrained.load import (
    STOCK_FILES,
    load_part,
    load_stock,
    quiet_transformers,
    shipped_model,
)
from eligo.scenes.config import VlmConfig
from eligo.scenes.phrases import VOCABULARY

PROMPT = "USER: <image> {question} ASSISTANT:"
"""The prompt of a question, as in LLaVA-1.5; `processor.apply_chat_template` gives the same."""
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>", "USER:", "ASSISTANT:")
PAD, BOS, EOS, UNK, IMAGE, USER, ASSISTANT = range(len(SPECIAL))
FIRST_WORD = len(SPECIAL)
"""Token id of word 0 of the vocabulary; word ids are shifted by it."""

MADE_BY = "python -m benchmarks.scenes.train_vlm"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image> "
    "{% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def build_processor(config: VlmConfig) -> LlavaProcessor:
    """Build a LLaVA processor with the scenes' vocabulary."""
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *VOCABULARY))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL[IMAGE:]),
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    size = config.image_size
    return LlavaProcessor(
        CLIPImageProcessorPil(
            size={"shortest_edge": size}, crop_size={"height": size, "width": size}
        ),
        fast,
        patch_size=config.patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
        chat_template=_CHAT_TEMPLATE,
    )


def build_vlm(config: VlmConfig) -> LlavaForConditionalGeneration:
    """Build the model with random weights."""
    vision = CLIPVisionConfig(
        image_size=config.image_size,
        patch_size=config.patch_size,
        hidden_size=config.vision_width,
        intermediate_size=4 * config.vision_width,
        num_hidden_layers=config.vision_layers,
        num_attention_heads=config.heads,
        projection_dim=config.vision_width,
    )
    text = LlamaConfig(
        vocab_size=len(SPECIAL) + len(VOCABULARY),
        hidden_size=config.width,
        intermediate_size=config.hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=IMAGE,
            image_seq_length=config.grid**2,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            tie_word_embeddings=False,
        )
    )
    model.generation_config.pad_token_id = PAD
    model.generation_config.bos_token_id = BOS
    model.generation_config.eos_token_id = EOS
    return model


def load_vlm(
    folder: str | Path | None = None, *, device: str | torch.device = "cpu"
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Load the shipped tiny LLaVA (or one from a folder), in float32, with its processor.

    >>> model, processor = load_vlm()  # doctest: +SKIP
    >>> inputs = processor(images=image, text=PROMPT.format(question="is there any red ball?"),
    ...                    return_tensors="pt")  # doctest: +SKIP
    >>> model.generate(**inputs, max_new_tokens=4)  # doctest: +SKIP
    """
    path = shipped_model("vlm", made_by=MADE_BY) if folder is None else Path(folder)
    if not (path / "config.json").is_file():
        raise InputError(
            f"no model in {path}: expected a folder with config.json and weights; "
            f"`{MADE_BY}` makes one"
        )
    processor = load_part(LlavaProcessor, path)
    model = load_stock(LlavaForConditionalGeneration, path, dtype=torch.float32)
    check_tokenizer(processor, model, str(path), least=GENERATOR)
    return model.to(device).eval(), processor


def save_vlm(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: str | Path
) -> None:
    """Write a folder for `load_vlm` and stock `from_pretrained`: half precision, 10 MB shards."""
    with (
        quiet_transformers(),
        writing_folder(folder, marker="processor_config.json", holds=STOCK_FILES) as temporary,
    ):
        deepcopy(model).half().save_pretrained(temporary, max_shard_size="10MB")
        processor.save_pretrained(temporary)


def pixel_values(rgb: Tensor) -> Float[Tensor, "scenes 3 height width"]:
    """Return what the processor computes for images of the right size."""
    mean = torch.tensor(OPENAI_CLIP_MEAN, device=rgb.device).view(3, 1, 1)
    std = torch.tensor(OPENAI_CLIP_STD, device=rgb.device).view(3, 1, 1)
    return (rgb.float() / 255 - mean) / std
