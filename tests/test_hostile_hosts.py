"""Untrusted `transformers` folders: their code never runs, errors are one line."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, ViTConfig, ViTModel

from eligo.cli import main
from eligo.errors import EligoError, InputError, MissingExtraError
from eligo.io.reading import reading
from eligo.patches.config import RetrievalConfig
from eligo.patches.model.build import build_encoders, scene_tokenizer
from eligo.pixels.config import ClipTextConfig
from eligo.pixels.text.encoders import build_text_encoder
from eligo.pretrained import load as pretrained
from eligo.pretrained.chat import render_chat
from eligo.pretrained.untrusted import check_stock_folder
from eligo.scenes.config import VlmConfig
from eligo.scenes.vlm import build_processor, build_vlm, load_vlm, save_vlm
from eligo.shots.config import ShotsHostConfig
from eligo.shots.hosts.load import load_reader
from eligo.shots.inference.encoders import open_encoder
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.load import load_host

SMALL = VlmConfig(
    image_size=28, vision_width=16, vision_layers=2, layers=1, width=16, hidden=16, heads=2
)
TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TOWER |= {"intermediate_size": 16}
WEIGHTS = "model.safetensors"


def save_host(path: Path) -> None:
    save_vlm(build_vlm(SMALL), build_processor(SMALL), path)


def save_clip(path: Path) -> None:
    config = CLIPConfig(
        text_config={**TOWER, "vocab_size": 180, "projection_dim": 8},
        vision_config={**TOWER, "image_size": 28, "patch_size": 14},
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(path)
    build_processor(SMALL).image_processor.save_pretrained(path)
    scene_tokenizer().save_pretrained(path)


def save_vit(path: Path) -> None:
    ViTModel(ViTConfig(**TOWER, image_size=28, patch_size=14), False).save_pretrained(path)


def save_bert(path: Path) -> None:
    BertModel(BertConfig(**TOWER, vocab_size=180), False).save_pretrained(path)
    scene_tokenizer().save_pretrained(path)


def patches_encoders(**encoders: str) -> Any:
    return build_encoders(RetrievalConfig().replace({"encoders": encoders}))


LOADERS: dict[str, tuple[Callable[[Path], None], Callable[[str], Any]]] = {
    "tokens": (save_host, lambda name: load_host(HostConfig(model=name))),
    "shots": (save_host, lambda name: load_reader(ShotsHostConfig(model=name, device="cpu"))),
    "scenes": (save_host, load_vlm),
    "tokens plan": (save_host, HostShape.load),
    "shots encoder": (save_clip, lambda name: open_encoder(name, "cpu")),
    "pixels": (
        save_clip,
        lambda name: build_text_encoder(ClipTextConfig(model=name)).encode(["desk"]),
    ),
    "patches vision": (save_vit, lambda name: patches_encoders(vision=name)),
    "patches text": (save_bert, lambda name: patches_encoders(text=name)),
}


def refusal(load: Callable[[str], Any], there: Path) -> str:
    """The one-line error for a folder."""
    with pytest.raises(EligoError) as caught:
        load(str(there))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(there) in message
    return message


def change(path: Path, **changes: Any) -> None:
    """Changes fields of a JSON file; `a__b` is a nested field."""
    tree = json.loads(path.read_text()) if path.is_file() else {}
    for key, value in changes.items():
        *outer, last = key.split("__")
        place = tree
        for name in outer:
            place = place[name]
        place[last] = value
    path.write_text(json.dumps(tree))


# ---------------------------------------------------------------- code


@pytest.mark.parametrize("name", LOADERS)
def test_valid_folders_load(name, tmp_path):
    save, load = LOADERS[name]
    save(tmp_path)
    load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, "config.json") for name in LOADERS),
        ("tokens", "tokenizer_config.json"),
        ("shots", "processor_config.json"),
    ],
)
def test_code_of_a_folder_never_runs(name, file, tmp_path, monkeypatch):
    """Neither with a prompt on the terminal, nor if it is answered with yes."""
    save, load = LOADERS[name]
    save(tmp_path)
    marker = tmp_path / "it ran"
    for part in ("configuration_own", "modeling_own", "processing_own", "tokenization_own"):
        (tmp_path / f"{part}.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    kinds = {
        "AutoConfig": "configuration_own.Own",
        "AutoModel": "modeling_own.Own",
        "AutoModelForImageTextToText": "modeling_own.Own",
        "AutoProcessor": "processing_own.Own",
        "AutoTokenizer": ["tokenization_own.Own", None],
    }
    change(tmp_path / file, auto_map=kinds, model_type="own")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    message = refusal(load, tmp_path)
    assert "auto_map" in message
    assert "transformers" in message
    assert not marker.exists()


def test_pickled_weights_run_no_code(tmp_path):
    save_host(tmp_path)
    marker = tmp_path / "it ran"
    tensors = load_file(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    load_host(HostConfig(model=str(tmp_path)))  # only tensors are read

    class Runs:
        def __reduce__(self) -> Any:
            return open, (str(marker), "w")

    torch.save({**tensors, "more": Runs()}, tmp_path / "pytorch_model.bin")
    for load in (LOADERS["tokens"][1], LOADERS["shots"][1]):
        refusal(load, tmp_path)
    assert not marker.exists()


def test_attention_kernels_are_not_fetched_from_the_hub(tmp_path):
    save_host(tmp_path)
    change(tmp_path / "config.json", attn_implementation="somebody/kernels")
    assert "never runs" in refusal(load_vlm, tmp_path)


# ---------------------------------------------------------------- configs and weights

CONFIGS = {
    "a word as a size": {"text_config__hidden_size": "wide"},
    "a negative size": {"text_config__hidden_size": -16},
    "endless": {"text_config__hidden_size": 10**12},
    "large": {"text_config__intermediate_size": 10**9},
    "words": {"text_config__vocab_size": 10**11},
    "layers": {"text_config__num_hidden_layers": 10**9},
    "labels": {"num_labels": 10**9},
    "patches": {"vision_config__image_size": 10**7},
    "no heads": {"text_config__num_attention_heads": 0},
    "no patches": {"vision_config__patch_size": 0},
    "unknown model": {"model_type": "nothing"},
    "other part": {"text_config": []},
    "unknown activation": {"text_config__hidden_act": "none of these"},
    "unknown positions": {"text_config__rope_parameters": {"rope_type": "x"}},
    "packed": {"quantization_config": 3},
    "weights elsewhere": {"transformers_weights": "../model.safetensors"},
}


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_configs_with_impossible_sizes_are_refused(changes, tmp_path):
    save_host(tmp_path)
    change(tmp_path / "config.json", **changes)
    refusal(LOADERS["shots"][1], tmp_path)


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int64)


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.index_fill(0, torch.tensor([0]), torch.nan)


@pytest.mark.parametrize(
    ("name", "harm", "message"),
    [
        *((name, with_nan, "not finite") for name in LOADERS if name != "tokens plan"),
        ("tokens", as_integers, "as I64, expected floats"),
        ("shots", lambda tensor: tensor[:-1].clone(), "shape of"),
        ("pixels", lambda tensor: None, "missing"),
    ],
)
def test_invalid_weight_files_are_refused(name, harm, message, tmp_path):
    save, load = LOADERS[name]
    save(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    key = next(k for k, t in sorted(tensors.items()) if t.ndim == 2 and "vision_model" not in k)
    harmed = {**tensors, key: harm(tensors[key])}
    save_file({k: t for k, t in harmed.items() if t is not None}, tmp_path / WEIGHTS)
    assert message in refusal(load, tmp_path)


def test_shards_outside_the_folder_or_missing_are_refused(tmp_path):
    there = tmp_path / "host"
    save_host(there)
    shutil.move(there / WEIGHTS, tmp_path / WEIGHTS)
    names = load_file(tmp_path / WEIGHTS)
    for where, message in (
        ("../model.safetensors", "outside its folder"),
        (str(tmp_path / WEIGHTS), "outside its folder"),
        ("gone.safetensors", "there is no gone.safetensors"),
        (3, "no weight_map"),
    ):
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, where)}
        (there / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
        assert message in refusal(load_vlm, there)


@pytest.mark.parametrize(
    "header", [(2**60).to_bytes(8, "little"), (90_000_000).to_bytes(8, "little"), b"\x02"]
)
def test_invalid_headers_are_refused(header, tmp_path):
    save_host(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(header + b"{}")
    assert WEIGHTS in refusal(load_vlm, tmp_path)


def test_processor_of_another_model_is_refused(tmp_path):
    save_host(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"processor_class": "WhisperProcessor"}')
    refusal(LOADERS["tokens"][1], tmp_path)
    save_bert(tmp_path / "bert")
    assert "reads text only" in refusal(LOADERS["tokens"][1], tmp_path / "bert")
    (tmp_path / "tower").mkdir()
    (tmp_path / "tower" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "tower" / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor"}'
    )
    assert "reads images only" in refusal(LOADERS["tokens"][1], tmp_path / "tower")
    save_host(tmp_path / "host")
    assert "expected CLIP or SigLIP" in refusal(LOADERS["shots encoder"][1], tmp_path / "host")
    assert "as a CLIP model" in refusal(LOADERS["pixels"][1], tmp_path / "bert")


@pytest.mark.parametrize(
    "sizes",
    [
        {"size": {"height": 10**6, "width": 10**6}},
        {"size": {"shortest_edge": 10**6}},
        {"size": {"longest_edge": 10**8}},
        {"size": 10**9},
        {"crop_size": [10**6, 224]},
        {"image_processor": {"crop_size": {"height": 10**6, "width": 224}}},
        {"min_pixels": 10**10},
        {"merge_size": 2, "size": {"shortest_edge": 10**10, "longest_edge": 10**11}},
    ],
)
def test_processors_that_would_exhaust_memory_are_refused(sizes, tmp_path):
    save_host(tmp_path)
    change(tmp_path / "preprocessor_config.json", **sizes)
    assert "pixels" in refusal(LOADERS["tokens"][1], tmp_path)


def test_sizes_of_usual_processors_are_allowed(tmp_path):
    area = {"merge_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}
    for sizes in (area, {"size": {"longest_edge": 2048}}, {"min_pixels": 3136}, {"size": None}):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(sizes))
        check_stock_folder(tmp_path)


# ---------------------------------------------------------------- chat templates

TEMPLATES = {
    "range": ("{% for i in range(1000000000) %}x{% endfor %}", "Range too big"),
    "loops": (
        "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
        "steps",
    ),
    "power": ("{{ 9 ** 9 ** 9 }}", "powers"),
    "text": ("{{ 'x' * 20000000 }}", "at most"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
    "classes": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "syntax": ("{% if %}", "Expected an expression"),
    "undefined": ("{{ nothing.at.all }}", "undefined"),
    "raised": ("{{ raise_exception('no such role') }}", "no such role"),
    "arithmetic": ("{{ 1 // 0 }}", "division"),
    "long": ("x" * 300_000, "characters"),
}
MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]


@pytest.mark.parametrize(("template", "message"), TEMPLATES.values(), ids=TEMPLATES)
def test_templates_that_fail_or_do_not_terminate(template, message, monkeypatch):
    monkeypatch.setattr("eligo.pretrained.chat._MAX_STEPS", 20_000)
    processor = build_processor(SMALL)
    processor.chat_template = template
    with pytest.raises(InputError, match="chat template") as caught:
        render_chat(processor, MESSAGES, add_generation_prompt=True)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux")
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 100000000000 }}",
        "{{ 'x'.ljust(100000000000) }}",
        "{{ ('x' * 1000000)|replace('x', 'x' * 1000000) }}",
    ],
)
def test_templates_that_would_exhaust_memory_are_refused(template):
    processor = build_processor(SMALL)
    processor.chat_template = template
    with pytest.raises(InputError, match="does not fit into memory"):
        render_chat(processor, MESSAGES)


def test_render_chat_agrees_with_transformers():
    processor = build_processor(SMALL)
    stock = processor.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert render_chat(processor, MESSAGES, add_generation_prompt=True) == stock


# ---------------------------------------------------------------- the hub, and other packages


@pytest.fixture
def offline(monkeypatch, tmp_path) -> Path:
    """No connection to the hub, and an empty cache."""
    monkeypatch.setattr(pretrained, "_hub_answers", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", [name for name in LOADERS if name != "scenes"])
def test_hub_name_without_the_hub_is_refused_in_one_line(name, offline):
    with pytest.raises(InputError) as caught:
        LOADERS[name][1]("somebody/something")
    message = str(caught.value)
    assert "somebody/something" in message
    assert "the hub cannot be reached" in message
    assert "HF_HOME" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in LOADERS if name != "scenes"])
def test_cached_copy_is_used_without_the_hub(name, offline):
    save, load = LOADERS[name]
    copy = offline / "models--somebody--something"
    save(copy / "snapshots" / "abc")
    (copy / "refs").mkdir()
    (copy / "refs" / "main").write_text("abc")
    load("somebody/something")


def test_silent_hub_counts_as_unreachable(monkeypatch):
    class Silent:
        def head(self, *_: Any, **__: Any) -> None:
            raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.utils.get_session", Silent)
    assert not pretrained._hub_answers()


@pytest.mark.parametrize(
    "command",
    [
        ["tokens", "plan", "--model", "a/b"],
        ["tokens", "evaluate", "a/b"],
        ["patches", "index", "--scenes", "2", "--out", "index", "--model", "a/b"],
        ["pixels", "predict", "--image", "a.png", "--out", "out", "--model", "a/b"],
    ],
)
def test_commands_report_an_unreachable_hub_in_one_line(
    command, offline, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "the hub cannot be reached" in err
    assert len(err.splitlines()) == 1


def test_missing_package_is_named():
    extra = r"x: needs torchvision.*eligo\[hosts\]"
    with pytest.raises(MissingExtraError, match=extra), reading("x", "a host"):
        raise ImportError("Own requires the Torchvision library but it was not found\nin it.")
    other = "x: needs a package that is not installed"
    with pytest.raises(EligoError, match=other), reading("x", "a host"):
        raise ImportError("`pip install bitsandbytes`")


def test_other_errors_pass_through_reading():
    with pytest.raises(EligoError), reading("x", "a host"):
        raise EligoError("as it is")
    with pytest.raises(KeyboardInterrupt), reading("x", "a host"):
        raise KeyboardInterrupt
