"""From words to vectors: CLIP, a table made elsewhere, or the scenes' own words.

All are frozen and give unit vectors. `words` draws one fixed random unit vector per word of the
embedded world; a phrase is the normalised sum of its words plus an offset that all phrases share,
normalised: their cosines lie where those of a real text encoder do (0.7 for phrases without a
common word, 0.9 for two words of three).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from eligo.chat import plain_text, remark_cut
from eligo.config.nearest import did_you_mean
from eligo.errors import InputError
from eligo.files import writing
from eligo.pixels.text.config import (
    AnyTextEncoderConfig,
    ClipTextConfig,
    TableTextConfig,
    WordsTextConfig,
)
from eligo.pixels.text.phrases import TEMPLATES, readable, with_article
from eligo.scenes.phrases import VOCABULARY, WORD_ID
from eligo.scenes.words import NONCE
from eligo.train.rng import mix

_OFFSET = 1.55  # length of what all phrases share, over a phrase's own length: cosines 0.7-0.9
_AT_ONCE = 256


class TextEncoder(ABC):
    """Strings to unit vectors, one each."""

    dim: int

    @abstractmethod
    def encode(
        self, strings: Sequence[str], *, sentences: bool = False
    ) -> Float[Tensor, "strings dim"]:
        """Vectors of names (tags, classes), or of whole sentences."""


class WordsEncoder(TextEncoder):
    """Fixed random vectors for the words of the embedded world."""

    def __init__(self, config: WordsTextConfig, classes: Sequence[str] = ()) -> None:
        self.dim, self.classes = config.dim, classes
        generator = torch.Generator().manual_seed(mix(config.seed, 0x776F7264))
        drawn = torch.randn(len(VOCABULARY) + 1, config.dim, generator=generator)
        drawn = F.normalize(drawn, dim=-1)
        self.words, self.offset = drawn[1:], drawn[0]

    def to(self, device: torch.device) -> "WordsEncoder":
        """Move the table, for `encode_ids`."""
        self.words, self.offset = self.words.to(device), self.offset.to(device)
        return self

    def encode(
        self,
        strings: Sequence[str],
        *,
        sentences: bool = False,  # noqa: ARG002 (both are sums of words)
    ) -> Float[Tensor, "strings dim"]:
        """Phrases of known words; an unknown one is an error with the nearest known."""
        rows = [[self._word_id(word, text) for word in _words(text)] for text in strings]
        longest = max((len(row) for row in rows), default=0)
        ids = torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.int64)
        return self.encode_ids(ids.view(len(rows), longest).to(self.words.device))

    def _word_id(self, word: str, text: str) -> int:
        if word not in WORD_ID:
            listed = f" ({', '.join(self.classes)}, ...)" if self.classes else ""
            plain = [known for known in VOCABULARY if known not in NONCE]
            hint = did_you_mean(word, self.classes) or did_you_mean(word, plain)
            raise InputError(
                f"{text!r}: this model knows generated rooms only; it reads their words{listed}, "
                f"and {word!r} is none of them{hint}; for photos, take a model that was made by "
                "`eligo pixels convert` or by training on photos"
            )
        return WORD_ID[word]

    def encode_ids(self, ids: Int64[Tensor, "*batch length"]) -> Float[Tensor, "*batch dim"]:
        """Phrases as rows of word ids, -1 for nothing; never looks at the device."""
        said = self.words[ids.clamp(min=0)] * (ids >= 0).unsqueeze(-1)
        return F.normalize(F.normalize(said.sum(-2), dim=-1) + _OFFSET * self.offset, dim=-1)


class TableEncoder(TextEncoder):
    """Vectors that a file holds by name."""

    def __init__(self, config: TableTextConfig) -> None:
        self.path = config.file
        self.table = {readable(key): v.float() for key, v in _read_vectors(config.file).items()}
        widths = {tuple(vector.shape) for vector in self.table.values()}
        if len(widths) != 1 or len(next(iter(widths))) != 1:
            raise InputError(
                f"{self.path}: got vectors of shapes {sorted(widths)[:4]}, expected one vector per "
                "name, all of one width"
            )
        self.dim = next(iter(widths))[0]

    def encode(
        self,
        strings: Sequence[str],
        *,
        sentences: bool = False,  # noqa: ARG002 (a key is a key)
    ) -> Float[Tensor, "strings dim"]:
        """The vectors of these names, normalised."""
        missing = [text for text in strings if readable(text) not in self.table]
        if missing:
            raise InputError(
                f"{self.path}: has no vector for {missing[0]!r}"
                f"{did_you_mean(readable(missing[0]), list(self.table))} ({len(self.table)} names)"
            )
        rows = [self.table[readable(text)] for text in strings]
        return F.normalize(torch.stack(rows), dim=-1) if rows else torch.zeros(0, self.dim)


class ClipEncoder(TextEncoder):
    """A frozen CLIP text model; every (model, template, string) is read once."""

    def __init__(self, config: ClipTextConfig) -> None:
        from transformers import AutoConfig, AutoTokenizer, CLIPTextModelWithProjection

        self.name, self.cache = config.model, config.cache
        self.known: dict[str, Tensor] = {}
        if config.cache is not None and config.cache.is_file():
            self.known = _read_vectors(config.cache)
        self._model: Any = None
        try:
            about = AutoConfig.from_pretrained(config.model)
            self._load = lambda: (
                AutoTokenizer.from_pretrained(config.model),
                CLIPTextModelWithProjection.from_pretrained(config.model).eval(),
            )
            self.dim = about.projection_dim
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(
                f"text.encoder.model: {config.model} cannot be read as a CLIP model "
                f"({str(error).splitlines()[0]}); give a local folder, or a name that was "
                "downloaded before"
            ) from error

    def encode(
        self, strings: Sequence[str], *, sentences: bool = False
    ) -> Float[Tensor, "strings dim"]:
        """Names through the templates: each normalised, the mean normalised again."""
        templates = ("{}",) if sentences else TEMPLATES
        subjects = [text if sentences else with_article(text) for text in strings]
        wanted = [[(template, subject) for template in templates] for subject in subjects]
        self._read([pair for pairs in wanted for pair in pairs])
        if not wanted:
            return torch.zeros(0, self.dim)
        rows = [torch.stack([self.known[self._key(*pair)] for pair in pairs]) for pairs in wanted]
        return F.normalize(torch.stack(rows).mean(1), dim=-1)

    def _key(self, template: str, subject: str) -> str:
        return dumps([self.name, template, subject])

    @torch.no_grad()
    def _read(self, pairs: list[tuple[str, str]]) -> None:
        new = list(dict.fromkeys(pair for pair in pairs if self._key(*pair) not in self.known))
        if not new:
            return
        if self._model is None:
            self._model = self._load()
        tokenizer, model = self._model
        # Cut to what the model can read: a sentence may be longer.
        longest = model.config.max_position_embeddings
        whole: dict[str, int] = {}  # word pieces of what a user wrote, with its longest template
        for start in range(0, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            texts = [plain_text(tokenizer, template.format(subject)) for template, subject in part]
            lengths = map(len, tokenizer(texts, verbose=False)["input_ids"])
            for (_, subject), length in zip(part, lengths, strict=True):
                whole[subject] = max(length, whole.get(subject, 0))
            tokens = tokenizer(
                texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
            vectors = F.normalize(model(**tokens).text_embeds.float(), dim=-1)
            self.known |= {
                self._key(*pair): row.clone() for pair, row in zip(part, vectors, strict=True)
            }
        remark_cut(list(whole), list(whole.values()), longest)
        if self.cache is not None:
            with writing(self.cache) as temporary:
                save_file(self.known, temporary)


def build_text_encoder(config: AnyTextEncoderConfig, classes: Sequence[str] = ()) -> TextEncoder:
    """The encoder that a config describes; `classes` are names to suggest for unknown words."""
    match config:
        case ClipTextConfig():
            return ClipEncoder(config)
        case TableTextConfig():
            return TableEncoder(config)
        case WordsTextConfig():
            return WordsEncoder(config, classes)


def _words(text: str) -> list[str]:
    spaced = text.replace("?", " ?").replace(".", " .").replace(",", " ,")
    return readable(spaced).lower().split()


def _read_vectors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors ({error})") from error
