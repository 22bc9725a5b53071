"""Keys that a file or a flag sets, but that have no effect, are named; defaults never are."""

import logging
from pathlib import Path
from typing import Any

import pytest

from eligo.cli import main
from eligo.cli.registry import TASKS, resolve_task, split_search
from eligo.config import dump_yaml, load_config, read_layer, save_config, shipped_configs, validate
from eligo.config.effects import unused_keys

KARPATHY = {"kind": "karpathy", "captions": "c.json", "images": "images"}


def lines(task: str, tree: dict[str, Any], tmp_path: Path, **flags: Any) -> list[str]:
    """The reports on a file, without its name."""
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(tree))
    layer, cls = read_layer(file), resolve_task(task)
    given = {key.replace("__", "."): value for key, value in flags.items()}
    found = unused_keys(validate(cls, layer, given), layer, given)
    return [line.replace(f"{file}:", "") for line in found]


TOKENS = "tokens.train"
PATCHES = "patches.train"
PIXELS = "pixels.train"
SHOTS = "shots.train"
ROOMS = {"extends": "pixels/scenes"}
FINETUNE = "tokens.finetune"
PHOTOS: dict[str, Any] = {"host": {}, "data": {"images": ".", "questions": "q.jsonl"}}
RULES: list[tuple[str, dict[str, Any], str, str]] = [
    (FINETUNE, PHOTOS | {"train": {"total_steps": 7}}, "train.total_steps", "epochs sets it"),
    (FINETUNE, PHOTOS | {"data": PHOTOS["data"] | {"caption_prompt": "look."}},
     "data.caption_prompt", "data.captions is not given"),
    (TOKENS, {"epochs": 1, "train": {"total_steps": 7}}, "train.total_steps", "epochs sets it"),
    (TOKENS, {"data": {"examples": 5}}, "data.examples", "it counts for epochs"),
    (TOKENS, {"data": {"examples": 5}, "host": {"model": "vlm"}}, "data.examples", "it counts for"),
    (TOKENS, {"merger": {"num_heads": 2}}, "merger.num_heads", "merger.kind is simple"),
    (TOKENS, {"pruners": {"kind": "simple", "num_heads": 2}}, "pruners.num_heads",
     "pruners.kind is simple"),
    (TOKENS, {"merger": {"diverse": False, "redundancy": "mmr"}}, "merger.redundancy",
     "diverse is false"),
    (TOKENS, {"merger": None, "size_bias": False}, "size_bias", "merger is null"),
    (TOKENS, {"merger": None, "optim": {"merger": {"lr": 1.0}}}, "optim.merger", "merger is null"),
    (TOKENS, {"pruners": None, "optim": {"pruners": {"lr": 1.0}}}, "optim.pruners", "pruners is"),
    (TOKENS, {"discriminator": {"dim": 8}}, "discriminator.dim", "no discriminator"),
    (TOKENS, {"discriminator": {"reinit_prob": 0.5}}, "discriminator.reinit_prob", "no discrim"),
    (TOKENS, {"discriminator": {"layers": [-1]}, "losses": {"hidden": 0}},
     "discriminator.layers", "no discriminator: losses.adversarial is 0 (objective distill)"),
    (TOKENS, {"optim": {"discriminator": {"lr": 0.1}}}, "optim.discriminator", "no discrim"),
    (TOKENS, {"objective": "adversarial",
              "losses": {"task": 1, "kl": 1, "hidden": 1, "attention": 1, "adversarial": 1,
                         "sparsity": 1}},
     "objective", "losses sets all weights"),
    (TOKENS, {"host": {"model": "a", "random": {}}}, "host.model", "host.random is used"),
    (TOKENS, {"temperature": {"start": 2.0, "anneal_fraction": 0}}, "temperature.start", "anneal_"),
    (TOKENS, {"method_settings": {"adv_loss_weight": 0, "disc_reinit_prob": 0.5}},
     "method_settings.disc_reinit_prob: discriminator.reinit_prob", "no discriminator"),
    (TOKENS, {"optim": {"merger": {"schedule": {"power": 2.0}}}},
     "optim.merger.schedule.power", "schedule.kind is cosine, not poly or legacy_poly"),
    (PATCHES, {"model": {"match": {"top_k": 3}}}, "model.match.top_k", "match.kind is open"),
    (PATCHES, {"model": {"match": {"kind": "filip", "sparse_ratio": 0.3}}},
     "model.match.sparse_ratio", "match.kind is filip, which selects no patches"),
    (PATCHES, {"model": {"match": {"kind": "paper", "temperature": 2.0}}},
     "model.match.temperature", "match.decision is topk"),
    (PATCHES, {"model": {"encoders": {"backbone_lr": 0.5}}},
     "model.encoders.backbone_lr", "both encoders are trained from scratch"),
    (PATCHES, {"model": {"encoders": {"vision": "v", "small_vision": {"width": 8}}},
               "data": KARPATHY}, "model.encoders.small_vision", "encoders.vision names a model"),
    (PATCHES, {"model": {"encoders": {"text": "t", "small_text": {"width": 8}}},
               "data": KARPATHY}, "model.encoders.small_text", "encoders.text names a model"),
    (PATCHES, {"model": {"encoders": {"special_words": False}}},
     "model.encoders.special_words", "the small text model always matches them"),
    (PATCHES, {"model": {"encoders": {"image_size": 8}}},
     "model.encoders.image_size", "small_vision.image_size counts"),
    (PATCHES, {"model": {"encoders": {"max_dense_words": 20}}},
     "model.encoders.max_dense_words", "model.match.dense is false"),
    (PATCHES, {"data": KARPATHY | {"dense": "d.jsonl"}}, "data.dense", "model.match.dense is"),
    (PATCHES, {"data": KARPATHY | {"augment": False, "flip": False}}, "data.flip", "data.augment"),
    (PATCHES, {"data": KARPATHY | {"cache_dtype": "float32"}}, "data.cache_dtype", "data.cache is"),
    (PATCHES, {"data": KARPATHY | {"cache_memory_gb": 1.0}},
     "data.cache_memory_gb", "data.cache is not given"),
    (PIXELS, ROOMS | {"text": {"max_captions": 3}}, "text.max_captions", "text.source is tags"),
    (PIXELS, ROOMS | {"text": {"source": "none", "encoder": {"seed": 4}}},
     "text.encoder", "text.source is none"),
    (PIXELS, ROOMS | {"text": {"source": "none"}, "word_dropout": 0.5},
     "word_dropout", "no words reach the network"),
    (PIXELS, ROOMS | {"text": {"source": "none"}, "sam": {"decoder": {"logit_init": 2.0}}},
     "sam.decoder.logit_init", "text.source is none"),
    (PIXELS, ROOMS | {"sam": {"encoder": {"stages": [], "logit_init": 2.0}}},
     "sam.encoder.logit_init", "sam.encoder.stages is empty"),
    (PIXELS, ROOMS | {"sam": {"decoder": {"stages": [], "top_m": 2}}},
     "sam.decoder.top_m", "sam.decoder.stages is empty"),
    (PIXELS, ROOMS | {"sam": {"form": "legacy"}, "gate_start": 0.5}, "gate_start", "sam.form is"),
    (PIXELS, ROOMS | {"inputs": {"depth": "png8", "depth_scale": 5.0}},
     "inputs.depth_scale", "inputs.depth is png8"),
    (PIXELS, ROOMS | {"inputs": {"depth": "none"}, "depth_dropout": 0.5},
     "depth_dropout", "inputs.depth is none"),
    (PIXELS, ROOMS | {"data": {"phrases": [20]}}, "data.phrases", "data.scenes.binding is false"),
    (PIXELS, ROOMS | {"preset": 3, "sam": {"decoder": {"use_cosine": True}}},
     "sam.decoder.use_cosine", "preset decides"),
    (SHOTS, {"model": {"version": "v1", "d_model": 5}}, "model.d_model", "it becomes the width"),
    (SHOTS, {"model": {"version": "v1"}, "train": {"evaluate_every": 7}},
     "train.evaluate_every", "train.num_epochs sets it"),
    (SHOTS, {"model": {"version": "v1"}, "train": {"num_epochs": None, "min_steps": 7}},
     "train.min_steps", "train.num_epochs is null"),
    (SHOTS, {"model": {"version": "v3", "margin": 2.0}}, "model.margin", "is listwise"),
    (SHOTS, {"model": {"version": "v3", "ranking_loss_type": "pairwise",
                       "target_temperature": 2.0}}, "model.target_temperature", "is pairwise"),
    (SHOTS, {"model": {"version": "v3", "ranking_form": "documented", "target_temperature": 2.0}},
     "model.target_temperature", "model.ranking_form is documented"),
    (SHOTS, {"model": {"version": "v3", "ranking_loss_weight": 0, "margin": 2.0}},
     "model.margin", "model.ranking_loss_weight is 0"),
    ("shots.teach", {"num_workers": 4}, "num_workers", "engine is local, not ray"),
    ("shots.teach", {"host": {"device": "cpu"}}, "host.device", "host.model is not set"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "tree", "key", "reason"), RULES)
def test_key_without_effect_is_named(
    task: str, tree: dict[str, Any], key: str, reason: str, tmp_path: Path
) -> None:
    (line,) = lines(task, tree, tmp_path)
    number, _, message = line.partition(": ")
    assert number.isdigit()
    assert message.startswith(f"{key}: has no effect here: ")
    assert reason in message


def test_key_of_another_kind_is_named(tmp_path: Path) -> None:
    tree = {"data": {"kind": "vqa", "folder": "vqa"}}
    (line,) = lines(TOKENS, tree, tmp_path, data__kind="scenes")
    assert line == "3: data.folder: has no effect here: data.kind is scenes"


def test_flags_are_named_and_flags_may_give_an_effect(tmp_path: Path) -> None:
    assert lines(TOKENS, {"task": TOKENS}, tmp_path, merger__num_heads=2) == [
        "--merger.num_heads: has no effect here: merger.kind is simple, which does not read the "
        "question"
    ]
    tree = {"merger": {"num_heads": 2}}
    assert lines(TOKENS, tree, tmp_path, merger__kind="question_aware") == []
    assert lines(PIXELS, ROOMS | {"preset": 3}, tmp_path, sam__decoder__use_cosine=True) == []


def test_flags_of_the_alignment_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING):
        flags = "--no-sam-decoder-use-cosine --sam-encoder-logit-init 2.0"
        main(f"pixels train scenes --smoke --preset 0 {flags}".split())
    assert [message for message in caplog.messages if "no effect" in message] == [
        "--no-sam-decoder-use-cosine: has no effect here: sam.decoder.stages is empty",
        "--sam-encoder-logit-init: has no effect here: sam.encoder.stages is empty",
    ]


@pytest.mark.parametrize("task", [TOKENS, PATCHES, PIXELS, SHOTS, "tokens.sweep"])
def test_defaults_and_saved_configs_are_silent(task: str, tmp_path: Path) -> None:
    names = [
        name
        for name in shipped_configs(task.split(".")[0])
        if read_layer(name, task.split(".")[0]).tree.get("task") == task
    ]
    assert names
    for name in names:
        layer, _ = split_search(read_layer(name, task.split(".")[0]))
        cls = resolve_task(task)
        config = load_config(cls, layer.tree)
        assert not unused_keys(config, layer)
    if task != SHOTS:  # the model of a selector has no default
        tree = {"data": {"kind": "scenes"}} if task == PIXELS else {}
        if task == PIXELS:
            tree["text"] = {"encoder": {"kind": "words"}}
        config = load_config(resolve_task(task), tree)
        save_config(config, tmp_path / "saved.yaml")
        layer = read_layer(tmp_path / "saved.yaml")
        assert not unused_keys(validate(type(config), layer), layer)


def test_every_task_is_covered() -> None:
    assert {task for task, *_ in RULES} | {"tokens.sweep", "scenes.export"} == set(TASKS)


def test_search_section_in_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eligo.patches.training.task.train_model", lambda *_, **__: None)
    monkeypatch.setattr("eligo.cli.patches.train.print_outcome", lambda *_: None)
    search: dict[str, Any] = {"space": {"optimizer.lr": [1e-4]}, "gpus": [0, 1]}
    tree = {"extends": "patches/scenes_open", "search": search}
    Path("run.yaml").write_text(dump_yaml(tree))
    with caplog.at_level(logging.WARNING, "eligo"):
        assert main(["patches", "train", "run.yaml"]) == 0
    assert caplog.messages == [
        "run.yaml:2: search: has no effect here: this is one training; `eligo search run.yaml` "
        "runs the search; to train on 2 GPUs: accelerate launch --num_processes 2 -m eligo "
        "patches train run.yaml"
    ]


@pytest.mark.parametrize(
    ("search", "says"),
    [
        ({"trials": 0}, "run.yaml:3: search.trials: got 0, expected greater than or equal to 1"),
        ({"trails": 3}, "run.yaml:3: search.trails: unknown key; did you mean search.trials?"),
        ({"enable": True}, "run.yaml:3: search.enable: asks for a search: run `eligo search run.y"),
    ],
)
def test_search_section_is_checked_in_a_training(
    search: dict[str, Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = {"extends": "patches/scenes_open", "search": search | {"space": {"seed": [1]}}}
    Path("run.yaml").write_text(dump_yaml(tree))
    assert main(["patches", "train", "run.yaml"]) == 2
    assert says in capsys.readouterr().err.replace("\n", "")
