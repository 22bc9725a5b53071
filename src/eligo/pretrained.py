"""Where trained models are found, and how they are read: all of their weights, or an error.

A model is named by its folder, by the name of one that comes with eligo, or by its name on the hub
(`owner/name`), the same in every family. What comes with eligo lies in one place,
`eligo/scenes/models/<name>`, and has a model card there. Imports no torch.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eligo.config.nearest import did_you_mean
from eligo.errors import InputError

SHIPPED = Path(__file__).parent / "scenes" / "models"
"""One folder for each model that comes with eligo; its name begins with its family's."""
CARD = "README.md"
STOCK_FILES = (
    "config.json", "generation_config.json", "processor_config.json", "preprocessor_config.json",
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "bpe.codes",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Patterns of what `save_pretrained` of transformers writes."""
_HOST = ("config.json", "processor_config.json")  # as transformers writes them
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PICKLES = ("*.bin", "*.ckpt", "*.pkl", "*.pt", "*.pth")  # never read, so never fetched
_SHOWN = 8  # weights of each kind that an error names; another model's would fill the screen


def shipped_models(*holding: str) -> list[str]:
    """Names of the models that come with eligo; `holding`: only those with all of these files.

    >>> "vlm" in shipped_models()
    True
    """
    files = holding or (CARD,)
    folders = (path.parent for path in SHIPPED.glob(f"*/{files[0]}"))
    return sorted(one.name for one in folders if all((one / file).is_file() for file in files))


def shipped_model(name: str, *, made_by: str) -> Path:
    """The folder of a model that comes with eligo; `made_by`: the command that trains another."""
    if name in (names := shipped_models()):
        return SHIPPED / name
    raise InputError(
        f"no model {name!r} comes with this eligo{did_you_mean(name, names)} "
        f"({', '.join(names) or 'none does'}); train one with `{made_by}` and give its folder"
    )


def find_model(name: str | Path, holding: str, *more: str) -> Path:
    """The folder of a model: one that comes with eligo, this one, or one fetched from the hub.

    `holding`: the files by which its kind is known; of those that come with eligo, no other kind
    is found or proposed. A folder that happens to be called like one of them is meant by `./NAME`.
    """
    folder, name = Path(name), str(name)
    if name in (names := shipped_models(holding, *more)):
        return SHIPPED / name
    if folder.is_dir():
        return folder
    reason = ""
    if _HUB_NAME.fullmatch(name):
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(name, ignore_patterns=list(_PICKLES)))
        except (OSError, ValueError) as error:  # no network, no such model, no such name
            reason = f"; from the hub: {str(error).strip().splitlines()[0]}"
    raise _not_found(name, names, reason)


def find_host(name: str) -> str:
    """A model to ask, for `transformers` to read: a folder, or a name on the hub as it is.

    What can be neither is an error here: `transformers` would ask the hub for a minute.
    """
    if name in (names := shipped_models(*_HOST)):
        return str(SHIPPED / name)
    if can_be_read(name):
        return name
    raise _not_found(name, names)


def can_be_read(name: str) -> bool:
    """Whether `transformers` should look for it: a folder, or what can be a name on the hub."""
    return Path(name).is_dir() or _HUB_NAME.fullmatch(name) is not None


def _not_found(name: str, names: list[str], reason: str = "") -> InputError:
    return InputError(
        f"{name}: there is no such folder{did_you_mean(name, names)}; expected a folder, a name of "
        f"what comes with eligo ({', '.join(names) or 'nothing of this kind'}), or OWNER/NAME on "
        f"the hub{reason}"
    )


def load_stock(kind: Any, name: str | Path, *, exact: bool = True, **options: Any) -> Any:
    """A model of `transformers` by its class; weights that it lacks are an error that lists them.

    `transformers` itself would leave those random. `exact`: so are weights that it has no place
    for; somebody else's checkpoint often has a few, for a head that is not wanted.
    """
    with quiet_transformers():
        model, info = kind.from_pretrained(
            name,
            local_files_only=Path(name).is_dir(),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # said below, with all the rest
            **options,
        )
    shapes = [
        f"{key}: {tuple(stored)} stored, {tuple(expected)} expected"
        for key, stored, expected in info["mismatched_keys"]
    ]
    unexpected = info["unexpected_keys"] if exact else ()
    refuse_misfits(name, misfits(info["missing_keys"], unexpected, shapes))
    return model


def misfits(missing: Any, unexpected: Any, shapes: Any, prefix: str = "") -> list[str]:
    """A line for each weight that does not fit, for `refuse_misfits`; the first of each kind."""
    kinds = (("missing: ", missing), ("unexpected: ", unexpected), ("shape of ", shapes))
    lines = []
    for start, entries in kinds:
        entries = list(entries)
        lines += [f"{start}{prefix}{entry}" for entry in entries[:_SHOWN]]
        if (left := len(entries) - _SHOWN) > 0:
            lines.append(f"... and {left} more like it")
    return lines


def refuse_misfits(where: str | Path, lines: list[str]) -> None:
    """Raise if there are any."""
    if lines:
        raise InputError(f"weights in {where} do not fit the model:\n  " + "\n  ".join(lines))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Meanwhile `transformers` draws no bars, and leaves it to us to say what does not fit."""
    from transformers.utils import logging

    drawn, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if drawn:
            logging.enable_progress_bar()
