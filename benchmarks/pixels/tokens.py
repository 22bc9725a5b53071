"""A control of the exam: learned vectors in the place of words, the same for every image."""

import torch
from torch import Tensor, nn

from eligo.pixels.config import PixelsTrainConfig, ScenesDataConfig, WordsTextConfig
from eligo.pixels.data.scene_source import SceneSet, SceneSource
from eligo.pixels.text.batch import Provenance, TextBatch
from eligo.pixels.text.encoders import WordsEncoder
from eligo.pixels.training.task import PixelsTask
from eligo.train import OptimizerSpec


class LearnedTokens(nn.Module):
    """Vectors of the length that words have."""

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(count, dim) / dim**0.5)

    def text(self, batch: int) -> TextBatch:
        """The same vectors for every image."""
        vectors = self.vectors.expand(batch, -1, -1)
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
        return TextBatch(vectors, mask)


class TokenSource(SceneSource):
    """Scenes whose words are the learned vectors, whatever the tags."""

    def __init__(
        self, config: PixelsTrainConfig, tokens: LearnedTokens, device: torch.device
    ) -> None:
        assert isinstance(config.data, ScenesDataConfig)
        encoder = WordsEncoder(WordsTextConfig())  # says that there are words; none is read
        super().__init__(config.data, config.inputs, config.text, encoder, config.augment, device)
        self.tokens = tokens

    def words(
        self,
        scenes: SceneSet,  # noqa: ARG002
        rows: Tensor,
        provenance: Provenance,
        num_phrases: int,  # noqa: ARG002
    ) -> TextBatch | None:
        """No look at the scene."""
        return None if provenance == "none" else self.tokens.text(len(rows))


class LearnedTokensTask(PixelsTask):
    """Trains the vectors beside the network."""

    def __init__(self, config: PixelsTrainConfig, count: int) -> None:
        super().__init__(config)
        self.tokens = LearnedTokens(count, config.text_dim)
        self.modules["tokens"] = self.tokens
        self.optimizers = {"all": OptimizerSpec(config.optimizer, ("model", "tokens"))}

    def open_source(self) -> TokenSource:
        """The scenes, with the vectors for words."""
        return TokenSource(self.config, self.tokens, self.device)
