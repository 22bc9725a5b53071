"""A word table: a safetensors file with one vector per name or sentence, from any text encoder.

It is what `text.encoder.kind: table` reads, and is stored with every model that was trained with
it, which then needs no text encoder.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.io.json_lines import read_json_lines
from eligo.io.reading import numbered_lines
from eligo.pixels.data.records import WordsRow
from eligo.pixels.text.encoders import TEMPLATES, readable, with_article
from eligo.pretrained.encoders import load_encoder


def read_words(files: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return the names and the sentences of some files, each once.

    JSON lines hold tags and captions; a file of any other kind holds one name per line.
    """
    names: dict[str, None] = {}
    sentences: dict[str, None] = {}
    for path in files:
        if path.suffix == ".jsonl":
            for _, row in read_json_lines(path, WordsRow):
                names |= dict.fromkeys(map(readable, row.tags or ()))
                sentences |= dict.fromkeys(map(readable, row.captions or ()))
        else:
            names |= dict.fromkeys(readable(line) for _, line in numbered_lines(path))
    if not names and not sentences:
        where = ", ".join(map(str, files)) or "no file"
        raise InputError(
            f"got no words in {where}; expected a file with a name per line, or .jsonl with tags "
            "or captions"
        )
    return list(names), list(sentences)


def make_word_table(
    encoder: str,
    names: Sequence[str],
    sentences: Sequence[str] = (),
    *,
    device: str | torch.device = "cpu",
) -> dict[str, Tensor]:
    """Return a unit vector for each string.

    A name is put into every template, as for CLIP, and its vectors are averaged; a sentence is
    encoded as it is. `encoder` is the folder or hub name of a model.
    """
    model = load_encoder("encoder", encoder)
    model.model.to(device)
    table = {}
    if sentences:
        table |= dict(zip(sentences, F.normalize(model.texts(sentences), dim=-1), strict=True))
    if names:
        prompts = [template.format(with_article(name)) for name in names for template in TEMPLATES]
        vectors = F.normalize(model.texts(prompts), dim=-1).view(len(names), len(TEMPLATES), -1)
        table |= dict(zip(names, F.normalize(vectors.mean(1), dim=-1), strict=True))
    return {name: vector.clone() for name, vector in table.items()}
