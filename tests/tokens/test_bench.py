"""`eligo tokens bench`: the clock, on a narrow random LLaVA; times themselves are not judged."""

import json

import pytest
import torch
from eligo.tokens.inference.bench_answers import answer_bar, time_answers
from eligo.tokens.inference.bench_models import PARTS, default_plan, random_inputs, random_llava

from eligo.cli import main
from eligo.errors import InputError
from eligo.scenes.vlm.model import VlmConfig, build_processor, build_vlm
from eligo.tokens.cost.count import count_cost
from eligo.tokens.cost.proposals import default_schedule
from eligo.tokens.cost.shapes import LLAVA_7B
from eligo.tokens.inference.bench import Arm, Bar, Marks, Spread, Timings, run_rounds, speed_bars
from eligo.tokens.model.modules import TokenMerger

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def narrow():
    return random_llava("narrow", CPU)


def timings(**milliseconds: float) -> Timings:
    made = Timings()
    made.add(milliseconds)
    return made


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    out = tmp_path / "bench.json"
    command = ["tokens", "bench", "--shape", "narrow", "--rounds", "2", "--batch_size", "1", "2"]
    assert main([*command, "--threads", "1", "--device", "cpu", "--out", str(out), "--json"]) == 0
    printed, written = json.loads(capsys.readouterr().out), json.loads(out.read_text())
    assert {"date", "hardware", "command", "versions"} <= written.keys()
    assert all(written[name] == value for name, value in printed.items())
    assert [(row["arm"], row["batch"]) for row in printed["rows"]][:6] == [
        ("unpruned", 1), ("two-stage", 1), ("fastv", 1), ("unpruned, eager", 1),
        ("fastv, eager", 1), ("unpruned", 2),
    ]  # fmt: skip
    assert [bar["name"] for bar in printed["bars"]] == [
        "TTFT speed-up, batch 2", "selector share of prefill, batch 2",
    ]  # fmt: skip
    assert all(isinstance(bar["met"], bool) for bar in printed["bars"])
    assert any("random weights" in note for note in printed["notes"])
    two_stage = printed["rows"][1]
    assert 0 < two_stage["llm_ms"]["p50"] < two_stage["prefill_ms"]["p50"]
    assert two_stage["prefill_ms"]["p50"] < two_stage["ttft_ms"]["p50"]
    assert 0 < two_stage["selector_ms"]["p50"] < two_stage["prefill_ms"]["p50"]
    assert "decode_ms" in two_stage
    assert "selector_ms" not in printed["rows"][0]


def test_arms_take_turns_and_leave_the_model_alone(narrow):
    plan = default_plan(narrow, PARTS["narrow"], text=10)
    inputs = random_inputs(narrow, 2, text=10)
    with torch.no_grad():
        before = narrow(**inputs).logits
    attention = narrow.config.text_config._attn_implementation
    lengths, done = [], []
    # A hook that was there first sees what the last layer is really given.
    handle = narrow.model.language_model.layers[-1].self_attn.register_forward_pre_hook(
        lambda _module, _args, kwargs: lengths.append(kwargs["hidden_states"].shape[1]),
        with_kwargs=True,
    )
    arms = [Arm("unpruned"), Arm("pruned", plan), Arm("eager", attention="eager")]
    found = run_rounds(narrow, arms, inputs, 2, done.append)
    handle.remove()
    full, kept = 36 + 10, plan.counts((6, 6))[-1] + 10
    assert kept < full
    assert lengths == [full, kept, full] * 5  # three to warm up, two that count
    assert done == list(range(1, 16))
    assert {name: len(one.turns["ttft"]) for name, one in found.items()} == {
        "unpruned": 2, "pruned": 2, "eager": 2,
    }  # fmt: skip
    assert narrow.config.text_config._attn_implementation == attention
    with torch.no_grad():
        assert torch.equal(narrow(**inputs).logits, before)


def test_the_7b_shape_and_its_default_plan():
    """On the meta device: the sizes that the cost model knows, and the documented schedule."""
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


def test_bars_by_hand():
    cost = count_cost(LLAVA_7B, default_schedule(LLAVA_7B, 576, 100))
    full = timings(ttft=200.0, llm=150.0, prefill=160.0)
    pruned = timings(ttft=110.0, llm=55.0, prefill=70.0, selector=2.0)
    speed, selector = speed_bars(full, pruned, cost, 8)
    predicted = 200 / (200 - cost.reduction_llm * 150)
    assert speed.value == pytest.approx(200 / 110)
    assert speed.bound == pytest.approx(0.85 * predicted)
    assert speed.met
    assert selector.value == pytest.approx(2 / 70)
    assert selector.met
    slow = timings(ttft=150.0, llm=90.0, prefill=100.0, selector=3.0)
    assert [bar.met for bar in speed_bars(full, slow, cost, 8)] == [False, False]


def test_an_answer_bar_is_met_at_its_bound():
    found = {"unpruned": timings(answer=150.0), "pruned": timings(answer=100.0)}
    assert answer_bar(found).met
    found["pruned"] = timings(answer=101.0)
    assert not answer_bar(found).met
    assert not Bar("share", 0.03, 0.03, {}, at_most=True).met


def test_both_sides_answer_in_turn():
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    model = build_vlm(sizes).eval()
    plan = default_plan(model, PARTS["narrow"], text=10)
    done: list[int] = []
    found, words = time_answers(model, build_processor(sizes), plan, 2, done.append)
    assert done == list(range(1, 11))
    assert {name: len(one.turns["answer"]) for name, one in found.items()} == {
        "unpruned": 2, "pruned": 2,
    }  # fmt: skip
    assert all(1 <= count <= 8 for count in words.values())


def test_spread_and_marks():
    assert Spread.of([5.0]) == Spread(5.0, 5.0)
    assert Spread.of([float(n) for n in range(11)]) == Spread(5.0, 9.0)
    marks = Marks(CPU)
    marks.set("first")
    marks.set("last")
    span = marks.between("first", "last")
    marks.set("last")  # the first of a name counts
    assert marks.between("first", "last") == span


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--plan", "default"], "--plan goes with --shape tiny"),
        (["--shape", "tiny", "--device", "cuda"], "tiny is timed on the CPU"),
        (["--batch_size", "0"], "expected at least 1"),
        (["--shape", "tiny", "--plan", "no_such"], "no_such: there is no such folder"),
    ],
)
def test_bad_flags(flags, told, capsys):
    assert main(["tokens", "bench", *flags]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_no_repeats(narrow):
    with pytest.raises(InputError, match="expected 1 or more"):
        run_rounds(narrow, [Arm("unpruned")], random_inputs(narrow, 1, 4), 0)
