"""Pictures of docs/tokens_study.md, from the committed results (no arguments)."""

import json
from pathlib import Path
from typing import Any

from benchmarks.tokens.plot import plot_exam
from eligo.report.dots import Row, save_dots

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results", HERE.parents[1] / "docs" / "pictures"
OURS = "two stages"
ARMS = {"two-stage": OURS, "fastv": "FastV"}
TIMES = {"ttft_ms": "first token", "prefill_ms": "prefill", "decode_ms": "decoding, per token"}


def main() -> None:
    """Draw both."""
    plot_exam(read("study.json"), PICTURES / "tokens_exam.png")
    bench, tiny = read("bench.json"), read("bench_tiny.json")
    groups = {
        f"LLaVA-1.5-7B shapes, batch {batch}": speeds(bench, batch)
        for batch in sorted({row["batch"] for row in bench["rows"]}, reverse=True)
    }
    whole, pruned = (row["answer_ms"]["p50"] for row in tiny["rows"])
    groups["tiny LLaVA, 2 CPU threads"] = [dots("whole answer", {OURS: whole / pruned})]
    save_dots(
        groups, PICTURES / "tokens_speed.png", x_label="times as fast as without pruning",
        ticks=[0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5], marked=1.0,
    )  # fmt: skip


def speeds(bench: dict[str, Any], batch: int) -> list[Row]:
    """Every time of a batch size, as a ratio to the unpruned one."""
    rows = {row["arm"]: row for row in bench["rows"] if row["batch"] == batch}
    found = []
    for time, name in TIMES.items():
        ratios = {
            told: rows["unpruned"][time]["p50"] / rows[arm][time]["p50"]
            for arm, told in ARMS.items()
            if time in rows[arm]
        }
        if time == "ttft_ms":
            saved = bench["cost"]["flops_reduction_llm"]
            full, llm = rows["unpruned"][time]["p50"], rows["unpruned"]["llm_ms"]["p50"]
            ratios["what FLOPs predict"] = full / (full - saved * llm)
        found.append(dots(name, ratios))
    return found


def dots(name: str, ratios: dict[str, float]) -> Row:
    """A row without intervals."""
    return Row(name, {series: (ratio, ratio, ratio) for series, ratio in ratios.items()})


def read(name: str) -> dict[str, Any]:
    """A committed result."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
