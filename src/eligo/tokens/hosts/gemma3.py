"""Gemma 3: a SigLIP tower, a projector that pools patches, a Gemma with sliding-window layers."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.tokens.hosts.base import Host, Patches, Positions, TokenValues


class Gemma3(Host):
    """Tokens of one image see each other in both directions."""

    family = "Gemma 3"
    newer_only = True
    budget_unit = "crop"
    reduces_projected = True

    @property
    def supply(self) -> int | None:
        """Tokens of an image, or of a crop of it."""
        return self.config.mm_tokens_per_image

    def rows_to_tokens(self, rows: Patches) -> TokenValues:
        """Average the patches of each token."""
        squares = rows.unflatten(1, (self.patches_per_side, -1))[:, None]
        return F.avg_pool2d(squares, self.core.multi_modal_projector.kernel_size).flatten(1)

    @property
    def make_masks(self) -> Callable[..., Any]:
        """The function that also reads which tokens are images."""
        from transformers import Gemma3ForConditionalGeneration

        return Gemma3ForConditionalGeneration.create_masks_for_generate

    def rotary(
        self, layer: int, hidden: Float[Tensor, "batch length width"], positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return the tables of the kind of layer."""
        return self.text.rotary_emb(hidden, positions, self.text.config.layer_types[layer])

    def check(self) -> None:
        """Raise for variants without causal attention."""
        super().check()
        if getattr(self.text.config, "use_bidirectional_attention", False):
            raise InputError("Gemma 3: got bidirectional attention, expected causal attention")
