"""`eligo tokens bench`: what pruning is worth by the clock, beside the unpruned model."""

from typing import Any, Literal

from rich.table import Table

from benchmarks.studies import reached_or_not
from eligo.cli.console import (
    OutFile,
    compact_table,
    messages,
    print_result,
    print_text,
    results,
    write_result_file,
)
from eligo.cli.flags import Count
from eligo.errors import InputError

_RANDOM_HOST = "The model has random weights: its times are real, its answers mean nothing."
_RANDOM_PLAN = "Merger and pruners have random weights: which tokens they keep means nothing."
_TEXT = 100  # words of a prompt
_COLUMNS = ("ttft", "prefill", "decode", "selector", "answer")
_WITH_P90 = ("ttft", "answer")


def run(
    shape: Literal["llava15", "tiny", "narrow"] = "llava15",
    plan: str | None = None,
    batch_size: tuple[Count, ...] = (1, 8),
    rounds: Count = 20,
    threads: Count = 2,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Time a plan against the unpruned model, in turns, and say which speed bars it meets.

    Shape `llava15` is LLaVA-1.5-7B with random weights (bfloat16 on a GPU), timed with the default
    plan and FastV, the latter also in eager attention. `tiny` times whole answers of the LLaVA that
    comes with eligo, on the CPU. `narrow` is `llava15` in small, to see the command run.

    Args:
        shape: Which model.
        plan: For tiny: a plan's folder, or the name of a shipped one; by default the default
            schedule with random weights.
        batch_size: Prompts at a time, each number in turn; tiny answers one question at a time.
        rounds: Interleaved measurements of every side, after a warm-up.
        threads: CPU threads.
        device: Where to run: auto, cpu or cuda; tiny runs on the CPU.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    if plan is not None and shape != "tiny":
        raise InputError(f"--plan goes with --shape tiny; {shape} is timed with the default plan")
    if shape == "tiny" and device not in ("auto", "cpu"):
        raise InputError(f"--device: got {device!r}, expected cpu: tiny is timed on the CPU")
    if not batch_size or min(batch_size) < 1:
        raise InputError(f"--batch_size: got {batch_size}, expected numbers from 1")
    import torch

    from eligo.pretrained.devices import resolve_device

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        place = resolve_device("cpu" if shape == "tiny" else device)
        if shape == "tiny":
            document = _tiny(plan, rounds)
        else:
            document = _shaped(shape, batch_size, rounds, place)
    finally:
        torch.set_num_threads(before)
    document = {"shape": shape, "rounds": rounds, "threads": threads, **document}
    if json:
        print_result(document, json=True)
    else:
        _say(document)
    write_result_file(out, place, document)


def _say(document: dict[str, Any]) -> None:
    results().print(_table(document))
    for bar in document["bars"]:
        sign = "<" if bar["at_most"] else ">="
        asked = f"{bar['value']:.3g}, asked {sign} {bar['bound']:.3g}"
        print_text(f"{bar['name']}: {asked}: {reached_or_not(bar['met'])}")
    for note in document["notes"]:
        messages().print(note, highlight=False, soft_wrap=True)


def _shaped(shape: Any, batches: tuple[int, ...], rounds: int, device: Any) -> dict[str, Any]:
    from eligo.tokens.cost.plan_cost import plan_cost
    from eligo.tokens.cost.shapes import HostShape
    from eligo.tokens.inference.bench import WARM_UP, Arm, run_rounds, speed_bars
    from eligo.tokens.inference.bench_models import (
        PARTS,
        default_plan,
        random_inputs,
        random_llava,
    )
    from eligo.tokens.methods import build
    from eligo.tokens.plan import Cut, Plan
    from eligo.train.progress import ProgressBar

    model = random_llava(shape, device)
    host = HostShape.of(model)
    assert host.vision is not None
    two_stage = default_plan(model, PARTS[shape], _TEXT)
    fastv = Plan(cuts=[Cut(2, build("fastv"), host.vision // 2)])
    cost = plan_cost(host, two_stage, _TEXT)
    arms = [
        Arm("unpruned", decodes=True),
        Arm("two-stage", two_stage, decodes=True),
        Arm("fastv", fastv),
        Arm("unpruned, eager", attention="eager"),
        Arm("fastv, eager", fastv, attention="eager"),
    ]
    rows, bars = [], []
    for size in batches:
        inputs = random_inputs(model, size, _TEXT)
        with ProgressBar(f"batch {size}", len(arms) * (WARM_UP + rounds)) as bar:
            found = run_rounds(model, arms, inputs, rounds, bar.update)
        full = found["unpruned"]["ttft"].p50
        for name, timings in found.items():
            speedup = full / timings["ttft"].p50
            rows.append({"arm": name, "batch": size, "speedup": speedup, **timings.as_plain()})
        if size == max(batches):  # small ones wait for launches, not for arithmetic
            bars = speed_bars(found["unpruned"], found["two-stage"], cost, size)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "dtype": dtype,
        "text": _TEXT,
        "cost": cost.as_plain(),
        "cost_fastv": plan_cost(host, fastv, _TEXT).as_plain(),
        "rows": rows,
        "bars": [one.as_plain() for one in bars],
        "notes": [_RANDOM_HOST, _RANDOM_PLAN],
    }


def _tiny(plan: str | None, rounds: int) -> dict[str, Any]:
    from eligo.tokens.inference.bench import WARM_UP
    from eligo.tokens.inference.bench_answers import answer_bar, time_answers
    from eligo.tokens.inference.bench_models import PARTS, default_plan
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.inputs_config import HostConfig
    from eligo.train.progress import ProgressBar

    model, processor = load_host(HostConfig())
    if plan is None:
        chosen, notes = default_plan(model, PARTS["tiny"], _TEXT), [_RANDOM_PLAN]
    else:
        from eligo.tokens.inference.resolve import find_plan

        chosen, notes = find_plan(plan), []
    with ProgressBar("answers", 2 * (WARM_UP + rounds)) as bar:
        found, words = time_answers(model, processor, chosen, rounds, bar.update)
    full = found["unpruned"]["answer"].p50
    rows = [
        {
            "arm": name,
            "batch": 1,
            "speedup": full / timings["answer"].p50,
            "mean_new_tokens": words[name],
            **timings.as_plain(),
        }
        for name, timings in found.items()
    ]
    return {
        "plan": plan,
        "dtype": "float32",
        "rows": rows,
        "bars": [answer_bar(found).as_plain()],
        "notes": notes,
    }


def _table(document: dict[str, Any]) -> Table:
    rows = document["rows"]
    shown = [name for name in _COLUMNS if any(f"{name}_ms" in row for row in rows)]
    has_peak = any("peak_mib" in row for row in rows)
    table = compact_table(
        f"{document['shape']}, {document['dtype']}: milliseconds",
        "speed-up: of the time to the first token (tiny: of an answer), against unpruned in the "
        "same run · medians, of ttft and answer also p90 · decode: per token · prefill has the "
        "selector in it",
        ("arm",),
        ("batch", "speed-up", *shown, *(["peak MiB"] if has_peak else [])),
    )
    for row in rows:
        cells = [_cell(row.get(f"{name}_ms"), name in _WITH_P90) for name in shown]
        cells += [f"{row['peak_mib']:.0f}"] if has_peak else []
        table.add_row(row["arm"], str(row["batch"]), f"{row['speedup']:.2f}x", *cells)
    return table


def _cell(spread: dict[str, float] | None, with_p90: bool) -> str:
    if spread is None:
        return ""
    return f"{spread['p50']:.3g}" + (f"/{spread['p90']:.3g}" if with_p90 else "")
