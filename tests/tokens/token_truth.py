"""A slow oracle: the whole sequence at once, no cache, nothing removed, keys masked.

One row at a time, without padding: each layer of the stock model is called with a mask of its own,
in which a dropped token is invisible to all but itself. It shares no code with eligo.tokens apart
from plans and reducers.
"""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from hosts import TinyHost
from packaging.version import Version
from tiny_models import IMAGE_ID, VIDEO_ID
from torch import Tensor

from eligo.selection import Selection
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import ReducerContext

_CAPS_LOGITS = Version(transformers.__version__) >= Version("5.23")  # PaliGemma did not before


class ByContent:
    """Ranks by a fixed random direction and the mean question; can merge dropped tokens."""

    def __init__(self, *, folds: bool = False, seed: int = 0, needs: tuple[str, ...] = ()) -> None:
        self.folds, self.seed = folds, seed
        self.needs = frozenset({"question", *needs})
        self.seen: list[ReducerContext] = []

    name = "content"
    where = frozenset({"before", "inside"})

    def select(self, context: ReducerContext, budget: Tensor) -> Selection:
        self.seen.append(context)
        generator = torch.Generator().manual_seed(self.seed)  # the same on every device
        features = context.features.float()
        device = features.device
        direction = torch.randn(features.shape[-1], generator=generator).to(device)
        scores = features @ direction
        assert context.question is not None
        assert context.question_mask is not None
        words = context.question.float() * context.question_mask[..., None]
        mean = words.sum(1) / context.question_mask.sum(1, keepdim=True)
        other = torch.randn(mean.shape[-1], features.shape[-1], generator=generator).to(device)
        scores = scores + torch.einsum("itd,id->it", features, torch.tanh(mean @ other))
        if "attention_row" in self.needs:
            assert context.attention_row is not None
            scores = context.attention_row
        if "cls_row" in self.needs:
            assert context.cls_row is not None
            scores = context.cls_row
        scores = scores.masked_fill(~context.mask, 0.0)
        selection = Selection.top_k(scores, budget, context.mask)
        if not self.folds:
            return selection
        assignment = torch.zeros(*selection.indices.shape, scores.shape[-1], device=device)
        for image, kept in enumerate(selection.indices.tolist()):
            kept = [token for token in kept if token >= 0]
            for token in range(scores.shape[-1]):
                if context.mask[image, token]:
                    nearest = kept.index(token) if token in kept else token % len(kept)
                    assignment[image, nearest, token] = 1.0
        return Selection(selection.indices, selection.scores, selection.mask, assignment)


@dataclass
class Truth:
    logits: Tensor
    """(length, vocabulary)"""
    kept: list[list[int]]
    """Per layer: columns of the prompt that it sees."""
    hidden: list[Tensor]


@torch.no_grad()
def truth(
    host: TinyHost,
    plan: Plan,
    prompt: dict[str, Any],
    answer: Tensor,
    *,
    question_mask: Tensor | None = None,
) -> Truth:
    """One row without padding: `prompt` as `TinyHost.batch` makes it, then `answer` tokens."""
    core, text = host.model.model, host.text
    ids = torch.cat([prompt["input_ids"], answer[None]], dim=1)
    length, prompt_length = ids.shape[1], prompt["input_ids"].shape[1]
    has_video = "video_grid_thw" in prompt
    vision = ids[0] == (VIDEO_ID if has_video else IMAGE_ID)
    vision[prompt_length:] = False  # a model may generate the placeholder
    features, projected, grids, deep = (_encode_video if has_video else _encode)(host, prompt)
    embeds = core.get_input_embeddings()(ids)[0].clone()
    columns = list(vision.nonzero()[:, 0].split([len(image) for image in projected]))
    for place, image in zip(columns, projected, strict=True):
        embeds[place] = image
    words = (~vision).clone()
    words[prompt_length:] = False
    if question_mask is not None:
        words &= question_mask
    visible = torch.ones(length, dtype=torch.bool)
    bias = torch.zeros(length)
    tokens = [list(range(len(place))) for place in columns]  # raster indices of survivors
    stages = list(plan.stages)

    def reduce(stage_index: int, states: list[Tensor], question: Tensor) -> list[Selection]:
        chosen = []
        for image in range(len(columns)):
            budget = plan.counts(grids[image])[stage_index]
            context = ReducerContext(
                features=states[image][None],
                mask=torch.ones(1, len(states[image]), dtype=torch.bool),
                positions=torch.tensor([tokens[image]]),
                grid=torch.tensor([grids[image]]),
                frames=prompt["video_grid_thw"][image : image + 1, 0] if has_video else None,
                question=question[None],
                question_mask=torch.ones(1, len(question), dtype=torch.bool),
            )
            choice = stages[stage_index].reducer.select(context, torch.tensor([budget]))
            chosen.append(choice.in_order())
        return chosen

    if plan.stage1 is not None:
        for image, choice in enumerate(reduce(0, list(features), embeds[words])):
            kept = choice.indices[0]
            merged = host_project(host, choice.fold(features[image][None])[0])
            visible[columns[image]] = False
            columns[image] = columns[image][kept]
            tokens[image] = [tokens[image][place] for place in kept.tolist()]
            visible[columns[image]] = True
            embeds[columns[image]] = merged
            deep[image] = [choice.fold(rows[None])[0] for rows in deep[image]]
            if plan.size_bias:
                bias[columns[image]] = choice.sizes[0].log()
    positions = _positions(host, ids, prompt)
    if plan.positions == "reindex":
        positions = _closed(positions, visible)
    hidden = embeds[None]
    kept_per_layer, states = [], []
    first = 1 if plan.stage1 is not None else 0
    for index, layer in enumerate(text.layers):
        for stage_index, cut in enumerate(plan.cuts):
            if cut.layer != index:
                continue
            inputs = [hidden[0, place] for place in columns]
            for image, choice in enumerate(reduce(first + stage_index, inputs, hidden[0, words])):
                kept = choice.indices[0]
                before = columns[image]
                columns[image] = before[kept]
                tokens[image] = [tokens[image][place] for place in kept.tolist()]
                deep[image] = [choice.fold(rows[None])[0] for rows in deep[image]]
                if choice.assignment is not None:
                    hidden[0, columns[image]] = choice.fold(inputs[image][None])[0]
                    if plan.size_bias:
                        bias[columns[image]] = choice.sizes[0].log()
                visible[before] = False
                visible[columns[image]] = True
            if plan.positions == "reindex":
                positions = _closed(_positions(host, ids, prompt), visible)
        shown = torch.ones(length, length, dtype=torch.bool).tril()
        window = _window(text.config, index) or length
        near = torch.ones_like(shown).triu(1 - window)  # in columns of the full prompt
        if host.family != "gemma3":  # its images have windows too
            shown &= near
        for block in _blocks(host, vision, prompt_length):
            shown[block[:, None] & block] = True
        if host.family == "gemma3":
            shown &= near
        shown = shown & visible[None, :] | torch.eye(length, dtype=torch.bool)
        mask = torch.where(shown, bias[None, :], torch.finfo(torch.float32).min)[None, None]
        states.append(hidden[0])
        kept_per_layer.append(visible[:prompt_length].nonzero()[:, 0].tolist())
        output = layer(
            hidden,
            attention_mask=mask,
            position_embeddings=_rotary(host, index, hidden, positions),
            position_ids=None,
            past_key_values=None,
        )
        hidden = output[0] if isinstance(output, tuple) else output
        for place, rows in zip(columns, deep, strict=True):
            if index < len(rows):
                hidden[0, place] += rows[index]
    logits = host.model.lm_head(text.norm(hidden))[0]
    cap = getattr(text.config, "final_logit_softcapping", None)
    if cap is not None and _CAPS_LOGITS:
        logits = cap * (logits / cap).tanh()
    return Truth(logits, kept_per_layer, states)


def host_project(host: TinyHost, features: Tensor) -> Tensor:
    return features if host.projects_before else _projector(host)(features)


def _projector(host: TinyHost) -> Any:
    core = host.model.model
    nested = host.style == "nested"
    return core.connector.modality_projection if nested else core.multi_modal_projector


def _encode(
    host: TinyHost, prompt: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], list[tuple[int, int]], list[list[Tensor]]]:
    """Raw and projected features of each grid, the grids, and what DeepStack adds later."""
    core, pixels = host.model.model, prompt["pixel_values"]
    if not host.projects_before:
        caught = []
        hook = _projector(host).register_forward_hook(lambda _m, a, o: caught.append((a[0], o)))
        core.get_image_features(pixel_values=pixels)
        hook.remove()
        raw, projected = caught[0]
        grids = [(host.side, host.side)] * len(raw)
        return list(raw), list(projected), grids, [[] for _ in grids]
    names = ("pixel_values", "image_grid_thw", "image_sizes", "batch_num_images")
    given = {name: prompt[name] for name in names if name in prompt}
    output = core.get_image_features(**given)
    if "image_grid_thw" in prompt:
        grids = [(h // 2, w // 2) for _, h, w in prompt["image_grid_thw"].tolist()]
    elif host.style == "tiles":
        grids = host.row_grids([tuple(size) for size in prompt["image_sizes"].tolist()])
    elif host.style == "sizes":
        patch = host.pixels // host.side
        grids = [(h // patch, w // patch) for h, w in prompt["image_sizes"].tolist()]
    else:
        grids = [(host.side, host.side)] * len(pixels)
    lengths = [rows * columns for rows, columns in grids]
    features = torch.cat(list(output.pooler_output)).split(lengths)
    layers = getattr(output, "deepstack_features", None) or []
    deep = [list(rows) for rows in zip(*layers, strict=True)] or [[] for _ in grids]
    return list(features), list(features), grids, deep


def _encode_video(
    host: TinyHost, prompt: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], list[tuple[int, int]], list[list[Tensor]]]:
    """The same of videos: the tower sees one frame at a time."""
    core, merged = host.model.model, []
    patches = prompt["pixel_values_videos"]
    grids, layers, first = [], [], 0
    for frames, height, width in prompt["video_grid_thw"].tolist():
        grids.append((frames * height // 2, width // 2))
        shown = []
        for _ in range(frames):
            pixels = patches[first : first + height * width]
            first += height * width
            shown.append(core.get_image_features(pixels, torch.tensor([[1, height, width]])))
        merged.append(torch.cat([output.pooler_output[0] for output in shown]))
        deep = [getattr(output, "deepstack_features", None) or [] for output in shown]
        layers.append([torch.cat([rows[0] for rows in layer]) for layer in zip(*deep, strict=True)])
    return merged, merged, grids, layers


def _positions(host: TinyHost, ids: Tensor, prompt: dict[str, Any]) -> Tensor:
    length = ids.shape[1]
    if "video_grid_thw" in prompt:
        kinds = 2 * (ids == VIDEO_ID).long()
        kinds[:, prompt["input_ids"].shape[1] :] = 0
        return host.model.model.get_rope_index(
            ids,
            video_grid_thw=prompt["video_grid_thw"],
            second_per_grid_ts=prompt.get("second_per_grid_ts"),
            mm_token_type_ids=kinds,
        )[0]
    if host.style == "grid":
        kinds = (ids == IMAGE_ID).long()
        kinds[:, prompt["input_ids"].shape[1] :] = 0
        return host.model.model.get_rope_index(
            ids, image_grid_thw=prompt["image_grid_thw"], mm_token_type_ids=kinds
        )[0]
    return torch.arange(length)[None] + (1 if host.family.startswith("paligemma") else 0)


def _window(config: Any, layer: int) -> int | None:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[layer] == "full_attention":
        return None
    return getattr(config, "sliding_window", None)


def _blocks(host: TinyHost, vision: Tensor, prompt_length: int) -> list[Tensor]:
    """Columns that see each other in both directions."""
    place = torch.arange(len(vision))
    if host.family.startswith("paligemma"):
        return [place < prompt_length]
    if host.family != "gemma3":
        return []
    starts = vision & ~torch.cat([torch.tensor([False]), vision[:-1]])
    image = starts.long().cumsum(0).masked_fill(~vision, 0)
    return [image == number for number in range(1, int(image.max()) + 1)]


def _rotary(host: TinyHost, layer: int, hidden: Tensor, positions: Tensor) -> Any:
    kind = [host.text.config.layer_types[layer]] if host.family == "gemma3" else []
    return host.text.rotary_emb(hidden, positions, *kind)  # pyright: ignore[reportCallIssue]


def _closed(positions: Tensor, visible: Tensor) -> Tensor:
    """Positions without gaps; those of dropped tokens are arbitrary."""
    return positions - (~visible).long().cumsum(0)[None]
