"""Qwen3-VL: Qwen2-VL with DeepStack, which adds vision features again after the first layers.

Timestamps separate the frames of a video in the prompt; they are text and always stay.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.tokens.hosts.qwen2_vl import Qwen2VL


class Qwen3VL(Qwen2VL):
    """The added features are dropped and merged like the tokens that they belong to."""

    family = "Qwen3-VL"
    newer_only = True

    def added_features(self, output: Any) -> Sequence[Float[Tensor, "tokens text_width"]]:
        """Return one entry per layer that gets features."""
        return output.deepstack_features

    def check(self) -> None:
        """Raise if the last layer gets features: nothing after it could add them."""
        super().check()
        count = len(self.tower.config.deepstack_visual_indexes)
        if count >= len(self.layers):
            raise InputError(
                f"Qwen3-VL: got DeepStack features for {count} layers of {len(self.layers)}; "
                "expected fewer"
            )
