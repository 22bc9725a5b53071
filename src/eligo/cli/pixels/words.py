"""`eligo pixels words`: a word table from any text encoder."""

from pathlib import Path
from typing import Annotated

import tyro

from eligo.cli.console import OutFile, print_result

Files = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")]


def run(
    files: Files,
    *,
    out: OutFile = Path("words.safetensors"),
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2",
    device: str = "auto",
    json: bool = False,
) -> None:
    """Write a vector for every name and sentence, for `text.encoder.file`.

    Args:
        files: Text files with a name per line, such as the classes; .jsonl files hold the tags and
            captions of images, as in training.
        out: The safetensors file to write.
        encoder: Folder or hub name of the text encoder: of sentence-transformers, another text
            model, CLIP or SigLIP.
        device: Where the encoder runs: auto, cpu or cuda.
        json: Print one JSON document.
    """
    from eligo.io.tensors import save_tensors
    from eligo.pixels.text.word_table import make_word_table, read_words
    from eligo.pretrained.devices import resolve_device

    names, sentences = read_words(files)
    table = make_word_table(encoder, names, sentences, device=resolve_device(device))
    save_tensors(out, table)
    width = len(next(iter(table.values())))
    result = {"names": len(names), "sentences": len(sentences), "text_dim": width, "written": out}
    print_result(result, json)
