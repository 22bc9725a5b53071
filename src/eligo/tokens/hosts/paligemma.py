"""PaliGemma: a SigLIP tower, one linear layer, a Gemma."""

from eligo.tokens.hosts.base import Host


class PaliGemma(Host):
    """Attends to the whole prefix; positions start at 1."""

    family = "PaliGemma"
    first_position = 1

    @property
    def supply(self) -> int | None:
        """Tokens of an image of fixed size."""
        return self.patches_per_side**2
