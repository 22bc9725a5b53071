"""The validation loss of every family, which can choose the best checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from eligo.cli import main
from eligo.config import load_config
from eligo.patches.config import PatchesTrainConfig
from eligo.patches.inference.evaluate import score_set
from eligo.patches.training.task import PatchesTask
from eligo.pixels.config import IGNORED, PixelsTrainConfig
from eligo.pixels.training.task import PixelsTask
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.training.task import TokensTask
from eligo.train import Progress, Task

CPU = torch.device("cpu")


def evaluated(task: Task) -> dict[str, float]:
    for module in task.modules.values():
        module.eval()
    with torch.no_grad():
        return dict(task.evaluate())


@pytest.mark.parametrize("family", ["tokens", "patches", "pixels"])
def test_lowest_loss_can_choose_the_checkpoint(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [family, "train", "--smoke", "--train.monitor", "loss"]
    assert main(command) == 2
    message = "error: train.mode: got max with train.monitor loss, which should fall; "
    assert message + "expected --train.mode min\n" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert main([*command, "--train.mode", "min"]) == 0
    [folder] = Path("runs").iterdir()
    assert "validation loss" in (folder / "training.log").read_text()


@pytest.mark.parametrize("family", ["tokens", "patches", "pixels"])
def test_unknown_monitor_lists_the_loss(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([family, "train", "--smoke", "--train.monitor", "los"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "train.monitor 'los' is not among the validation metrics: loss, " in error
    assert "did you mean loss" in error
    assert not Path("runs").exists()


def test_pixels_loss_is_the_cross_entropy_of_all_labelled_pixels() -> None:
    changes = {"data.validation_images": 5, "train.batch_size": 2}
    task = PixelsTask(load_config(PixelsTrainConfig, "pixels/scenes").smoke().replace(changes))
    found = evaluated(task)
    for suffix, kind in (("", "predicted"), ("/none", "none")):
        total, count = 0.0, 0
        for batch in task.source.images("validation", kind, 5):  # pyright: ignore
            with torch.no_grad():
                logits = task.model(batch.rgb, batch.depth, batch.depth_mask, batch.text).logits
            each = F.cross_entropy(
                logits, batch.labels.long(), ignore_index=IGNORED, reduction="none"
            )
            total, count = total + each.sum().item(), count + int((batch.labels != IGNORED).sum())
        assert found[f"loss{suffix}"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("hardest_after", [0.0, 1.0])
def test_patches_loss_is_the_alignment_loss_per_true_pair(hardest_after: float) -> None:
    changes = {"hardest_after": hardest_after, "data.validation_images": 6}
    config = load_config(PatchesTrainConfig, "patches/scenes_open").smoke()
    task = PatchesTask(config.replace(changes))
    found = evaluated(task)
    data = task.source.validation()
    scores, positive = score_set(task.model, data).tolist(), data.positive.tolist()
    total, pairs = 0.0, 0
    for i, row in enumerate(scores):
        for j, score in enumerate(row):
            if not positive[i][j]:
                continue
            pairs += 1
            texts = [row[k] for k in range(len(row)) if not positive[i][k]]
            images = [scores[k][j] for k in range(len(scores)) if not positive[k][j]]
            for others in (texts, images):
                each = [max(0.0, task.config.margin - score + other) for other in others]
                total += (sum(each) if hardest_after else max(each)) if each else 0.0
    assert found["loss"] == pytest.approx(total / pairs, rel=1e-4)


def test_patches_loss_of_runs_that_only_classify_patches() -> None:
    config = load_config(PatchesTrainConfig, "patches/scenes_open").smoke()
    task = PatchesTask(config.replace({"see_steps": config.train.total_steps}))
    found = evaluated(task)
    assert set(found) == set(task.metric_names()) == {"loss", "seen"}
    assert found["loss"] > 0


@pytest.mark.parametrize("objective", ["distill", "adversarial"])
def test_tokens_loss_is_that_of_annealed_steps_without_the_discriminator(objective: str) -> None:
    base: dict[str, Any] = {"objective": objective, "data.validation": 4}
    config = load_config(TokensTrainConfig, "tokens/default").smoke()
    task = TokensTask(config.replace(base))
    task.fraction = 1.0
    found = evaluated(task)
    total, weight = 0.0, 0.0
    for batch in task.source.validation(1, CPU):  # of another size: the mean is over all answers
        with torch.no_grad():
            output = task.step(batch, Progress(2, 2))
        of_critic = ("adversarial", "real", "fake")
        loss = sum(float(v) for name, v in output.losses.items() if name not in of_critic)
        total, weight = total + loss * float(output.weight), weight + float(output.weight)
    assert found["loss"] == pytest.approx(total / weight, rel=1e-4)


def test_rank_must_fall_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["patches", "train", "--smoke", "--train.monitor", "t2i_mean_rank"]) == 2
    assert "got max with train.monitor t2i_mean_rank" in capsys.readouterr().err
