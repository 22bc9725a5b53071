"""Training: presets, exact resume, dropout, invalid configs; every YAML builds and runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pixel_files import exported

from eligo.config import load_config, shipped_configs
from eligo.errors import ConfigError, InputError
from eligo.pixels import (
    PRESETS,
    SIZES,
    PixelsConfig,
    PixelsModel,
    PixelsTrainConfig,
    Segmenter,
    TextBatch,
)
from eligo.pixels.training.task import PixelsTask, train_model, with_counted_steps
from eligo.train import Progress, seed_everything
from eligo.train.optimization import parameter_groups

YAMLS = sorted(shipped_configs("pixels"))
TINY = load_config(PixelsTrainConfig, "pixels/scenes").smoke()


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


# ------------------------------------------------------------------ configs


def test_shipped_yamls():
    sizes = [f"{data}_{size}" for data in ("nyu", "sun") for size in "slb"]
    assert set(YAMLS) >= {"scenes", "shipped", *sizes}


def test_only_the_shipped_model_trains_with_word_dropout():
    """The variants of the study change scenes.yaml, which itself stays unchanged."""
    dropped = {n: load_config(PixelsTrainConfig, f"pixels/{n}").word_dropout for n in YAMLS}
    assert dropped.pop("shipped") == 0.5
    assert set(dropped.values()) == {0.0}
    scenes, shipped = (load_config(PixelsTrainConfig, f"pixels/{n}") for n in ("scenes", "shipped"))
    own = {"word_dropout": 0.5, "data.train_images": 64_000}
    own |= {"train.name": "pixels_shipped", "train.total_steps": 6000, "train.batch_size": 64}
    assert shipped == scenes.replace(own)


@pytest.mark.parametrize("name", [name for name in YAMLS if "_" in name])
def test_full_size_configs_have_the_published_settings(name: str):
    config = load_config(PixelsTrainConfig, f"pixels/{name}")
    data, size = name.split("_")
    expected = PixelsConfig().replace(SIZES[size.upper()])
    drop = config.encoder.drop_path
    assert config.encoder == expected.encoder.replace({"drop_path": drop})
    assert config.sam == expected.sam
    rates = {"nyu": {"s": 0.25, "b": 0.2, "l": 0.3}, "sun": {"s": 0.1, "b": 0.1, "l": 0.27}}
    batches = {"nyu": {"s": 16, "b": 8, "l": 12}, "sun": dict.fromkeys("sbl", 16)}
    assert drop == rates[data][size]
    assert config.train.batch_size == batches[data][size]
    epochs, lr, crop = {"nyu": (500, 6e-5, (480, 640)), "sun": (300, 8e-5, (480, 480))}[data]
    assert (config.epochs, config.optimizer.lr, config.augment.crop) == (epochs, lr, crop)
    assert config.optimizer.schedule.warmup * epochs == pytest.approx(10, abs=1e-3)
    assert config.augment.scales == (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
    assert config.num_classes == {"nyu": 40, "sun": 37}[data]
    with torch.device("meta"):
        PixelsModel(config)


@pytest.mark.parametrize("name", YAMLS)
def test_every_yaml_runs(name: str, tmp_path: Path):
    config = load_config(PixelsTrainConfig, f"pixels/{name}").tiny()
    result = train_model(config.replace({"train.out": tmp_path, "train.total_steps": 2}))
    assert result.last_step == 2
    assert result.skipped == 0
    Segmenter.from_pretrained(result.folder)


@pytest.mark.parametrize("number", PRESETS)
def test_presets_override_files_and_flags_override_presets(number: int, tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "task: pixels.train\ndata: {kind: nyu, root: rooms}\n"
        "sam:\n  decoder: {use_cosine: false, logit_init: 3.0}\n"
    )
    config = load_config(PixelsTrainConfig, file, {"preset": number})
    assert config.preset is None  # saved as the settings it stands for
    for key, value in PRESETS[number].items():
        found = config
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value
    flags = {"preset": number, "sam.decoder.logit_init": 5.0, "sam.encoder.stages": (3,)}
    config = load_config(PixelsTrainConfig, file, flags)
    assert config.sam.decoder.logit_init == 5.0
    assert config.sam.encoder.stages == (3,)
    # The saved config loads unchanged.
    assert load_config(PixelsTrainConfig, config.model_dump(mode="json")) == config


@pytest.mark.parametrize("number", PRESETS)
def test_every_preset_trains(number: int):
    task = PixelsTask(TINY.replace({"preset": number}))
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    output = task.step(batch, Progress(0, 4))
    output.losses["segmentation"].backward()
    assert output.losses["segmentation"].isfinite()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": 7}, r"--preset: got 7, expected one of 0 to 6"),
        ({"text.encoder": {"kind": "clip"}}, "vocabulary of their own"),
        ({"text.source": "captions"}, "generated rooms have no captions"),
        ({"augment": {"scales": [0.5], "crop": [64, 64]}}, "only mirrored"),
        ({"classes": ["a", "b"]}, "number of class names"),
    ],
)
def test_invalid_configs_are_refused(changes: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        TINY.replace(changes)


def test_mismatched_classes_and_widths_are_refused():
    with pytest.raises(ConfigError, match="num_classes: got 5, expected 14"):
        PixelsTask(TINY.replace({"num_classes": 5}))
    with pytest.raises(InputError, match="text_dim: got 24, expected 16"):
        PixelsTask(TINY.replace({"text_dim": 24}))


def test_epochs_count_steps():
    config = TINY.replace({"epochs": 3, "data.train_images": 9})
    assert with_counted_steps(config).train.total_steps == 3 * (9 // 4)
    with pytest.raises(ConfigError, match="batch_size: got 4, expected at most 3"):
        with_counted_steps(config.replace({"data.train_images": 3}))


@pytest.mark.parametrize("gate_rate", [10.0, 1.0])
def test_optimiser_groups(gate_rate: float):
    """Decay on matrices only; scales and prior weights at ten times the rate, gates as set."""
    task = PixelsTask(TINY.replace({"gate_rate": gate_rate}))
    groups = parameter_groups(task.modules, task.config.optimizer)
    rate = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    lr = task.config.optimizer.lr
    gates, fast = ("gate", "gate_ffn"), ("gate", "gate_ffn", "log_scale", "prior_weights")
    for name, parameter in task.model.named_parameters():
        times = gate_rate if name.endswith(gates) else 10.0 if name.endswith(fast) else 1.0
        expected = times * lr
        assert rate[id(parameter)][0] == pytest.approx(expected), name
        undecayed = parameter.ndim < 2 or name.endswith(fast)
        assert (rate[id(parameter)][1] == 0) == undecayed, name


def test_initial_gates_are_set():
    """Legacy weights keep their own gates."""
    for form, start, expected in (
        ("gated", 0.3, {0.3}),
        ("gated", None, {1e-3}),
        ("legacy", 0.3, {0.5, 0.1}),
    ):
        task = PixelsTask(TINY.replace({"gate_start": start, "sam.form": form}))
        found = {
            round(p.item(), 4)
            for name, p in task.model.named_parameters()
            if name.endswith(("gate", "gate_ffn"))
        }
        assert found == expected


# ------------------------------------------------------------------ steps


def test_dropout_of_words_and_depth():
    task = PixelsTask(TINY.replace({"text_dropout": 1.0, "depth_dropout": 1.0}))
    batches = []
    task._forward = lambda *inputs, **_: batches.append(inputs) or task.model(*inputs, maps=False)
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    task.step(batch, Progress(0, 4))
    _, _, mask, text = batches[0]
    assert not mask.any()
    assert not text.mask.any()
    assert batch.text is not None
    assert batch.text.mask.any()


def test_word_dropout_keeps_some_words():
    """In half of the images, each word is kept with a probability drawn per image."""
    task = PixelsTask(TINY.replace({"text_dropout": 0.0, "word_dropout": 0.5}))
    texts = []
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    assert batch.text is not None
    found = task.model(batch.rgb, batch.depth, batch.depth_mask, batch.text, maps=False)
    task._forward = lambda *inputs, **_: (
        texts.append(inputs[3]) or found
    )  # only the words are used here
    many = TextBatch(torch.randn(4, 400, 16), torch.arange(400).expand(4, 400) < 300)
    shares = []
    for seed in range(100):
        for _ in range(2):  # repeatable
            seed_everything(seed)
            task.step(replace(batch, text=many), Progress(0, 4))
        assert torch.equal(texts[-1].mask, texts[-2].mask)
        assert not (texts[-1].mask & ~many.mask).any()
        shares += (texts[-1].mask.sum(1) / 300).tolist()
    whole = torch.tensor(shares) == 1
    assert 0.4 < whole.float().mean() < 0.6
    some = torch.tensor(shares)[~whole]
    assert 0.4 < some.mean() < 0.6
    assert 0.2 < (some < 0.3).float().mean() < 0.4  # few and many words equally often
    assert 0.2 < (some > 0.7).float().mean() < 0.4


def test_no_word_dropout_draws_no_random_numbers():
    """Earlier trainings are reproduced exactly."""
    task = PixelsTask(TINY)
    assert task.config.word_dropout == 0
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    seed_everything(3)
    task.step(batch, Progress(0, 4))
    after = torch.rand(())
    seed_everything(3)
    task.source.augmented(batch)
    torch.rand(2, 4)  # for text_dropout and depth_dropout
    task.model(batch.rgb, batch.depth, batch.depth_mask, batch.text, maps=False)
    assert torch.equal(torch.rand(()), after)


def test_ignored_pixels_have_no_weight():
    task = PixelsTask(TINY.replace({"text_dropout": 0.0, "augment.mirror": False}))
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    assert float(task.step(batch, Progress(0, 4)).weight) == 1.0
    batch.labels[:, :24] = 255
    assert float(task.step(batch, Progress(0, 4)).weight) == pytest.approx(0.5)


@pytest.mark.gpu
def test_no_sync_in_a_step_on_a_gpu():
    task, device = PixelsTask(TINY.replace({"depth_dropout": 0.5})), torch.device("cuda")
    task.to(device)
    stream = task.batches(0, 0, 1, device)
    task.step(next(stream), Progress(0, 4)).losses["segmentation"].backward()  # renders scenes
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.step(next(stream), Progress(1, 4)).losses["segmentation"].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_resumed_run_equals_the_uninterrupted_one(tmp_path: Path):
    config = TINY.replace({"train.total_steps": 6, "train.evaluate_every": 3, "train.log_every": 1,
                           "train.checkpoint_every": 3, "train.ema_decay": 0.9,
                           "train.out": tmp_path})  # fmt: skip
    whole = train_model(config.replace({"train.name": "whole"}))
    broken = config.replace({"train.name": "broken"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PixelsTask, "after_step", _stop_at(4))
        with pytest.raises(KeyboardInterrupt):
            train_model(broken)
    train_model(broken, resume=True)
    assert losses(tmp_path / "broken") == losses(whole.folder)
    one, other = (Segmenter.from_pretrained(tmp_path / name) for name in ("whole", "broken"))
    for a, b in zip(
        one.model.state_dict().values(), other.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)


def _stop_at(step: int):
    def after_step(self, progress, optimizers):
        if progress.step + 1 == step:
            raise KeyboardInterrupt

    return after_step


def test_validation_reports_words_and_temperatures(tmp_path: Path):
    result = train_model(TINY.replace({"train.out": tmp_path}))
    assert {"miou", "miou/none", "pixel_acc", "macc", "f1", "miou_reference"} <= result.best.keys()
    assert 0 <= result.best["attention_entropy"] <= torch.tensor(14.0).log()
    assert "scale/head.align.1" in result.best
    assert "gate/encoder.align.2.0" in result.best


def test_validation_never_uses_test_images(monkeypatch: pytest.MonkeyPatch):
    task = PixelsTask(TINY)
    source, splits = task.source, []
    look = source.images
    monkeypatch.setattr(source, "images", lambda *args: splits.append(args[0]) or look(*args))
    task.model.eval()
    with torch.no_grad():
        task.evaluate()
    assert set(splits) == {"validation"}


def test_initial_weights_with_other_settings_are_refused(tmp_path: Path):
    result = train_model(TINY.replace({"train.out": tmp_path}))
    again = TINY.replace({"train.init_from": result.folder / "model", "train.name": "b"})
    PixelsTask(again)
    with pytest.raises(InputError, match=r"sam\.decoder\.use_cosine True, got False"):
        PixelsTask(again.replace({"sam.decoder.use_cosine": False}))


def test_training_on_files(tmp_path: Path):
    """A data set exported in NYU's format, with crops, sensor holes and a validation split."""
    folder = exported(tmp_path / "rooms", "nyu", sensor=True)
    data = {"kind": "nyu", "root": folder, "classes": folder / "classes.txt",
            "words": folder / "tags.jsonl", "words_are": "oracle"}  # fmt: skip
    augment = {"scales": [0.75, 1.25], "crop": [48, 48]}
    config = TINY.replace({"data": data, "augment": augment, "train.out": tmp_path})
    result = train_model(config.replace({"epochs": 1}))
    assert result.last_step == 2  # nine images in batches of four
    assert Segmenter.from_pretrained(result.folder).config.classes[:2] == ("wall", "floor")
