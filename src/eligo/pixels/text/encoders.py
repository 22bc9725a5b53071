"""Text encoders: CLIP, a table of vectors, or fixed random vectors for the scenes' words.

All are frozen and return unit vectors. `words` has one random unit vector per word of the generated
scenes; a phrase is the normalised sum of its words plus a shared offset, normalised. Cosines are
like those of a real text encoder: 0.7 without a common word, 0.9 for two words of three.

Departure from the original: the mean over the prompt templates is normalised again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from json import dumps
from threading import Lock

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from eligo.config.problems import did_you_mean
from eligo.errors import InputError
from eligo.io.tensors import save_tensors
from eligo.pixels.config import (
    AnyTextEncoderConfig,
    ClipTextConfig,
    TableTextConfig,
    WordsTextConfig,
)
from eligo.pretrained import encoders
from eligo.pretrained.chat import warn_truncated
from eligo.pretrained.load import find_encoder, load_part
from eligo.scenes.phrases import VOCABULARY, WORD_ID
from eligo.scenes.words import NONCE
from eligo.train.rng import mix
from eligo.train.weights import read_tensors

TEMPLATES = ("a photo of {}", "an image of {}", "a photo of {} in a room")
"""`{}` is the name with its article. Sentences get no template."""
_OFFSET = 1.55  # length of the shared offset relative to a phrase: cosines of 0.7 to 0.9
_KEY = "text.encoder.model"
_PROBE = ("{}", "a photo of a chair in a room, an image of a red box on the table")
"""A template and a sentence, whose vector identifies the encoder."""
_PROBED = 16  # numbers of that vector
_TOLERANCE = 5e-3  # between versions of the libraries


class TextEncoder(ABC):
    """Strings to unit vectors, one each."""

    dim: int

    @abstractmethod
    def encode(
        self, strings: Sequence[str], *, sentences: bool = False
    ) -> Float[Tensor, "strings dim"]:
        """Vectors of names (tags, classes), or of whole sentences."""

    def probe(self) -> tuple[float, ...] | None:
        """Numbers that identify the encoder; None if its config does."""
        return None


class WordsEncoder(TextEncoder):
    """Fixed random vectors for the words of the generated scenes."""

    def __init__(self, config: WordsTextConfig, classes: Sequence[str] = ()) -> None:
        self.dim, self.classes = config.dim, classes
        generator = torch.Generator().manual_seed(mix(config.seed, 0x776F7264))
        vectors = torch.randn(len(VOCABULARY) + 1, config.dim, generator=generator)
        vectors = F.normalize(vectors, dim=-1)
        self.words, self.offset = vectors[1:], vectors[0]

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
        """Vectors of phrases of known words; an error names the nearest known word."""
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
                f"{text!r}: this model is for generated rooms only; {word!r} is not in its "
                f"vocabulary{listed}{hint}; for photos, use a model from `eligo pixels convert`, "
                "or train one with text.encoder of kind clip or table, or with --text.source none"
            )
        return WORD_ID[word]

    def encode_ids(self, ids: Int64[Tensor, "*batch length"]) -> Float[Tensor, "*batch dim"]:
        """Vectors of phrases as rows of word ids, padded with -1; does not synchronise."""
        words = self.words[ids.clamp(min=0)] * (ids >= 0).unsqueeze(-1)
        return F.normalize(F.normalize(words.sum(-2), dim=-1) + _OFFSET * self.offset, dim=-1)


class TableEncoder(TextEncoder):
    """Vectors by name, from a file."""

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
        sentences: bool = False,  # noqa: ARG002 (keys of both kinds are in one table)
    ) -> Float[Tensor, "strings dim"]:
        """The vectors of these names, normalised."""
        missing = [text for text in strings if readable(text) not in self.table]
        if missing:
            raise InputError(
                f"{self.path}: has no vector for {missing[0]!r}"
                f"{did_you_mean(readable(missing[0]), list(self.table))} ({len(self.table)} names; "
                "`eligo pixels words` makes a table)"
            )
        rows = [self.table[readable(text)] for text in strings]
        return F.normalize(torch.stack(rows), dim=-1) if rows else torch.zeros(0, self.dim)


class ClipEncoder(TextEncoder):
    """A frozen CLIP text model; the vector of every (template, string) is computed once."""

    def __init__(self, config: ClipTextConfig) -> None:
        from transformers import AutoConfig

        self.name, self.cache = config.model, config.cache
        self.known: dict[str, Tensor] = {}
        if config.cache is not None and config.cache.is_file():
            self.known = read_tensors(config.cache)
        # With cached vectors the weights may never be needed; else they are loaded at once.
        folder = find_encoder(_KEY, config.model, weights=not self.known)
        text_config = load_part(AutoConfig, folder)
        if not isinstance(width := getattr(text_config, "projection_dim", None), int):
            raise InputError(
                f"{_KEY}: {config.model} cannot be read as a CLIP model (it is a "
                f"{text_config.model_type}); give the folder or hub name of one"
            )
        self.dim = width
        self._lock = Lock()
        self._loaded: encoders.ClipEncoder | None = None
        if not self.known:
            self._load()

    def encode(
        self, strings: Sequence[str], *, sentences: bool = False
    ) -> Float[Tensor, "strings dim"]:
        """Names in every template: each vector normalised, the mean normalised again."""
        templates = ("{}",) if sentences else TEMPLATES
        subjects = [text if sentences else with_article(text) for text in strings]
        prompts = [[(template, subject) for template in templates] for subject in subjects]
        self._compute([pair for pairs in prompts for pair in pairs])
        if not prompts:
            return torch.zeros(0, self.dim)
        rows = [torch.stack([self.known[self._key(*pair)] for pair in pairs]) for pairs in prompts]
        return F.normalize(torch.stack(rows).mean(1), dim=-1)

    def probe(self) -> tuple[float, ...]:
        """The first numbers of a sentence's vector, which depend on tokenizer and weights."""
        self._compute([_PROBE])
        return _rounded(self.known[self._key(*_PROBE)])

    def _key(self, template: str, subject: str) -> str:
        return dumps([self.name, template, subject])

    def _compute(self, pairs: list[tuple[str, str]]) -> None:
        """Add the vectors of pairs (template, subject) to those that are known."""
        with self._lock:  # threads share the known vectors
            new = list(dict.fromkeys(pair for pair in pairs if self._key(*pair) not in self.known))
            if not new:
                return
            encoder = self._loaded or self._load()
            lengths: dict[str, int] = {}  # word pieces of a subject in its longest template
            texts = [template.format(subject) for template, subject in new]
            counts = encoders.count_pieces(encoder.tokenizer, texts)
            for (_, subject), count in zip(new, counts, strict=True):
                lengths[subject] = max(count, lengths.get(subject, 0))
            rows = F.normalize(encoder.texts(texts, warn=False), dim=-1)
            pairs_rows = zip(new, rows, strict=True)
            self.known |= {self._key(*pair): row.clone() for pair, row in pairs_rows}
            warn_truncated(list(lengths), list(lengths.values()), encoder.longest)
            if self.cache is not None:
                save_tensors(self.cache, self.known)

    def _load(self) -> encoders.ClipEncoder:
        """Load tokenizer and model; refuse a cache that another model wrote."""
        encoder = encoders.load_clip_text(_KEY, self.name)
        now = F.normalize(encoder.texts([_PROBE[1]], warn=False), dim=-1)[0]
        before = self.known.get(self._key(*_PROBE))
        if before is not None and not same_probe(_rounded(now), _rounded(before)):
            raise InputError(
                f"text.encoder.cache: {self.cache} holds vectors of another model than the one "
                f"that is now in {self.name}; remove the file, or give another one"
            )
        self.known[self._key(*_PROBE)] = now
        self._loaded = encoder
        return encoder


def _rounded(vector: Tensor) -> tuple[float, ...]:
    return tuple(round(x, 5) for x in vector[:_PROBED].tolist())


def same_probe(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two probes are of the same encoder."""
    return len(first) == len(second) and all(
        abs(a - b) <= _TOLERANCE for a, b in zip(first, second, strict=True)
    )


def build_text_encoder(config: AnyTextEncoderConfig, classes: Sequence[str] = ()) -> TextEncoder:
    """Build the encoder of a config; `classes` are names to suggest for unknown words."""
    match config:
        case ClipTextConfig():
            return ClipEncoder(config)
        case TableTextConfig():
            return TableEncoder(config)
        case WordsTextConfig():
            return WordsEncoder(config, classes)


def readable(name: str) -> str:
    """Return a class name with spaces: `night_stand` becomes `night stand`."""
    return " ".join(name.replace("_", " ").split())


def with_article(name: str) -> str:
    """Return a name with its article, by the first letter.

    >>> with_article("night_stand"), with_article("umbrella")
    ('a night stand', 'an umbrella')
    """
    words = readable(name)
    return f"{'an' if words[:1].lower() in tuple('aeiou') else 'a'} {words}"


def _words(text: str) -> list[str]:
    spaced = text.replace("?", " ?").replace(".", " .").replace(",", " ,")
    return readable(spaced).lower().split()
