"""Mistral 3: a Pixtral tower, a projector that merges patches, a Mistral."""

from eligo.tokens.hosts.pixtral import Pixtral


class Mistral3(Pixtral):
    """Several patches become one token in the projector."""

    family = "Mistral 3"

    @property
    def merge(self) -> int:
        """Patches along a side of a token."""
        return self.config.spatial_merge_size
