"""`python -m benchmarks.tokens.speed` on narrow random models; no test compares times."""

import json

import pytest
import torch

from benchmarks.tokens.speed import (
    PARTS,
    Target,
    answer_target,
    default_plan,
    random_llava,
    run,
    speed_targets,
    time_answers,
)
from eligo.cli import run_script
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm
from eligo.tokens.cost.flops import count_cost
from eligo.tokens.cost.proposals import default_schedule
from eligo.tokens.cost.shapes import LLAVA_7B
from eligo.tokens.inference.bench import Timings
from eligo.tokens.model.token_merger import TokenMerger


def timings(**milliseconds: float) -> Timings:
    found = Timings()
    found.add(milliseconds)
    return found


def test_command_writes_what_it_prints(tmp_path, capsys):
    out = tmp_path / "bench.json"
    command = ["--shape", "narrow", "--rounds", "2", "--batch_size", "1", "2", "--threads", "1"]
    assert run_script(run, [*command, "--device", "cpu", "--out", str(out), "--json"]) == 0
    printed, written = json.loads(capsys.readouterr().out), json.loads(out.read_text())
    assert {"date", "hardware", "command", "versions"} <= written.keys()
    assert all(written[name] == value for name, value in printed.items())
    assert [(row["variant"], row["batch"]) for row in printed["rows"]][:6] == [
        ("unpruned", 1), ("two-stage", 1), ("fastv", 1), ("unpruned, eager", 1),
        ("fastv, eager", 1), ("unpruned", 2),
    ]  # fmt: skip
    assert [target["name"] for target in printed["targets"]] == [
        "TTFT speed-up, batch 2", "selector share of prefill, batch 2",
    ]  # fmt: skip
    assert all(isinstance(target["met"], bool) for target in printed["targets"])
    assert any("random weights" in note for note in printed["notes"])
    two_stage = printed["rows"][1]
    assert 0 < two_stage["llm_ms"]["p50"] < two_stage["prefill_ms"]["p50"]
    assert two_stage["prefill_ms"]["p50"] < two_stage["ttft_ms"]["p50"]
    assert 0 < two_stage["selector_ms"]["p50"] < two_stage["prefill_ms"]["p50"]
    assert "decode_ms" in two_stage
    assert "selector_ms" not in printed["rows"][0]


def test_7b_shape_and_its_default_plan():
    """On the meta device."""
    model = random_llava("llava15", torch.device("meta"))
    parameters = sum(one.numel() for one in model.parameters())
    assert parameters == pytest.approx(7.06e9, rel=0.01)
    plan = default_plan(model, PARTS["llava15"], text=100)
    assert plan.layers == (2, 8, 16)
    assert plan.counts((24, 24)) == (288, 200, 150, 100)
    merger = plan.stages[0].reducer
    assert isinstance(merger, TokenMerger)
    assert merger.shape.dim == 512
    schedule = default_schedule(LLAVA_7B, 576, 100)
    assert count_cost(LLAVA_7B, schedule).reduction_llm == pytest.approx(0.644, abs=5e-4)


def test_targets_by_hand():
    cost = count_cost(LLAVA_7B, default_schedule(LLAVA_7B, 576, 100))
    full = timings(ttft=200.0, llm=150.0, prefill=160.0)
    pruned = timings(ttft=110.0, llm=55.0, prefill=70.0, selector=2.0)
    speed, selector = speed_targets(full, pruned, cost, 8)
    predicted = 200 / (200 - cost.reduction_llm * 150)
    assert speed.value == pytest.approx(200 / 110)
    assert speed.bound == pytest.approx(0.85 * predicted)
    assert speed.met
    assert selector.value == pytest.approx(2 / 70)
    assert selector.met
    slow = timings(ttft=150.0, llm=90.0, prefill=100.0, selector=3.0)
    assert [target.met for target in speed_targets(full, slow, cost, 8)] == [False, False]


def test_answer_target_is_reached_at_its_bound():
    found = {"unpruned": timings(answer=150.0), "pruned": timings(answer=100.0)}
    assert answer_target(found).met
    found["pruned"] = timings(answer=101.0)
    assert not answer_target(found).met
    assert not Target("share", 0.03, 0.03, {}, at_most=True).met


def test_unpruned_and_pruned_model_alternate():
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    model = build_vlm(sizes).eval()
    plan = default_plan(model, PARTS["narrow"], text=10)
    done: list[int] = []
    found, lengths = time_answers(model, build_processor(sizes), plan, 2, done.append)
    assert done == list(range(1, 11))
    assert {name: len(one.turns["answer"]) for name, one in found.items()} == {
        "unpruned": 2, "pruned": 2,
    }  # fmt: skip
    assert all(1 <= count <= 8 for count in lengths.values())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--plan", "tokens_default"], "--plan needs --shape tiny"),
        (["--shape", "tiny", "--device", "cuda"], "tiny is timed on the CPU"),
        (["--shape", "tiny", "--plan", "no_such"], "no_such: there is no such folder"),
    ],
)
def test_invalid_flags_are_refused(flags, message, capsys):
    assert run_script(run, flags) == 2
    assert message in " ".join(capsys.readouterr().err.split())
