"""`eligo tokens bench`: times of a model with and without pruning."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from eligo.cli.console import (
    OutFile,
    compact_table,
    print_result,
    print_text,
    results,
    write_result_file,
)
from eligo.cli.flags import Budget, Count
from eligo.errors import InputError

_METHOD, _SHARE = "divprune", 0.25  # for --model without --plan and --method
_COLUMNS = ("ttft", "prefill", "decode", "selector", "answer")
_WITH_P90 = ("ttft", "answer")
_SIDE = 672  # pixels of the default image, for hosts that take images of any size


def run(
    model: str | None = None,
    plan: str | None = None,
    method: str | None = None,
    budgets: Annotated[tuple[Budget, ...], tyro.conf.arg(name="budget")] = (),
    layers: Annotated[tuple[Count, ...], tyro.conf.arg(name="layer")] = (),
    image: Path | None = None,
    question: str = "Describe this image in detail.",
    batch_size: tuple[Count, ...] = (1, 8),
    rounds: Count = 20,
    threads: Count | None = None,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Time your model on your device, with all vision tokens and with those that a plan keeps.

    Both alternate on the same prompts: time to the first token, prefill, decoding, memory. Also
    prints the speed-up that the saved FLOPs predict. With --model but without --plan and --method,
    divprune keeps a quarter of the tokens.

    Args:
        model: Folder or hub name of the host; by default the tiny LLaVA that comes with eligo.
        plan: A plan: a folder (of a plan, a checkpoint or a run), or the name of a shipped one.
        method: A training-free method instead of a plan, such as fastv or divprune.
        budgets: Vision tokens that the method keeps of an image (of a tile, for hosts that tile);
            or a share of them, such as 0.25; several, with a layer each, for several cuts.
        layers: Layers at which a method inside the language model cuts; by default layer 2.
        image: Image of the prompts; by default a blank one.
        question: Question of the prompts.
        batch_size: Prompts at a time, each number in turn.
        rounds: Measurements of each case, after a warm-up.
        threads: CPU threads; by default torch's own number.
        device: Where to run: auto, cpu or cuda.
        dtype: Data type of the weights; by default bfloat16 on a GPU, float32 on a CPU.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    from eligo.tokens.inference.resolve import load_plan

    if model is not None and plan is None and method is None and not layers:
        method, budgets = _METHOD, budgets or (_SHARE,)
        chosen = load_plan(None, method, budgets)
    else:
        chosen = load_plan(plan, method, budgets, layers)
    if not chosen.stages:
        raise InputError("--method: got none, expected a method that removes tokens")
    import torch

    from eligo.pretrained.devices import resolve_device

    place = resolve_device(device)
    dtype = dtype or ("bfloat16" if place.type == "cuda" else "float32")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        document = _measure(chosen, model, dtype, image, question, batch_size, rounds, place)
    finally:
        torch.set_num_threads(before)
    head = {"model": model, "plan": plan or method, "dtype": dtype, "rounds": rounds}
    document = {**head, "threads": threads or before, **document}
    if json:
        print_result(document, json=True)
    else:
        pruned = " ".join([str(plan or method), *map(str, budgets)])
        title = f"{model or 'tiny LLaVA'}, {dtype}; pruned by {pruned}"
        results().print(timing_table(document["rows"], title))
        for size, speedup in document["predicted_speedup"].items():
            print_text(f"speed-up that FLOPs predict, batch {size}: {speedup:.2f}x")
    write_result_file(out, place, document)


def _measure(
    plan: Any, model: str | None, dtype: Any, image: Path | None, question: str,
    batch_size: tuple[int, ...], rounds: int, device: Any,
) -> dict[str, Any]:  # fmt: skip
    """Time the unpruned and the pruned model at every batch size."""
    import torch
    from PIL import Image

    from eligo.images import open_image, side_of
    from eligo.tokens.config import HostConfig
    from eligo.tokens.cost.flops import count_cost
    from eligo.tokens.cost.plan_cost import selectors_of, trace_schedules
    from eligo.tokens.cost.shapes import HostShape
    from eligo.tokens.data.examples import Collator, TokenExample
    from eligo.tokens.hooks.pruning import pruning
    from eligo.tokens.inference.bench import (
        WARM_UP,
        BenchCase,
        predicted_speedup,
        run_rounds,
        timing_rows,
    )
    from eligo.tokens.inference.load import floats_of, load_host
    from eligo.tokens.inference.resolve import move_plan
    from eligo.train.progress import ProgressBar

    picture = open_image(image) if image else None
    host, processor = load_host(HostConfig(model=model, dtype=dtype), device=device)
    shape = HostShape.of(host)
    plan.resolve(shape.num_layers, shape.vision)
    move_plan(plan, device)
    if picture is None:
        side = side_of(processor) or _SIDE
        picture = Image.new("RGB", (side, side), "grey")
    example = TokenExample("bench", picture, question, ())
    cases = [BenchCase("unpruned", decodes=True), BenchCase("pruned", plan, decodes=True)]
    rows, predicted, cost = [], {}, None
    for size in batch_size:
        batch = Collator(processor)([example] * size).to(device)
        inputs = floats_of(host, batch.inputs)
        if cost is None:
            with torch.no_grad(), pruning(host, plan) as trace:
                host(**inputs, use_cache=False, logits_to_keep=1)
            schedule = trace_schedules(trace, shape.num_layers)[0]
            cost = count_cost(shape, schedule, selectors=selectors_of(plan), dtype=dtype)
        with ProgressBar(f"batch {size}", len(cases) * (WARM_UP + rounds)) as bar:
            timings = run_rounds(host, cases, inputs, rounds, bar.update)
        rows += timing_rows(timings, size)
        predicted[str(size)] = predicted_speedup(timings["unpruned"], cost)
    assert cost is not None
    return {"rows": rows, "predicted_speedup": predicted, "cost": cost.as_plain()}


def timing_table(rows: list[dict[str, Any]], title: str) -> Table:
    """Return a table of the result of `timing_rows`."""
    columns = [name for name in _COLUMNS if any(f"{name}_ms" in row for row in rows)]
    has_peak = any("peak_mib" in row for row in rows)
    table = compact_table(
        f"{title}: milliseconds",
        "speed-up: of the time to the first token (or of an answer) against unpruned · "
        "medians, for ttft and answer also p90 · decode: per token · prefill includes the selector",
        ("variant",),
        ("batch", "speed-up", *columns, *(["peak MiB"] if has_peak else [])),
    )
    for row in rows:
        cells = [_cell(row.get(f"{name}_ms"), name in _WITH_P90) for name in columns]
        cells += [f"{row['peak_mib']:.0f}"] if has_peak else []
        table.add_row(row["variant"], str(row["batch"]), f"{row['speedup']:.2f}x", *cells)
    return table


def _cell(spread: dict[str, float] | None, with_p90: bool) -> str:
    if spread is None:
        return ""
    return "/".join(
        f"{spread[name]:.0f}" if spread[name] >= 100 else f"{spread[name]:.3g}"
        for name in ("p50", "p90")[: 1 + with_p90]
    )
