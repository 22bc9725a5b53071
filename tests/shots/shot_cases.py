"""Small pointer models of every kind with random inputs, and a tiny CLIP."""

from dataclasses import dataclass

import torch
from shot_hosts import tokenizer
from tokenizers import processors
from torch import Tensor

from eligo.shots import (
    PointerSelectorV0Config,
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
    build_model,
)
from eligo.shots.model.pointer import PointerSelector

SIZES = {"d_model": 12, "hidden_dim": 8, "K": 7, "shot_num": 3, "dropout": 0.0}
SMALL = {**SIZES, "residual": False}
HEADS = {**SMALL, "num_heads": 2}
CONFIGS = {
    "v0": PointerSelectorV0Config(**HEADS),
    "v1": PointerSelectorV1Config(**SMALL),
    "v1_gate": PointerSelectorV1Config(**SMALL, state="gate"),
    "v1_gru": PointerSelectorV1Config(**SMALL, state="gru"),
    "v2": PointerSelectorV2Config(**HEADS, attn_dropout=0.0),
    "v2_gate": PointerSelectorV2Config(**HEADS, attn_dropout=0.0, state="gate"),
    "v2_gru": PointerSelectorV2Config(**HEADS, attn_dropout=0.0, state="gru"),
    "v3": PointerSelectorV3Config(**SMALL),
    "v3_pairs": PointerSelectorV3Config(**SMALL, ranking_loss_type="pairwise"),
    "v3_scores": PointerSelectorV3Config(**SMALL, ranking_loss_type="regression"),
    "v3_v2_gru": PointerSelectorV3Config(**SMALL, base="v2", state="gru"),
    "v0_residual": PointerSelectorV0Config(**SIZES, num_heads=2),
    "v1_residual": PointerSelectorV1Config(**SIZES),
    "v1_gate_residual": PointerSelectorV1Config(**SIZES, state="gate"),
    "v2_residual": PointerSelectorV2Config(**SIZES, num_heads=2, attn_dropout=0.0),
    "v2_gru_residual": PointerSelectorV2Config(**SIZES, num_heads=2, attn_dropout=0.0, state="gru"),
    "v3_residual": PointerSelectorV3Config(**SIZES),
}
STATIC = [name for name, config in CONFIGS.items() if getattr(config, "state", "") == "none"]


def small_model(kind: str, **changes) -> PointerSelector:
    """A model with random weights; zeros and identities of a new one would hide errors."""
    torch.manual_seed(3)
    model = build_model(CONFIGS[kind].replace(changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


@dataclass
class Case:
    query: Tensor
    candidates: Tensor
    labels: Tensor
    mask: Tensor
    beam_scores: Tensor
    step_scores: Tensor
    weights: Tensor

    def call(self, model: PointerSelector, **changes):
        options = {
            "cand_mask": self.mask,
            "beam_scores": self.beam_scores,
            "step_scores": self.step_scores,
            "weights": self.weights,
            **changes,
        }
        return model(self.query, self.candidates, self.labels, **options)


def make_case(rows: int = 5, pool: int = 7, steps: int = 4, seed: int = 0, width: int = 12) -> Case:
    """With padding, an empty row, ignored and repeated labels, missing and equal scores."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    mask = torch.rand(rows, pool, generator=generator) < 0.8
    if rows > 1:
        mask[-1] = False
    labels = torch.randint(-1, max(pool, 1), (rows, steps), generator=generator)
    if pool:
        real = mask.gather(1, labels.clamp_min(0))
        labels = torch.where(real, labels, -1)
    else:
        labels.fill_(-1)
    candidates = randn(rows, pool, width)
    candidates[~mask] = torch.nan
    beam, step = randn(rows, steps), randn(rows, steps, pool)
    beam[torch.rand(beam.shape, generator=generator) < 0.2] = torch.nan
    step[torch.rand(step.shape, generator=generator) < 0.3] = torch.nan
    if rows:
        step[0] = 0.5
    weights = torch.rand(rows, generator=generator)
    return Case(randn(rows, width), candidates, labels, mask, beam, step, weights)


def save_clip(folder: str, seed: int = 0) -> None:
    """A tiny random CLIP with a tokenizer of letters."""
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor

    sizes = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    text = {**sizes, "vocab_size": 64, "max_position_embeddings": 40}
    text |= {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(seed)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))
    model.save_pretrained(folder)
    images = CLIPImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    words = tokenizer("text")  # CLIP reads the vector at the end of the text
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    CLIPProcessor(images, words).save_pretrained(folder)
