"""Load a selector with everything that it chooses by: its examples, their sampler and encoder.

A run of `eligo shots train` has all of them. A model (of `eligo shots convert`, a checkpoint, a
shipped one, weights of other programs) and a method without training get the examples of a folder.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eligo.config import load_config
from eligo.errors import InputError
from eligo.io.reading import read_object, reading
from eligo.pretrained.load import shipped_models
from eligo.shots.baselines import BM25, DPP, KNN, MMR, Random, ZeroShot
from eligo.shots.config import NAMED, PointerConfig, SamplerConfig, ShotsHostConfig
from eligo.shots.data.pickles import is_pickle
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.load import load_reader
from eligo.shots.hosts.remote import RemoteGenerator, open_remote
from eligo.shots.inference.embed import CandidateText, open_embedded
from eligo.shots.inference.encoders import Encoder
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.model.pretrained import FILE, find_pointer, import_pointer, load_pointer
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import ABOUT, INNER, PoolSelector, load_selector
from eligo.shots.training.train import PIPELINE

TRAINING_FREE: dict[str, Callable[[], PoolSelector]] = {
    "knn": KNN,
    "mmr": lambda: MMR(balance=0.5),
    "dpp": DPP,
    "bm25": BM25,
    "random": Random,
    "zero_shot": ZeroShot,
}
"""Selectors that need no training, by name."""
_log = logging.getLogger("eligo.shots")


@dataclass(frozen=True, eq=False)
class SelectorPipeline:
    """A selector, the sampler of its candidates, and the encoder of its queries."""

    selector: PoolSelector
    sampler: Sampler
    encoder: str | Encoder
    prompt: dict[str, str]
    """How the teacher wrote prompts: placement, instruction."""
    candidate_text: CandidateText = "question_answer"
    """Which text of an example was embedded."""
    balance: float = 0.5
    """MMR's lambda, to compare with: the best on the training records, if there were any."""

    @property
    def learned(self) -> LearnedSelector:
        """The selector, if it is a learned one."""
        if not isinstance(self.selector, LearnedSelector):
            raise InputError(f"selector: is a {self.selector.kind}, expected a learned selector")
        return self.selector

    def describe_candidates(self, count: int) -> str:
        """Describe how many examples of the pool were candidates, and how they were drawn."""
        size = len(self.selector.pool)
        if count == size:
            return f"all {size} examples"
        return f"{count} of {size} examples, drawn by the sampler {self.sampler.config.kind}"


def load_pipeline(
    selector: str | Path | PoolSelector | PointerSelector,
    shots: str | Path | Pool | None = None,
    *,
    encoder: str | Encoder | None = None,
    num_candidates: int | None = None,
    model_version: str | None = None,
) -> SelectorPipeline:
    """Load a selector with its sampler and encoder; the arguments are those of `predict`."""
    if model_version not in (None, *NAMED):
        raise InputError(f"model_version: got {model_version!r}, expected v0, v1, v2 or v3")
    about: dict[str, Any] = {}
    if isinstance(selector, str | Path):
        about = _read_pipeline(Path(selector))
    embed = about.get("embed", {})
    pool = shots if isinstance(shots, Pool) else None
    if isinstance(shots, str | Path):
        pool, _, described = open_embedded(Path(shots))
        if embed and embed["encoder"] != described["encoder"]:
            raise InputError(
                f"{shots}: was embedded by {described['encoder']}, but the selector was trained on "
                f"vectors of {embed['encoder']}; embed the examples with that encoder"
            )
        embed = described
    loaded = _load_selector(selector, pool, model_version)
    _check_version(selector, loaded, model_version)
    encoder = encoder or embed.get("encoder")
    if encoder is None:
        raise InputError(
            f"encoder: {selector} names none; give the encoder that embedded the examples: words, "
            "or the folder or hub name of a model; or the question's vector"
        )
    every = SamplerConfig(kind="nearest", num_candidates=max(1, len(loaded.pool)))
    config = about.get("sampler") or every
    if num_candidates is not None:
        config = config.replace({"num_candidates": num_candidates})
    candidate_text = embed.get("candidate_text", "question_answer")
    sampler = Sampler(loaded.pool, config)
    prompt, balance = about.get("prompt", {}), about.get("balance", 0.5)
    return SelectorPipeline(loaded, sampler, encoder, prompt, candidate_text, balance)


def trained_encoder(selector: Any) -> str | None:
    """Return the encoder that a run of `eligo shots train` names; None for other selectors."""
    if not isinstance(selector, str | Path):
        return None
    return _read_pipeline(Path(selector)).get("embed", {}).get("encoder")


def is_bare(selector: str | Path | PoolSelector | PointerSelector) -> bool:
    """Return whether a selector is a model or a method without examples of its own."""
    if isinstance(selector, str | Path):
        path = Path(selector)
        is_model = is_pickle(path) or find_pointer(path) is not None
        return _is_named(str(selector)) or (is_model and not _holds_examples(path))
    return isinstance(selector, PointerSelector) or selector._pool is None


def _is_named(name: str) -> bool:
    return name in TRAINING_FREE or name in shipped_models(f"{FILE}.safetensors")


def _holds_examples(folder: Path) -> bool:
    return any((path / ABOUT).is_file() for path in (folder, folder / INNER))


def check_examples(pipeline: SelectorPipeline, pool: Pool, where: str | Path) -> None:
    """Raise if the examples of a folder are not those that the selector chooses from."""
    expected = pipeline.selector.pool.content_hash
    if pool.content_hash != expected:
        raise InputError(
            f"{where}: its examples have hash {pool.content_hash}, but the selector was trained on "
            f"{expected} (or has those of --embedded); embed the same examples in the same way"
        )


def _read_pipeline(folder: Path) -> dict[str, Any]:
    """Read sampler, embedding and prompt of a run of `eligo shots train`; empty for others."""
    inner = folder / INNER if (folder / INNER).is_dir() else folder
    if not (inner / PIPELINE).is_file():
        return {}
    about = read_object(inner / PIPELINE, "`eligo shots train`")
    where = f"{folder}: holds no trained selector; {inner / PIPELINE}"
    with reading(where, "sampler, embed and prompt, as `eligo shots train` writes them"):
        pipeline = {
            "sampler": SamplerConfig(**about["sampler"]),
            "embed": {**about["embed"], "encoder": str(about["embed"]["encoder"])},
            "prompt": dict(about["prompt"]),
        }
        held_out = about.get("held_out") or {}  # absent in older runs
        pipeline["balance"] = float(held_out.get("balance", 0.5))
    if held_out.get("outcome") == "no better":
        _log.warning("%s: %s", folder, held_out["remark"])
    return pipeline


def _load_selector(
    selector: str | Path | PoolSelector | PointerSelector, pool: Pool | None, version: str | None
) -> PoolSelector:
    """Load a selector, to choose from `pool` if one is given."""
    if isinstance(selector, str | Path):
        selector = _read_selector(str(selector), pool is not None, version)
    if isinstance(selector, PoolSelector):
        loaded = selector if pool is None else selector.with_pool(pool)
    elif pool is None:
        raise InputError("shots: a model has no examples of its own; give a folder or a pool")
    else:
        loaded = LearnedSelector.of(selector, pool)
    if isinstance(loaded, LearnedSelector):
        expected, got = loaded.model.config.d_model, loaded.pool.vectors.shape[1]
        if expected != got:
            raise InputError(
                f"selector: reads vectors of width {expected}, but those of the examples have "
                f"width {got}; embed them with the encoder that it was trained on"
            )
    return loaded


def _read_selector(
    name: str, has_pool: bool, version: str | None
) -> PoolSelector | PointerSelector:
    path = Path(name)
    if is_pickle(path) and version is None:
        raise InputError(
            f"{path}: is a pickle that does not name the version of its model; give "
            f"--model_version v1, v2 or v3, or convert it first: `eligo shots convert {path} "
            f"--version v1 --out {path.with_suffix('')}`"
        )
    if is_pickle(path) and not path.is_file():
        raise InputError(f"{path}: there is no such file")
    has_examples = _holds_examples(path) and not _is_named(name)
    if not has_pool and not has_examples:
        if path.is_dir() and not is_bare(name):
            raise InputError(
                f"{name}: holds no trained selector (no {PIPELINE}); `eligo shots train` writes one"
            )
        why = "comes without examples to choose from" if is_bare(name) else "is not a folder"
        raise InputError(
            f"{name}: {why}; expected the folder of a run of `eligo shots train`, which learns "
            "from your own examples, or give them: --embedded FOLDER of `eligo shots embed` (in "
            "Python, `shots`)"
        )
    if name in TRAINING_FREE:
        return TRAINING_FREE[name]()
    if has_examples:
        return load_selector(path)
    if is_pickle(path) and version is not None:
        return import_pointer(path, NAMED[version])
    return load_pointer(name)


def _check_version(selector: Any, loaded: PoolSelector, version: str | None) -> None:
    if version is None:
        return
    is_learned = isinstance(loaded, LearnedSelector)
    got = loaded.model.config.version if is_learned else loaded.kind
    if got != version:
        name = selector if isinstance(selector, str | Path) else "the selector"
        raise InputError(f"model_version: got {version}, but {name} is {got}; give that, or none")


def default_shots(selector: PoolSelector) -> int:
    """Return the number of examples that a selector was trained for, or 6."""
    if isinstance(selector, LearnedSelector):
        return selector.model.config.shot_num
    return PointerConfig.model_fields["shot_num"].default


def open_generator(
    pipeline: SelectorPipeline,
    pool: Pool,
    queries: Pool,
    model: str,
    device: str,
    url: str | None = None,
) -> HostGenerator | RemoteGenerator:
    """Load a host that answers queries after examples of the pool, with prompts as in teaching."""
    settings = {"model": model, "device": device, "url": url, **pipeline.prompt}
    config = load_config(ShotsHostConfig, None, settings)
    if url is not None:
        host = open_remote(config)
        return RemoteGenerator(host, pool, queries, placement=config.placement)
    return HostGenerator(load_reader(config), pool, queries, placement=config.placement)
