"""The flags of the V3 guide's training command, in our words. Section 7.

--model_version v3   --model.version v3          --sample_num 4949    --data.num_anchors 4949
FOLDER               --data.path FOLDER          --scoring_method gain  --data.objective gain
--num_epochs, --batch_size, --lr, --weight_decay       the same under --train
--icds_origin random_train                --data.sampler random --data.split train
"""

from pathlib import Path

from eligo.errors import InputError
from eligo.shots.data.pickles import is_pickle, refuse_pickle

_ALIASES = {
    "--model_version": "--model.version",
    "--num_epochs": "--train.num_epochs",
    "--batch_size": "--train.batch_size",
    "--lr": "--train.lr",
    "--weight_decay": "--train.weight_decay",
    "--sample_num": "--data.num_anchors",
    "--scoring_method": "--data.objective",
}
_ORIGIN = "--icds_origin"
_SWITCHES = {"--resume", "--json", "--smoke", "--help", "-h"}
_SAMPLERS = ("random", "text", "image", "mix")


def translated_words(args: list[str]) -> list[str]:
    """The same command line in our words; a bare folder (or JSON file) is what is learned from.

    >>> translated_words(["--lr", "1e-4", "--icds_origin", "random_train"])
    ['--train.lr', '1e-4', '--data.sampler', 'random', '--data.split', 'train']
    """
    translated: list[str] = []
    words = iter(args)
    for word in words:
        if not word.startswith("-"):
            refuse_pickle(Path(word))
            is_data = Path(word).is_dir() or Path(word).suffix == ".json"
            translated += ["--data.path", word] if is_data else [word]
            continue
        flag, has_value, value = word.partition("=")
        name = "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag
        if name not in _SWITCHES and not has_value:
            value = next(words, None)
        if value is not None and is_pickle(Path(value)):
            refuse_pickle(Path(value))
        if name == _ORIGIN:
            translated += _origin(value or "")
        else:
            translated.append(_ALIASES.get(name, flag))
            translated += [] if value is None or name in _SWITCHES else [value]
    return translated


def _origin(value: str) -> list[str]:
    sampler, _, split = value.partition("_")
    if sampler not in _SAMPLERS or not split:
        raise InputError(
            f"{_ORIGIN}: got {value!r}, expected a sampler ({', '.join(_SAMPLERS)}) and a split, "
            "such as random_train"
        )
    return ["--data.sampler", sampler, "--data.split", split]
