"""Optimiser groups, weights on disk, averages."""

from pathlib import Path

import pytest
import torch
from torch import nn
from toy_task import Head, toy

from eligo.errors import ConfigError, EligoError, InputError
from eligo.train import OptimizerConfig, OptimizerSpec, fit, load_weights, save_weights
from eligo.train.optimization import parameter_groups
from eligo.train.weights import WeightAverage


def test_groups_follow_what_modules_declare() -> None:
    body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    body.lr_multiplier = {"2": 0.1}  # pyright: ignore[reportAttributeAccessIssue]
    head = Head(4)
    groups = parameter_groups(
        {"body": body, "head": head}, OptimizerConfig(lr=1.0, weight_decay=0.5)
    )
    found = {
        id(parameter): (round(group["peak_lr"], 6), group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }
    assert found[id(body[0].weight)] == (1.0, 0.5)
    assert found[id(body[0].bias)] == found[id(body[1].weight)] == (1.0, 0.0)
    assert found[id(body[2].weight)] == (0.1, 0.5)
    assert found[id(head.scale)] == (10.0, 0.0)
    assert len(found) == sum(1 for module in (body, head) for _ in module.parameters())


def test_misspelt_declaration_is_refused() -> None:
    head = Head(4)
    head.no_weight_decay = ("scal",)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="scal"):
        parameter_groups({"head": head}, OptimizerConfig())


def test_every_trained_module_has_one_optimizer(tmp_path: Path) -> None:
    task = toy(tmp_path)
    task.optimizers = {"head": task.optimizers["head"]}
    with pytest.raises(ConfigError, match="module 'body' has parameters"):
        fit(task, task.config.train)
    spec = OptimizerSpec(OptimizerConfig(), ("body", "head"))
    task.optimizers = {"head": task.optimizers["head"], "all": spec}
    with pytest.raises(ConfigError, match="trained by 'head' too"):
        fit(task, task.config.train)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.out = nn.Linear(4, 10, bias=False)
        self.out.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)


def test_weights_round_trip(tmp_path: Path) -> None:
    first, second = Tied(), Tied()
    save_weights(tmp_path, {"tied": first})
    load_weights(tmp_path, {"tied": second})
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
    assert second.out.weight is second.embedding.weight


def test_loading_is_strict(tmp_path: Path) -> None:
    save_weights(tmp_path, {"a": nn.Linear(2, 3)}, dtype=torch.float16)
    load_weights(tmp_path, {"a": nn.Linear(2, 3)})
    with pytest.raises(EligoError, match=r"(?s)missing: a.0.weight.*unexpected: a.weight"):
        load_weights(tmp_path, {"a": nn.Sequential(nn.Linear(2, 3))})
    with pytest.raises(EligoError, match=r"shape of a.weight: \(3, 2\) stored, \(4, 2\) expected"):
        load_weights(tmp_path, {"a": nn.Linear(2, 4)})
    with pytest.raises(InputError, match=r"no weights for 'b'.*b\.safetensors$"):
        load_weights(tmp_path, {"b": nn.Linear(2, 3)})
    (tmp_path / "best").mkdir()
    with pytest.raises(InputError, match=r"this is the folder of a run: try .*best$"):
        load_weights(tmp_path, {"b": nn.Linear(2, 3)})


def test_error_lists_only_a_few_weights(tmp_path: Path) -> None:
    save_weights(tmp_path, {"a": nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))})
    with pytest.raises(EligoError) as error:
        load_weights(tmp_path, {"a": nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])})
    start, _, listed = str(error.value).partition("model: ")
    assert start == f"weights in {tmp_path} do not fit the "
    entries = listed.split("; ")
    assert [entry for entry in entries if "missing" in entry] == [
        "missing: a.0.0.weight",
        "missing: a.0.0.bias",
    ]
    assert sum("unexpected: a." in entry for entry in entries) == 8
    assert entries[-1] == "... and 32 more like it"


def test_average_is_swapped_in_and_out() -> None:
    module = nn.Linear(2, 2)
    average = WeightAverage({"m": module}, decay=0.5)
    before = module.weight.detach().clone()
    with torch.no_grad():
        module.weight += 1
    average.update(step=100)
    with average.swapped():
        torch.testing.assert_close(module.weight, before + 0.5)
    torch.testing.assert_close(module.weight, before + 1)


def test_average_is_an_exponential_moving_average_bit_for_bit() -> None:
    module, generator = nn.Linear(33, 17), torch.Generator().manual_seed(0)
    average = WeightAverage({"m": module}, decay=0.97)
    expected = {name: value.detach().clone() for name, value in module.named_parameters()}
    for step in range(400):
        with torch.no_grad():
            for value in module.parameters():
                value += torch.randn(value.shape, generator=generator)
        average.update(step)
        decay = min(0.97, (1 + step) / (10 + step))
        for name, value in module.named_parameters():
            expected[name].lerp_(value.detach(), 1 - decay)
    with average.swapped():
        for name, value in module.named_parameters():
            assert torch.equal(value, expected[name])
