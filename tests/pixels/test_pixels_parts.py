"""Modules against slow oracles: prior, rotary embedding, Hamburger, drop path, loss, metrics."""

import math

import pytest
import torch
from pixel_cases import tiny_config, tiny_model
from torch.nn import functional as F
from torchmetrics.classification import MulticlassConfusionMatrix

from eligo.errors import InputError
from eligo.pixels import confusion_matrix, segmentation_loss, segmentation_metrics
from eligo.pixels.model.encoder import Encoder
from eligo.pixels.model.geometry import (
    Depth,
    full_distances,
    known_depth,
    pair_cos_sin,
    prior_rates,
    resize_depth,
    rotary_frequencies,
    rotary_tables,
    rotate,
    row_distances,
)
from eligo.pixels.model.hamburger import Hamburger, factorise
from eligo.pixels.model.layers import DropPath
from strategies import production

CPU = torch.device("cpu")


def test_depth_of_tokens_is_the_mean_of_known_pixels():
    """At half the size, bilinear resizing takes the mean of 2 x 2 pixels."""
    depth, mask = torch.randn(1, 2, 6, 8), torch.rand(1, 1, 6, 8) < 0.5
    mask[0, 0, :2, :2] = False
    found = resize_depth(known_depth(depth, mask), (3, 4))
    for i in range(3):
        for j in range(4):
            patch = (0, 0, slice(2 * i, 2 * i + 2), slice(2 * j, 2 * j + 2))
            known = depth[patch][mask[patch]]
            assert found.valid[0, 0, i, j] == (len(known) >= 2)
            expected = known.mean() if len(known) else torch.tensor(0.0)
            torch.testing.assert_close(found.z[0, 0, i, j], expected)


@pytest.mark.parametrize("full", [False, True])
def test_prior_by_hand(full: bool):
    height, width = 3, 4
    z, valid = torch.randn(1, 1, height, width), torch.rand(1, 1, height, width) < 0.6
    decay, weights = torch.tensor([-0.3, -0.1]), torch.tensor([0.7, 1.9])
    depth = Depth(z, valid)
    if full:
        bias = full_distances(height, width, depth, CPU).bias(prior_rates(decay, weights))
    else:
        bias = row_distances(width, depth, CPU).bias(prior_rates(decay, weights))
    for head in range(2):
        for i, j, k, m in torch.cartesian_prod(*map(torch.arange, (height, width) * 2)).tolist():
            if not full and i != k:
                continue
            known = valid[0, 0, i, j] and valid[0, 0, k, m]
            gap = abs(z[0, 0, i, j] - z[0, 0, k, m]) if known else 0.0
            expected = decay[head] * (0.7 * (abs(i - k) + abs(j - m)) + 1.9 * gap)
            at = (0, 0, head, i * width + j, k * width + m) if full else (0, i, head, j, m)
            assert bias[at].item() == pytest.approx(expected.item(), abs=1e-6)


def test_rotation_by_hand():
    x = torch.randn(1, 2, 3, 1, 6)
    turns = pair_cos_sin(*rotary_tables(2, 3, rotary_frequencies(6)))
    turned = rotate(x, turns)
    for i, j, m in torch.cartesian_prod(*map(torch.arange, (2, 3, 3))).tolist():
        angle = (i * 3 + j) * 10000 ** (-m / 2)
        a, b = x[0, i, j, 0, 2 * m : 2 * m + 2].tolist()
        expected = (
            a * math.cos(angle) - b * math.sin(angle),
            b * math.cos(angle) + a * math.sin(angle),
        )
        assert turned[0, i, j, 0, 2 * m : 2 * m + 2].tolist() == pytest.approx(expected, abs=1e-5)


def test_rotation_is_the_same_when_traced():
    x = torch.randn(2, 2, 3, 2, 6)
    turns = pair_cos_sin(*rotary_tables(2, 3, rotary_frequencies(6)))
    with production():  # annotation checks cannot be traced
        traced = torch.compile(rotate, backend="eager", fullgraph=True)
        torch.testing.assert_close(traced(x, turns), rotate(x, turns))


def test_factorise_by_hand():
    x, bases = torch.rand(2, 5, 7), torch.rand(1, 5, 3)
    for sample in range(2):
        X, B = x[sample].double(), bases[0].double()
        K = torch.softmax(X.T @ B, 1)
        for _ in range(4):
            K = K * (X.T @ B) / (K @ B.T @ B + 1e-6)
            B = B * (X @ K) / (B @ K.T @ K + 1e-6)
        K = K * (X.T @ B) / (K @ B.T @ B + 1e-6)
        found = factorise(x, bases, 4)[sample]
        torch.testing.assert_close(found, (B @ K.T).float(), atol=1e-5, rtol=1e-5)


def test_factorisation_reduces_the_error():
    x, bases = torch.rand(1, 6, 20), F.normalize(torch.rand(1, 6, 3), dim=1)
    errors = [(factorise(x, bases, steps) - x).square().sum().item() for steps in (1, 5, 40)]
    assert errors == sorted(errors, reverse=True)


def test_bases_of_the_hamburger():
    config = tiny_config().head
    first, second = Hamburger(config), Hamburger(config)
    other = Hamburger(config.replace({"bases_seed": 1}))
    assert torch.equal(first.bases, second.bases)
    assert not torch.equal(first.bases, other.bases)
    torch.testing.assert_close(first.bases.norm(dim=0), torch.ones(8))
    assert "bases" in first.state_dict()
    x = torch.randn(2, 32, 4, 5)
    steps = {"train": config.train_steps, "eval": config.eval_steps}
    assert steps == {"train": 6, "eval": 7}
    first.eval()
    ham = F.relu(first.input(x)).flatten(2)
    low_rank = factorise(ham, first.bases[None], 7).view(2, 24, 4, 5)
    torch.testing.assert_close(first(x), F.relu(x + first.output(low_rank)))


def test_drop_path_drops_whole_samples():
    drop = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    kept = drop(x)
    assert kept.unique().tolist() == pytest.approx([0, 4 / 3])
    assert torch.equal(kept.amin((1, 2)), kept.amax((1, 2)))  # whole samples
    assert kept[:, 0, 0].mean().item() == pytest.approx(1.0, abs=0.05)
    assert torch.equal(drop.eval()(x), x)


def test_whole_channels_are_dropped_before_the_classifier():
    head = tiny_model(**{"head.dropout": 0.25}).head
    recorded: dict[str, torch.Tensor] = {}
    head.refine.register_forward_hook(lambda _, __, out: recorded.update(before=F.relu(out)))
    head.classifier.register_forward_pre_hook(lambda _, inputs: recorded.update(after=inputs[0]))
    features = tuple(torch.randn(16, dim, 4, 6) for dim in (16, 32, 48, 64))
    head.train()
    head(features)
    lively = recorded["before"].amax((2, 3)) > 0  # (samples, channels)
    kept = (recorded["after"].amax((2, 3)) > 0)[lively]
    assert 0.65 < kept.float().mean() < 0.85
    expected = recorded["before"] / 0.75 * (recorded["after"].amax((2, 3), keepdim=True) > 0)
    torch.testing.assert_close(recorded["after"], expected)
    head.eval()
    head(features)
    assert torch.equal(recorded["after"], recorded["before"])


def test_drop_path_rate_rises_over_the_blocks():
    config = tiny_config(**{"encoder.drop_path": 0.28}).encoder
    encoder = Encoder(config)
    rates = [block.drop_path.probability for stage in encoder.stages for block in stage.blocks]
    assert rates == pytest.approx([0.04 * number for number in range(8)])


def test_initial_weights_of_the_encoder():
    config = tiny_config(**{"encoder.layer_scale": (None, None, 1e-6, 1e-6)}).encoder
    encoder = Encoder(config)
    block = encoder.stages[2].blocks[0]
    weight = block.ffn.expand.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not block.ffn.expand.bias.any()
    assert torch.equal(block.prior_weights, torch.ones(2))
    assert torch.equal(block.scale_ffn, torch.full((48,), 1e-6))
    assert encoder.stages[0].blocks[0].scale_ffn is None
    assert {block.norm_ffn.eps, encoder.stages[1].norm_out.eps} == {1e-6, 1e-5}


def test_loss_by_hand():
    logits, labels = torch.randn(2, 4, 5, 6), torch.randint(0, 4, (2, 5, 6))
    labels[0, :3] = 255
    counted = labels != 255
    expected = -logits.log_softmax(1).movedim(1, -1)[counted].gather(1, labels[counted][:, None])
    torch.testing.assert_close(segmentation_loss(logits, labels), expected.mean())
    nothing = segmentation_loss(logits.requires_grad_(), torch.full_like(labels, 255))
    nothing.backward()
    assert nothing == 0
    assert not logits.grad.any()


def test_confusion_matrix_matches_torchmetrics():
    predictions, labels = torch.randint(0, 6, (2, 3, 40, 50))
    labels[torch.rand(labels.shape) < 0.2] = 255
    oracle = MulticlassConfusionMatrix(6, ignore_index=255)
    found = confusion_matrix(predictions, labels, 6)
    assert torch.equal(found, oracle(predictions, labels))
    halves = [confusion_matrix(predictions[part], labels[part], 6) for part in ([0], [1, 2])]
    assert torch.equal(sum(halves), found)


def test_metrics_of_perfect_and_missing_predictions():
    perfect = segmentation_metrics(torch.diag(torch.tensor([3, 0, 5])))
    assert (perfect.miou, perfect.pixel_acc, perfect.macc, perfect.f1) == (100.0,) * 4
    assert perfect.miou_reference == pytest.approx(200 / 3)
    assert math.isnan(segmentation_metrics(torch.zeros(3, 3, dtype=torch.int64)).miou)


@pytest.mark.parametrize("label", [6, -1, 254])
def test_labels_out_of_range_are_refused(label: int):
    with pytest.raises(InputError, match="expected 0 to 5"):
        confusion_matrix(torch.zeros(2, 2).long(), torch.full((2, 2), label), 6)
