"""`eligo scenes evaluate-vlm`: how often the tiny LLaVA is right, family by family."""

from typing import TYPE_CHECKING, Any

from rich.table import Table

from eligo.cli import run_script
from eligo.cli.console import OutFile, compact_table, print_result, results, write_result_file
from eligo.scenes.vlm.config import VlmEvaluationConfig

if TYPE_CHECKING:
    from benchmarks.scenes.evaluate_vlm import Row, Share


def run(config: VlmEvaluationConfig, *, out: OutFile | None = None, json: bool = False) -> None:
    """Ask held-out questions through stock `generate`, and count the right answers.

    Args:
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    from benchmarks.scenes.evaluate_vlm import BAR, evaluate_vlm, summarise
    from eligo.train.progress import ProgressBar

    device = config.resolved_device  # before any work: it may not be there
    with ProgressBar("questions", config.questions) as bar:
        asked = evaluate_vlm(config, bar.update)
    rows = summarise(asked)
    document = {"bar": BAR, "rows": [_plain(row) for row in rows]}
    if json:
        print_result(document, json=True)
    else:
        results().print(_table(rows, config.split, BAR))
    wrong = [[a.kind, a.question, a.answer, a.said] for a in asked if a.said != a.answer]
    write_result_file(out, device, document | {"wrong": wrong})


def _plain(row: "Row") -> dict[str, Any]:
    shares = {
        name: {"right": share.right, "asked": share.asked, "share": round(share.value, 4)}
        | {"interval": [round(end, 4) for end in share.interval]}
        for name in ("accuracy", "held_out", "blind")
        if (share := getattr(row, name)).asked
    }
    head = {"family": row.family, "kind": row.kind}
    verdict = {"met": row.met} if row.kind == "all" else {}
    return head | verdict | {"chance": round(row.chance, 4)} | shares


def _table(rows: "list[Row]", split: str, bar: float) -> Table:
    table = compact_table(
        f"right answers on the {split} split (%)",
        "interval: 95 % · unknown: about a colour-shape pair that training never showed · blind: "
        "no image, the most frequent training answer to the same words",
        ("questions",),
        ("asked", "right", "interval", "unknown", "blind", "chance"),
    )
    table.add_column(f">={100 * bar:.0f}", no_wrap=True)
    for row in rows:
        if not row.accuracy.asked:
            continue
        whole = row.kind == "all"
        low, high = row.accuracy.interval
        table.add_row(
            row.family if whole else f"  {row.kind}",
            str(row.accuracy.asked),
            _percent(row.accuracy),
            f"{100 * low:.1f}-{100 * high:.1f}",
            _percent(row.held_out),
            _percent(row.blind),
            f"{100 * row.chance:.1f}",
            ("[green]met[/]" if row.met else "[bold red]no[/]") if whole else "",
            style="bold" if whole else "",
        )
    return table


def _percent(share: "Share") -> str:
    return f"{100 * share.value:.1f}" if share.asked else "-"


if __name__ == "__main__":
    raise SystemExit(run_script(run))
