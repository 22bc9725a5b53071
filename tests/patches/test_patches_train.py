"""Training: every variant learns and resumes exactly; every shipped config runs."""

import json
import math

import pytest
import torch
from patch_models import karpathy, smoke, text_folder, vision_folder

from eligo.config import load_config, shipped_configs
from eligo.errors import ConfigError
from eligo.patches.config import PatchesTrainConfig
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.training.task import PatchesTask, train_model, with_counted_steps
from eligo.train import Progress
from eligo.train.optimization import lr_factor

KINDS = [("global", False), ("filip", False), ("open", False), ("open", True), ("paper", True)]
RUNS = [name for name in shipped_configs("patches") if name.startswith(("scenes", "f30k", "coco"))]


def first_batch(task):
    return next(task.batches(0, 0, 1, torch.device("cpu")))


@pytest.mark.parametrize(("kind", "dense"), KINDS)
def test_every_variant_learns(kind, dense):
    """Repeated steps on one batch lower the loss well below its start."""
    sizes = {"image_size": 56, "patch_size": 14, "width": 16, "layers": 1, "heads": 2}
    task = PatchesTask(
        smoke(
            model__match__kind=kind,
            model__match__dense=dense,
            model__encoders__small_vision=sizes,
        )
    )
    batch = first_batch(task)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=5e-3)
    losses = []
    for _ in range(40):
        loss = task.step(batch, Progress(0, 4)).losses["align"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(("kind", "dense"), KINDS)
def test_every_parameter_gets_a_gradient(kind, dense):
    task = PatchesTask(smoke(model__match__kind=kind, model__match__dense=dense))
    batch = first_batch(task)
    sum(task.step(batch, Progress(0, 4)).losses.values()).backward()
    without = {
        name
        for name, parameter in task.model.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().max() > 0
    }
    # Only differences of scores matter, so a constant cancels.
    assert without <= {"net.hrpa.relevance_mlp.2.bias"}


def test_all_violations_first_then_the_hardest():
    task = PatchesTask(smoke(train__total_steps=40, ramp=0.25, hardest_after=0.3))
    batch = first_batch(task)
    scores = task.model.match(*task._sides(batch)).detach()
    positive = batch.positive

    def violations(hardest):
        total = 0.0
        for i, j in positive.nonzero().tolist():
            for line, mask in ((scores[i], positive[i]), (scores[:, j], positive[:, j])):
                cost = (0.2 - scores[i, j] + line)[~mask].clamp_min(0)
                if len(cost):
                    total += float(cost.max() if hardest else cost.sum())
        return total

    found = {
        n: task.step(batch, Progress(n, 40)).losses["align"].item() for n in (0, 4, 9, 11, 12, 39)
    }
    for step, share in ((0, 0.1), (4, 0.5), (9, 1.0), (11, 1.0)):
        assert found[step] == pytest.approx(share * violations(False), rel=1e-4)
    assert found[12] == found[39] == pytest.approx(violations(True), rel=1e-4)


def test_ratio_loss_of_sampled_patches_has_a_gradient():
    task = PatchesTask(
        smoke(model__match__kind="paper", model__match__decision="bernoulli", ratio_weight=2.0,
              model__match__dense=True)
    )  # fmt: skip
    task.model.train()
    losses = task.step(first_batch(task), Progress(3, 4)).losses
    losses["ratio"].backward()
    predictor = task.model.net.sparse_net_cap.score_predictor
    assert predictor[0].weight.grad.abs().max() > 0


def test_patch_classification_comes_first():
    task = PatchesTask(smoke(see_steps=2))
    batch = first_batch(task)
    assert "attributes" in task.step(batch, Progress(1, 4)).losses
    assert set(task.step(batch, Progress(2, 4)).losses) == {"align"}


def test_heads_are_centred():
    task = PatchesTask(smoke(centre_heads=True, ramp=0.0, see_steps=1))
    batch = first_batch(task)
    for step, zero in ((0, False), (1, True)):
        task.step(batch, Progress(step, 4))
        patches = task.model.image_side(batch.images).patches.flatten(0, 1).median(0).values
        words = task.model.encode_texts(["a red ball."]).words.mean(1)
        assert (float(patches.abs().max()) < 1e-5) == zero
        assert bool(words.any())
    before = task.model.text_encoder.head.bias.clone()
    task.step(batch, Progress(2, 4))
    assert torch.equal(task.model.text_encoder.head.bias, before)  # once
    # The image head is pulled back in every step, by sixty times the learning rate.
    bias, left = task.model.image_encoder.head.bias, 1.0
    bias.data += 1.0
    for step in (2, 3):
        task.step(batch, Progress(step, 4))
        optimizer = task.config.optimizer
        left *= 1 - 60 * optimizer.lr * lr_factor(optimizer.schedule, step, 4)
        patches = task.model.image_side(batch.images).patches.flatten(0, 1).median(0).values
        assert torch.allclose(patches, torch.full_like(patches, left), atol=1e-5)
    assert 0.98 < left < 0.9999


def test_frozen_backbone_gets_no_gradient(tmp_path):
    vision = tmp_path / "vision"
    PatchesTask(smoke()).model.image_encoder.backbone.save_pretrained(vision)
    for rate, learns in ((0.1, True), (0.0, False)):
        task = PatchesTask(
            smoke(model__encoders__vision=str(vision), model__encoders__backbone_lr=rate, ramp=0.0)
        )
        task.step(first_batch(task), Progress(0, 4)).losses["align"].backward()
        model = task.model
        got = {name for name, weight in model.named_parameters() if weight.grad is not None}
        assert any(name.startswith("image_encoder.backbone.") for name in got) == learns
        assert "image_encoder.head.weight" in got
        assert any(name.startswith("text_encoder.backbone.") for name in got)


def test_resumed_run_has_the_same_losses(tmp_path):
    def losses(folder):
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line["split"] == "train"]

    config = smoke(train__log_every=1, train__checkpoint_every=2, train__out=tmp_path)
    whole = train_model(config.replace({"train.name": "whole"}))
    from eligo.train import fit

    broken = config.replace({"train.name": "broken"})
    fit(PatchesTask(broken), broken.train, on_evaluate=lambda step, _: step == 2)
    result = train_model(broken, resume=True)
    assert losses(result.folder) == losses(whole.folder)
    assert len(losses(whole.folder)) == 4
    # The model folder holds the best weights, and loads.
    images = torch.randint(256, (2, 3, 56, 56), dtype=torch.uint8)
    one, other = (RetrievalModel.from_pretrained(run.folder) for run in (whole, result))
    assert torch.equal(one.encode_images(images), other.encode_images(images))


@pytest.mark.parametrize("name", RUNS)
def test_shipped_configs_run(name, tmp_path):
    config = load_config(PatchesTrainConfig, f"patches/{name}")
    assert config.train.monitor == "rsum"
    small = config.tiny().replace({"train.out": tmp_path, "train.evaluate_every": 4})
    result = train_model(small)
    assert math.isfinite(result.best["rsum"])


def test_default_recipe():
    """AdamW 2e-4, decay 1e-4, x0.3 at epochs 9, 15, 20, 25 of 30, clip 2, batch 128."""
    config = load_config(PatchesTrainConfig, "patches/f30k_vit224")
    assert (config.train.batch_size, config.train.clip_norm, config.epochs) == (128, 2.0, 30)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (2e-4, 1e-4)
    from eligo.train.optimization import lr_factor

    per_epoch = 1132
    factors = [
        lr_factor(config.optimizer.schedule, epoch * per_epoch + 1, 30 * per_epoch)
        for epoch in range(30)
    ]
    expected = [0.3 ** sum(epoch >= cut for cut in (9, 15, 20, 25)) for epoch in range(30)]
    assert factors == pytest.approx(expected)
    assert config.model.encoders.backbone_lr == 0.1
    assert round(config.ramp * 30) == round(config.hardest_after * 30) == 1


def test_training_on_files_with_real_encoders(tmp_path):
    captions, images = karpathy(tmp_path, ("train",) * 3 + ("restval", "val", "val", "test"))
    encoders = {
        "vision": vision_folder(tmp_path, "vit"), "text": text_folder(tmp_path), "embed_dim": 16
    }  # fmt: skip
    config = PatchesTrainConfig().replace(
        {
            "model.encoders": encoders, "epochs": 2, "train.batch_size": 4, "train.out": tmp_path,
            "data": {"kind": "karpathy", "captions": captions, "images": images},
            "train.evaluate_every": 4,
        }
    )  # fmt: skip
    assert with_counted_steps(config).train.total_steps == 4  # 8 pairs, 2 epochs
    result = train_model(config)
    assert result.last_step == 4
    assert 0 <= result.best["t2i_r1"] <= 100
    with pytest.raises(ConfigError, match="batch_size: got 9, expected at most 8"):
        with_counted_steps(config.replace({"train.batch_size": 9}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio_weight": 1.0}, "keeps an exact share"),
        ({"train.gradient_accumulation": 2}, "negatives come from the whole batch"),
        ({"data.scenes.height": 64}, "expected 168 x 168"),
        ({"model.match": {"kind": "global", "dense": True}}, "selects no patches"),
        ({"model.encoders.text": "CLIP"}, r"model\.encoders\.text: got CLIP with generated scenes"),
        ({"see_steps": 5000}, "more than train.total_steps"),
    ],
)
def test_invalid_configs_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        PatchesTrainConfig().replace(change)
