"""Plans of another host: another architecture is refused, other weights give a warning."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hosts import IMAGE, build
from tiny_task import make

from eligo.errors import InputError
from eligo.pretrained.load import shipped_models
from eligo.tokens import pruning
from eligo.tokens.hosts import host_of
from eligo.tokens.methods import build as build_method
from eligo.tokens.plan import Cut, HostMark, Plan, Stage1
from eligo.tokens.plan_files import PLAN

FREE = Plan(Stage1(build_method("uniform"), 8), [Cut(1, build_method("uniform"), 4)])


def run(host, plan: Plan) -> None:
    with pruning(host.model, plan), torch.no_grad():
        host.model(**host.batch([[3, IMAGE, 5]]))


def marked(host) -> Plan:
    return replace(FREE, host=HostMark.of(host_of(host.model)))


def test_same_host_is_accepted_in_any_precision(caplog):
    host = build("llava")
    plan = marked(host)
    with caplog.at_level(logging.WARNING):
        run(host, plan)
        run(build("llava"), plan)
        plan.host.check(host_of(build("llava").model.to(torch.bfloat16)))
    assert not caplog.text


def test_other_weights_give_one_warning(caplog):
    plan, other = marked(build("llava")), build("llava")
    with torch.no_grad():
        other.model.model.language_model.embed_tokens.weight.mul_(1.5)
    with caplog.at_level(logging.WARNING):
        run(other, plan)
        run(other, plan)
    assert caplog.text.count("other weights") == 1


@pytest.mark.parametrize("changed", ["family", "layers", "feature layer", "tokens"])
def test_another_architecture_is_refused(changed: str):
    host = build("llava")
    plan = marked(host)
    if changed == "family":
        host = build("internvl")
    elif changed == "layers":
        host = build("llava", num_layers=len(host.text.layers) + 1)
    elif changed == "feature layer":
        host.model.config.vision_feature_layer = -1
    else:
        architecture = {**plan.host.architecture, "tokens of an image": 36}
        plan = replace(FREE, host=HostMark(architecture, plan.host.weights))
    with pytest.raises(InputError, match=r"plan: was trained in a host with .*, this one has"):
        run(host, plan)


def test_plans_without_a_mark_fit_every_host(tmp_path: Path):
    for family in ("llava", "smolvlm"):
        run(build(family), FREE)
    FREE.save(tmp_path)
    assert "host" not in json.loads((tmp_path / PLAN).read_text())
    assert Plan.load(tmp_path).host is None
    marked = {name for name in shipped_models(PLAN) if Plan.load(name).host is not None}
    assert marked == {"tokens_folding", "tokens_reindex"}  # the others are older than marks


def test_trained_plan_is_saved_with_its_host(tmp_path: Path):
    task = make()
    task.plan.save(tmp_path)
    loaded = Plan.load(tmp_path)
    assert loaded.host == task.plan.host
    assert loaded.host is not None
    assert loaded.host.architecture["layers"] == 6
    assert loaded.resolve(6).host == loaded.host
    loaded.save(tmp_path / "again")
    assert Plan.load(tmp_path / "again").host == loaded.host
