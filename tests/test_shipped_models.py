"""Shipped models: each has a card, respects its size limit, and loads."""

import re
from collections import Counter
from pathlib import Path

import pytest
from safetensors import safe_open

from eligo.errors import InputError
from eligo.pretrained.load import CARD, SHIPPED, shipped_models
from eligo.tokens.inference.resolve import shipped_plans
from eligo.tokens.plan_files import PLAN

MODELS = shipped_models()
LIMITS = {"vlm": 20, "tokens": 3, "patches": 4, "shots": 9, "pixels": 4}
"""Size limit of each family in megabytes."""
DOCS = Path(__file__).parents[1] / "docs" / "shipped_models.md"


def family(name: str) -> str:
    return name.partition("_")[0]


def megabytes(name: str) -> float:
    return sum(file.stat().st_size for file in (SHIPPED / name).rglob("*") if file.is_file()) / 1e6


def problems(card: str) -> list[str]:
    """Fields that a card lacks."""
    found = []
    if not re.match(r"# \S.{10,}\n", card):
        found.append("a first line that says what it is")
    for field in ("For", "Data", "Scores", "Size", "Limits", "License"):
        if not re.search(rf"^- \*\*{field}\*\*: \S.{{9,}}", card, re.MULTILINE):
            found.append(field)
    if not re.search(r"\*\*Made\*\* on 20\d\d-\d\d-\d\d", card):
        found.append("the date")
    if not re.search(r"\*\*Hardware\*\*: \S.{4,}", card):
        found.append("the hardware")
    if not re.search(r"^(```sh\n(.*\n)*?|    )eligo \w+ \S+", card, re.MULTILINE):
        found.append("the command")
    return found


def test_models_are_shipped():
    assert "vlm" in MODELS


@pytest.mark.parametrize("name", MODELS)
def test_every_card_is_complete(name: str):
    assert problems((SHIPPED / name / CARD).read_text(encoding="utf-8")) == []


def test_card_template_is_complete_and_every_line_is_required():
    (template,) = re.findall(r"```markdown\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert problems(template) == []
    assert problems("") == [
        "a first line that says what it is", "For", "Data", "Scores", "Size", "Limits", "License",
        "the date", "the hardware", "the command",
    ]  # fmt: skip
    for word in ("# What", "**For**", "**Limits**", "2026-01-31 by", "**Hardware**", "    eligo"):
        assert len(problems(template.replace(word, "gone"))) == 1, word


def test_every_folder_has_a_card():
    assert sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()) == MODELS


def test_sizes_are_within_limits():
    sizes: Counter[str] = Counter()
    for name in MODELS:
        assert family(name) in LIMITS, f"{name}: begins with none of {', '.join(LIMITS)}"
        sizes[family(name)] += megabytes(name)
    assert all(size <= LIMITS[name] for name, size in sizes.items()), sizes
    assert sum(sizes.values()) < 40


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_half_precision_in_small_files(name: str):
    files = sorted((SHIPPED / name).rglob("*.safetensors"))
    assert files or family(name) == "tokens"  # a plan of training-free methods has none
    for file in files:
        assert file.stat().st_size <= 10e6
        with safe_open(file, framework="pt") as stored:
            kinds = {stored.get_slice(key).get_dtype() for key in stored.keys()}  # noqa: SIM118
        assert not kinds & {"F32", "F64"}, file
    for path in (SHIPPED / name).rglob("*"):
        assert path.suffix not in {".bin", ".pt", ".pth", ".pkl", ".npy"}


def load(folder: Path) -> object:
    """Loads a model with the class that its files name."""
    has = {path.name for path in folder.iterdir()}
    if "plan.json" in has:
        from eligo.tokens import Plan

        return Plan.from_pretrained(folder.name)
    if "selector.json" in has:
        from eligo.shots import load_selector

        return load_selector(folder)
    if "config.json" in has:
        from eligo.scenes import load_vlm

        return load_vlm(folder)
    if "pointer.safetensors" in has:
        from eligo.shots.model.pointer import PointerSelector

        return PointerSelector.from_pretrained(folder.name)
    if "net.safetensors" in has:
        from eligo.patches.model.retrieval_model import RetrievalModel

        return RetrievalModel.from_pretrained(folder.name)
    from eligo.pixels import Segmenter

    return Segmenter.from_pretrained(folder.name)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_loads(name: str):
    load(SHIPPED / name)


def test_tiny_llava_loads_strictly(tmp_path: Path):
    from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, load_vlm, save_vlm

    sizes = VlmConfig(image_size=28, vision_layers=2, vision_width=8, layers=1, width=8, heads=2)
    model = build_vlm(sizes)
    del model.model.multi_modal_projector.linear_2
    save_vlm(model, build_processor(sizes), tmp_path)
    with pytest.raises(InputError, match=r"missing: model\.multi_modal_projector\.linear_2\.bias"):
        load_vlm(tmp_path)


def test_plans_for_engines_are_not_offered_elsewhere():
    """The demo and the live page try plans in transformers, where a size bias is right."""
    for_engines = set(shipped_models(PLAN)) - set(shipped_plans())
    assert for_engines == {"tokens_folding", "tokens_reindex"}
