"""PaliGemma: a SigLIP tower, one linear layer, a Gemma; in PaliGemma 2 with sliding windows."""

from collections.abc import Callable
from typing import Any

from eligo.tokens.hosts.base import Host


class PaliGemma(Host):
    """Attends to the whole prefix; positions start at 1."""

    family = "PaliGemma"
    first_position = 1

    @property
    def supply(self) -> int | None:
        """Tokens of an image of fixed size."""
        return self.patches_per_side**2

    @property
    def make_masks(self) -> Callable[..., Any]:
        """The function that also reads which tokens are the prefix."""
        from transformers import PaliGemmaForConditionalGeneration

        return PaliGemmaForConditionalGeneration.create_masks_for_generate
