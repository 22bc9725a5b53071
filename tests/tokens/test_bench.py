"""`eligo tokens bench` and its timings, on narrow random models; no test compares times."""

import json

import pytest
import torch

from benchmarks.tokens.speed import PARTS, default_plan, random_inputs, random_llava
from eligo.cli import main
from eligo.cli.tokens import bench
from eligo.errors import InputError
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, save_vlm
from eligo.tokens.inference.bench import (
    BenchCase,
    Marks,
    Spread,
    run_rounds,
)

CPU = torch.device("cpu")


def test_milliseconds_are_shown_as_people_write_them():
    assert bench._cell({"p50": 1512.3, "p90": 1540.0}, with_p90=True) == "1512/1540"
    assert bench._cell({"p50": 3.0421, "p90": 0.0}, with_p90=False) == "3.04"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A LLaVA with random weights, 36 vision tokens and 4 layers."""
    path = tmp_path_factory.mktemp("host")
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    save_vlm(build_vlm(sizes), build_processor(sizes), path)
    return path


@pytest.fixture(scope="module")
def narrow():
    return random_llava("narrow", CPU)


def test_bench_of_a_model_in_a_folder(folder, tmp_path, capsys):
    out = tmp_path / "bench.json"
    command = ["tokens", "bench", "--model", str(folder), "--method", "fastv", "--budget", "9"]
    command += ["--rounds", "2", "--batch_size", "1", "2", "--threads", "1", "--device", "cpu"]
    assert main([*command, "--out", str(out), "--json"]) == 0
    printed, written = json.loads(capsys.readouterr().out), json.loads(out.read_text())
    assert {"date", "hardware", "command", "versions"} <= written.keys()
    assert all(written[name] == value for name, value in printed.items())
    assert [(row["variant"], row["batch"]) for row in printed["rows"]] == [
        ("unpruned", 1), ("pruned", 1), ("unpruned", 2), ("pruned", 2),
    ]  # fmt: skip
    assert printed["cost"]["schedule"]["cuts"] == [[2, 9]]
    assert printed["predicted_speedup"].keys() == {"1", "2"}
    unpruned, pruned = printed["rows"][:2]
    assert unpruned["speedup"] == 1
    assert {"ttft_ms", "prefill_ms", "llm_ms", "decode_ms"} <= unpruned.keys()
    assert "selector_ms" in pruned
    assert "selector_ms" not in unpruned
    assert main(command) == 0
    assert "speed-up that FLOPs predict, batch 2" in capsys.readouterr().out


def test_cases_take_turns_and_leave_the_model_unchanged(narrow):
    plan = default_plan(narrow, PARTS["narrow"], text=10)
    inputs = random_inputs(narrow, 2, text=10)
    with torch.no_grad():
        before = narrow(**inputs).logits
    attention = narrow.config.text_config._attn_implementation
    lengths, done = [], []
    # Registered first, this hook sees the real input of the last layer.
    handle = narrow.model.language_model.layers[-1].self_attn.register_forward_pre_hook(
        lambda _module, _args, kwargs: lengths.append(kwargs["hidden_states"].shape[1]),
        with_kwargs=True,
    )
    cases = [
        BenchCase("unpruned"),
        BenchCase("pruned", plan),
        BenchCase("eager", attention="eager"),
    ]
    found = run_rounds(narrow, cases, inputs, 2, done.append)
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
    ("flags", "message"),
    [
        ([], "expected either a plan"),
        (["--method", "none"], "expected a method that removes tokens"),
        (["--method", "fastv", "--budget", "9", "--batch_size", "0"], "expected at least 1"),
        (["--plan", "no_such"], "no_such: there is no such folder"),
    ],
)
def test_invalid_flags_are_refused(flags, message, capsys):
    assert main(["tokens", "bench", *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_zero_rounds_are_refused(narrow):
    with pytest.raises(InputError, match="expected 1 or more"):
        run_rounds(narrow, [BenchCase("unpruned")], random_inputs(narrow, 1, 4), 0)
