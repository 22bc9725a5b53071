"""VisionSelector: a learned scorer of projected tokens (Zhu et al. 2025, arXiv:2510.16598).

`s_i = mean_j q_i k_j / sqrt(dim)` with two linear maps q and k of the tokens; the highest stay. The
mean is taken over k first, at a cost linear in the tokens. The published checkpoints for Qwen2.5-VL
hold a whole model with the scorer in its tower (`importance_scorer`): only the scorer is read.
Departures: each image is scored alone, not together with the others of its prompt, and in float32;
its budget is rounded to the nearest number, not down; hosts with a projector behind the tower
(LLaVA) are scored before it. Training (`merger.kind: vision_selector`) uses the relaxed top-k of
the released code, `sigmoid(s + t)` with a sum of k, in our way: hard choices with its gradient and
a falling temperature. The weights of its regularisation, which grow there, have no counterpart.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors import safe_open
from torch import Tensor, nn

from eligo import ops
from eligo.config import Config
from eligo.errors import InputError
from eligo.io.reading import reading
from eligo.nn import without_autocast
from eligo.pretrained.load import find_model, misfits, not_finite, refuse_misfits
from eligo.pretrained.untrusted import read_header
from eligo.selection import Selection
from eligo.tokens.model.base import PretrainedModule, Shapes
from eligo.tokens.model.relaxer import Merged, Relaxation, add_noise, relax_top_k
from eligo.tokens.model.scorers import best_tokens, largest_budget, real_features
from eligo.tokens.reducer import Budget, Need, ReducerContext, TokenValues, Where

PUBLISHED_RATIO = 0.2
"""Share of tokens that the published checkpoints were trained to keep."""
_FIRST_WEIGHTS = 1e-4  # their standard deviation
_WEIGHT = re.compile(r"(?:.*\.)?importance_scorer\.(.+)")


class SelectorShape(Config):
    """Sizes of a `VisionSelector`."""

    width: int = Field(ge=1)
    """Width of the features."""
    dim: int = Field(ge=1)
    """Width of queries and keys."""


class VisionSelector(PretrainedModule):
    """Keeps the tokens with the highest learned scores, the same for every question.

    >>> selector = VisionSelector(SelectorShape(width=8, dim=4))
    >>> selector.name, sorted(selector.needs)
    ('vision_selector', [])
    """

    file_name = "vision_selector"
    shape_type = SelectorShape
    name = "vision_selector"
    where: frozenset[Where] = frozenset({"before"})
    needs: frozenset[Need] = frozenset()
    in_raster_order = True  # the result of `select`

    def __init__(self, shape: SelectorShape) -> None:
        super().__init__(shape)
        self.shape: SelectorShape = shape
        self.q_proj = nn.Linear(shape.width, shape.dim)
        self.k_proj = nn.Linear(shape.width, shape.dim)
        for projection in (self.q_proj, self.k_proj):  # as published: scores begin near 0
            nn.init.normal_(projection.weight, std=_FIRST_WEIGHTS)
            nn.init.zeros_(projection.bias)

    @classmethod
    def from_pretrained(cls, name: str | Path) -> "VisionSelector":
        """Load a saved selector, or the one in a published checkpoint, by folder or hub name."""
        own = f"{cls.file_name}.safetensors"
        folder = find_model(name, own)
        if any((place / own).is_file() for place in (folder, folder / "best")):
            return super().from_pretrained(folder)
        stored = published_weights(folder)
        if not stored:
            raise InputError(
                f"{folder}: no {own} in it and no weights of an importance_scorer; expected the "
                "folder of a saved VisionSelector or of a published checkpoint"
            )
        return cls._from_weights(folder, stored)

    @classmethod
    def _from_weights(cls, folder: Path, stored: Mapping[str, Path]) -> "VisionSelector":
        tensors: dict[str, Tensor] = {}
        for name, file in stored.items():
            with reading(file, "a whole safetensors file"), safe_open(file, "pt") as opened:
                tensors[_part(name)] = opened.get_tensor(name).float()
        query = tensors.get("q_proj.weight")
        if query is None or query.ndim != 2:
            raise InputError(f"{folder}: the importance_scorer has no matrix q_proj.weight")
        module = cls(SelectorShape(width=query.shape[1], dim=query.shape[0]))
        expected = module.state_dict()
        shapes = [
            f"{name}: {tuple(tensors[name].shape)} stored, {tuple(value.shape)} expected"
            for name, value in expected.items()
            if name in tensors and tensors[name].shape != value.shape
        ]
        missing, extra = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
        broken = not_finite(tensors.items())
        lines = misfits(sorted(missing), sorted(extra), shapes, broken=broken)
        refuse_misfits(folder, lines)
        module.load_state_dict(tensors)
        return module.eval()

    def scores(self, context: ReducerContext) -> TokenValues:
        """Return the importance of each token, float32; 0 in padding."""
        features, width = real_features(context), self.shape.width
        if features.shape[-1] != width:
            raise InputError(
                f"{self.name}: got features of width {features.shape[-1]}, expected {width}: use "
                "the host that it was trained in"
            )
        with without_autocast(features.device):
            keys = ops.masked_mean(self.k_proj(features), context.mask)
            scores = (self.q_proj(features) @ keys.unsqueeze(-1)).squeeze(-1)
        return (scores * self.shape.dim**-0.5).masked_fill(~context.mask, 0.0)

    def select(self, context: ReducerContext, budget: Budget) -> Selection:
        """Keep the tokens with the highest scores, in raster order."""
        scores = self.scores(context)
        indices, _ = best_tokens(scores, budget, context)
        return Selection(indices, scores, context.mask)

    def relax(
        self,
        context: ReducerContext,
        budget: Budget,
        relaxation: Relaxation,
        *,
        size_bias: bool = True,
    ) -> Merged:
        """Return the training form of `select`, with noise and gradients."""
        del size_bias  # nothing is merged
        scores = self.scores(context)
        ranks = add_noise(scores, relaxation)
        choice = relax_top_k(ranks, budget, context.mask, relaxation.temperature)
        indices = ops.align_left(choice.kept, largest_budget(budget, scores.shape[-1]))
        selection = Selection(indices, ranks, context.mask)
        features = selection.gather(context.features)
        return Merged(features, selection, choice.key_bias(indices), scores, choice)

    def flops(self, num_tokens: int, _num_words: int, width: int, *_: int) -> float:
        """Count both projections, and the products with the mean key."""
        return 2.0 * num_tokens * self.shape.dim * (2 * width + 1)

    @staticmethod
    def shape_from_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Return the sizes from the weights."""
        del run
        dim, width = shapes["q_proj.weight"]
        return {"width": width, "dim": dim}


def published_weights(folder: Path) -> dict[str, Path]:
    """Return the file of each weight of an `importance_scorer` in a folder, by name."""
    headers = {file: read_header(file) for file in sorted(folder.glob("*.safetensors"))}
    return {name: file for file, names in headers.items() for name in names if _part(name)}


def _part(name: str) -> str:
    match = _WEIGHT.fullmatch(name)
    return match[1] if match else ""
