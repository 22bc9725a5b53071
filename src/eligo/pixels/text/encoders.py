"""From words to vectors: CLIP, a table made elsewhere, or the scenes' own words.

All are frozen and give unit vectors. `words` draws one fixed random unit vector per word of the
embedded world; a phrase is the normalised sum of its words plus an offset that all phrases share,
normalised: their cosines lie where those of a real text encoder do (0.7 for phrases without a
common word, 0.9 for two words of three).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from json import dumps
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from eligo.config.nearest import did_you_mean
from eligo.errors import InputError
from eligo.io.tensors import save_tensors
from eligo.pixels.config import (
    AnyTextEncoderConfig,
    ClipTextConfig,
    TableTextConfig,
    WordsTextConfig,
)
from eligo.pixels.text.phrases import TEMPLATES, readable, with_article
from eligo.pretrained.chat import plain_text, remark_cut, tokenize
from eligo.pretrained.identity import ENCODER, check_tokenizer
from eligo.pretrained.load import find_encoder, load_part, load_stock
from eligo.scenes.phrases import VOCABULARY, WORD_ID
from eligo.scenes.words import NONCE
from eligo.train.rng import mix
from eligo.train.weights import read_tensors

_OFFSET = 1.55  # length of what all phrases share, over a phrase's own length: cosines 0.7-0.9
_AT_ONCE = 256
_KEY = "text.encoder.model"
_PROBE = ("{}", "a photo of a chair in a room, an image of a red box on the table")
"""A template and a sentence: its vector says which encoder it is."""
_PROBED = 16  # numbers of that vector
_ALIKE = 5e-3  # of unit vectors that several versions of the libraries made


class TextEncoder(ABC):
    """Strings to unit vectors, one each."""

    dim: int

    @abstractmethod
    def encode(
        self, strings: Sequence[str], *, sentences: bool = False
    ) -> Float[Tensor, "strings dim"]:
        """Vectors of names (tags, classes), or of whole sentences."""

    def probe(self) -> tuple[float, ...] | None:
        """Numbers by which another encoder is noticed; None where the config says it all."""
        return None


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
            names = [name for name in self.classes if name in WORD_ID]
            listed = f" ({', '.join(names)}, ...)" if names else ""
            plain = [known for known in VOCABULARY if known not in NONCE]
            hint = did_you_mean(word, names) or did_you_mean(word, plain)
            raise InputError(
                f"{text!r}: this model knows generated rooms only; it reads their words{listed}, "
                f"and {word!r} is none of them{hint}; for photos, take a model that was made by "
                "`eligo pixels convert` or by training on photos, and train with text.encoder of "
                "kind clip or table, or with --text.source none"
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
        self.table = {readable(key): v.float() for key, v in read_tensors(config.file).items()}
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
        from transformers import AutoConfig

        self.name, self.cache = config.model, config.cache
        self.known: dict[str, Tensor] = {}
        if config.cache is not None and config.cache.is_file():
            self.known = read_tensors(config.cache)
        # With vectors that were kept, the weights may never be needed; else they are read at once.
        folder = find_encoder(_KEY, config.model, weights=not self.known)
        about = load_part(AutoConfig, folder)
        if not isinstance(width := getattr(about, "projection_dim", None), int):
            raise InputError(
                f"{_KEY}: {config.model} cannot be read as a CLIP model (it is a "
                f"{about.model_type}); give the folder or hub name of one"
            )
        self.dim = width
        self._lock = Lock()
        self._model: tuple[Any, Any] | None = None
        if not self.known:
            self._open()

    def _load(self) -> tuple[Any, Any]:
        from transformers import AutoTokenizer, CLIPTextModelWithProjection

        # The images' half of a whole CLIP is not wanted.
        folder = find_encoder(_KEY, self.name)
        tokenizer = load_part(AutoTokenizer, folder)
        return tokenizer, load_stock(CLIPTextModelWithProjection, folder, exact=False).eval()

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

    def probe(self) -> tuple[float, ...]:
        """The first numbers of a sentence's vector: they tell of the tokenizer and the weights."""
        self._read([_PROBE])
        return _rounded(self.known[self._key(*_PROBE)])

    def _key(self, template: str, subject: str) -> str:
        return dumps([self.name, template, subject])

    def _read(self, pairs: list[tuple[str, str]]) -> None:
        with self._lock:  # threads share what is known, and the tokenizer's state
            self._read_new(pairs)

    def _read_new(self, pairs: list[tuple[str, str]]) -> None:
        new = list(dict.fromkeys(pair for pair in pairs if self._key(*pair) not in self.known))
        if not new:
            return
        if self._model is None:
            self._open()
        whole: dict[str, int] = {}  # word pieces of what a user wrote, with its longest template
        for start in range(0, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            rows, lengths = self._vectors(part)
            for (_, subject), length in zip(part, lengths, strict=True):
                whole[subject] = max(length, whole.get(subject, 0))
            self.known |= {self._key(*pair): row for pair, row in zip(part, rows, strict=True)}
        remark_cut(list(whole), list(whole.values()), self._longest)
        if self.cache is not None:
            save_tensors(self.cache, self.known)

    def _open(self) -> None:
        """Load tokenizer and model; refuse what does not belong together."""
        tokenizer, model = self._load()
        where = f"text.encoder.model: {self.name}"
        check_tokenizer(tokenizer, model, where, least=ENCODER)
        self._model = tokenizer, model
        now, before = self._vectors([_PROBE])[0][0], self.known.get(self._key(*_PROBE))
        if before is not None and not same_probe(_rounded(now), _rounded(before)):
            self._model = None  # the next call fails as well
            raise InputError(
                f"text.encoder.cache: {self.cache} holds vectors of another model than the one "
                f"that is now in {self.name}; remove the file, or give another one"
            )
        self.known[self._key(*_PROBE)] = now

    @property
    def _longest(self) -> int:
        """Word pieces that the model can read; a sentence may be longer, and is cut."""
        assert self._model is not None
        return self._model[1].config.max_position_embeddings

    @torch.no_grad()
    def _vectors(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[Tensor], list[int]]:
        """A vector for each text, and how many word pieces the whole text has."""
        assert self._model is not None
        tokenizer, model = self._model
        texts = [plain_text(tokenizer, template.format(subject)) for template, subject in pairs]
        lengths = [len(ids) for ids in tokenize(tokenizer, texts, verbose=False)["input_ids"]]
        tokens = tokenize(
            tokenizer, texts,
            padding=True, truncation=True, max_length=self._longest, return_tensors="pt",
        )  # fmt: skip
        vectors = F.normalize(model(**tokens).text_embeds.float(), dim=-1)
        return [row.clone() for row in vectors], lengths


def _rounded(vector: Tensor) -> tuple[float, ...]:
    return tuple(round(x, 5) for x in vector[:_PROBED].tolist())


def same_probe(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two probes are those of one encoder."""
    return len(one) == len(other) and all(
        abs(a - b) <= _ALIKE for a, b in zip(one, other, strict=True)
    )


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
