"""Find trained models and load them strictly: all weights fit, or an error lists those that do not.

A model is named by its folder, by the name of one that comes with eligo, or by its name on the hub
(`owner/name`), the same in every family. Shipped models are in `eligo/models/<name>`, each with a
model card. Imports no torch.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from eligo.config.problems import did_you_mean
from eligo.errors import InputError
from eligo.io.locks import warnings_lock
from eligo.io.reading import reading, reason
from eligo.pretrained.untrusted import check_stock_folder, check_stock_weights, is_quantised
from eligo.renamed import new_name

SHIPPED = Path(__file__).parents[1] / "models"
"""One folder for each shipped model; its name begins with that of its family."""
CARD = "README.md"
STOCK_FILES = (
    "config.json", "generation_config.json", "processor_config.json", "preprocessor_config.json",
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "bpe.codes",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Patterns of the files that `save_pretrained` of transformers writes."""
_HOST = ("config.json", "processor_config.json")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PICKLES = ("*.bin", "*.ckpt", "*.pkl", "*.pt", "*.pth")  # fetched only if there are no safetensors
# Of a model of `transformers`: files of other frameworks, and folders (other formats, old code).
_OTHER_FORMATS = ("*/*", "*.py", "*.h5", "*.msgpack", "*.onnx*", "*.gguf", "*.ot", "*.tflite")
_HUB_TIMEOUT = 3.0  # seconds
_SHOWN = 8  # weights of each kind that an error lists


def shipped_models(*holding: str) -> list[str]:
    """Return the names of the shipped models; `holding`: only those with all of these files.

    >>> "vlm" in shipped_models()
    True
    """
    files = holding or (CARD,)
    folders = (path.parent for path in SHIPPED.glob(f"*/{files[0]}"))
    return sorted(path.name for path in folders if all((path / f).is_file() for f in files))


def shipped_model(name: str, *, made_by: str) -> Path:
    """Return the folder of a shipped model; `made_by`: the command that trains another."""
    if name in (names := shipped_models()):
        return SHIPPED / name
    raise InputError(
        f"no model {name!r} is shipped{_meant(name, names)} "
        f"({', '.join(names) or 'none is'}); train one with `{made_by}` and give its folder"
    )


def find_model(name: str | Path, holding: str, *more: str) -> Path:
    """Return the folder of a model: shipped, given, or fetched from the hub.

    `holding`: the files that identify its kind; shipped models without them are neither found nor
    proposed. Write `./NAME` for a folder with the name of a shipped model.
    """
    folder, name = Path(name), str(name)
    if name in (names := shipped_models(holding, *more)):
        return SHIPPED / name
    if folder.is_dir():
        return folder
    if _HUB_NAME.fullmatch(name):
        return _from_hub(name, (holding, *more, CARD), names, _PICKLES)
    raise _not_found(name, names)


def find_host(name: str | Path, *, weights: bool = True) -> Path:
    """Return the folder of a host: shipped, given, or fetched from the hub.

    `weights`: False where the configs are enough.
    """
    if str(name) in (names := shipped_models(*_HOST)):
        return SHIPPED / name
    return _find_stock(str(name), names, weights)


def find_encoder(key: str, name: str, *, weights: bool = True) -> Path:
    """Return the folder of an encoder of `transformers`; `key` names the setting in errors."""
    try:
        return _find_stock(name, [], weights)
    except InputError as error:
        raise InputError(f"{key}: {error}") from error


def _find_stock(name: str, names: list[str], weights: bool) -> Path:
    if Path(name).is_dir():
        return Path(name)
    if not _HUB_NAME.fullmatch(name):
        raise _not_found(name, names)
    ignore = _OTHER_FORMATS if weights else (*_OTHER_FORMATS, "*.safetensors")
    folder = _from_hub(name, (_HOST[0],), names, ignore=(*_PICKLES, *ignore))
    if weights and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        folder = _from_hub(name, (_HOST[0],), names, ignore=_OTHER_FORMATS)
    return folder


def fetch_modules(name: str, folder: Path, listed: str) -> None:
    """Fetch the configs in the subfolders of a model on the hub, if it lists its modules."""
    from huggingface_hub import snapshot_download

    if Path(name).is_dir() or not (folder / listed).is_file() or any(folder.glob("*/config.json")):
        return
    if _hub_answers():
        with suppress(Exception):  # what is missing is reported where it is read
            snapshot_download(name, allow_patterns=["*/config.json"])


def _from_hub(name: str, files: Sequence[str], names: list[str], ignore: Sequence[str]) -> Path:
    """Return the folder of a model on the hub: downloaded, or cached with one of these files."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    if _hub_answers():
        try:
            return Path(snapshot_download(name, ignore_patterns=list(ignore)))
        except Exception as error:  # no such model, no permission, a connection that broke
            raise _not_found(name, names, f"; from the hub: {reason(error)}") from error
    for file in files:
        if isinstance(cached := try_to_load_from_cache(name, file), str):
            return Path(cached).parent
    why = "the hub cannot be reached, and the cache (HF_HOME) has no copy: give a folder"
    raise _not_found(name, names, f"; {why}")


def _hub_answers() -> bool:
    """Whether the hub can be reached, within seconds; its own client would try for a minute."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answers: list[Any] = []

    def request() -> None:
        with suppress(Exception):
            answers.append(get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT))

    # The time limit of the client does not cover a name server that does not answer.
    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(_HUB_TIMEOUT)
    return bool(answers)


def _not_found(name: str, names: list[str], why: str = "") -> InputError:
    shipped = f" the name of a shipped model ({', '.join(names)})," if names else ""
    return InputError(
        f"{name}: there is no such folder{_meant(name, names)}; expected a folder,{shipped} or "
        f"OWNER/NAME on the hub{why}"
    )


def _meant(name: str, names: list[str]) -> str:
    """Return a hint: the new name of a renamed model, or the most similar name."""
    new = new_name("model", name)
    return f"; it is now called {new}" if new in names else did_you_mean(name, names)


def load_part(kind: Any, name: str | Path, **options: Any) -> Any:
    """Load a config, tokenizer or processor of `transformers`, by its class.

    `name`: a folder, or a string for `find_host`. Code in the folder is never run.
    """
    folder = name if isinstance(name, Path) else find_host(name)
    check_stock_folder(folder)
    return _read(kind, folder, **options)


def load_stock(kind: Any, name: str | Path, *, exact: bool = True, **options: Any) -> Any:
    """Load a model of `transformers` by its class; missing weights are an error that lists them.

    `transformers` itself would leave those random. With `exact`, weights without a place in the
    model are an error too; other people's checkpoints often have unused heads. Code in the folder
    is never run, and pickled weights are read as tensors only.
    """
    folder = name if isinstance(name, Path) else find_host(name)
    config = check_stock_folder(folder)
    check_stock_weights(folder, config)
    # First without memory for the weights: a config may claim any size.
    if not is_quantised(config):
        _read_model(kind, folder, exact, device_map="meta", **options)
    model = _read_model(kind, folder, exact, **options)
    refuse_misfits(folder, misfits((), (), (), broken=not_finite(model.named_parameters())))
    return model


def _read_model(kind: Any, folder: Path, exact: bool, **options: Any) -> Any:
    options |= {"weights_only": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = _read(kind, folder, **options)
    shapes = [  # `transformers` would leave these weights random
        f"{key}: {tuple(stored)} stored, {tuple(expected)} expected"
        for key, stored, expected in info["mismatched_keys"]
    ]
    unexpected = info["unexpected_keys"] if exact else ()
    refuse_misfits(folder, misfits(info["missing_keys"], unexpected, shapes))
    return model


def _read(kind: Any, folder: Path, **options: Any) -> Any:
    expected = f"a folder that {kind.__name__} of transformers can read"
    with reading(folder, expected), quiet_transformers():
        return kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **options
        )


def misfits(
    missing: Iterable[str],
    unexpected: Iterable[str],
    shapes: Iterable[str],
    prefix: str = "",
    *,
    types: Iterable[str] = (),
    broken: Iterable[str] = (),
) -> list[str]:
    """List the weights that do not fit, for `refuse_misfits`; the first few of each kind."""
    starts = ("missing: ", "unexpected: ", "shape of ", "type of ", "not finite: ")
    kinds = map(list, (missing, unexpected, shapes, types, broken))
    lines = []
    for start, entries in zip(starts, kinds, strict=True):
        lines += [f"{start}{prefix}{entry}" for entry in entries[:_SHOWN]]
        if (left := len(entries) - _SHOWN) > 0:
            lines.append(f"... and {left} more like it")
    return lines


def refuse_misfits(where: str | Path, lines: list[str]) -> None:
    """Raise an InputError that lists the weights in `lines`, if any."""
    if lines:
        raise InputError(f"weights in {where} do not fit the model: {'; '.join(lines)}")


def not_finite(tensors: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the names of tensors with NaN or infinity."""
    names = []
    for name, tensor in tensors:
        if not tensor.is_floating_point() or not tensor.numel() or tensor.element_size() == 1:
            continue  # torch does not compare packed floats
        low, high = tensor.detach().aminmax()  # both are NaN if one value is
        if not (low.isfinite() and high.isfinite()):
            names.append(name)
    return names


_quiet_lock = Lock()
_quiet_users = 0  # threads inside `quiet_transformers`: the last one restores the settings
_loud = ExitStack()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and warnings of `transformers`; misfits are reported here."""
    global _quiet_users, _loud
    with _quiet_lock, warnings_lock:
        if not _quiet_users:
            _loud = _silenced()
        _quiet_users += 1
    try:
        yield
    finally:
        with _quiet_lock, warnings_lock:
            _quiet_users -= 1
            if not _quiet_users:
                _loud.close()


def _silenced() -> ExitStack:
    from transformers.utils import logging

    stack = ExitStack()
    stack.callback(logging.set_verbosity, logging.get_verbosity())
    if logging.is_progress_bar_enabled():
        stack.callback(logging.enable_progress_bar)
    stack.enter_context(warnings.catch_warnings())
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    return stack
