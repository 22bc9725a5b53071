"""`eligo scenes evaluate-vlm`: how often the tiny LLaVA is right, family by family."""

from json import dumps
from pathlib import Path

from rich.table import Table

from eligo.cli.console import print_result, results
from eligo.errors import InputError
from eligo.files import write_text
from eligo.report.provenance import provenance
from eligo.scenes.vlm.evaluate import (
    BAR,
    FamilyRow,
    Share,
    VlmEvaluationConfig,
    evaluate_vlm,
    summarise,
)
from eligo.train.progress import ProgressBar


def run(config: VlmEvaluationConfig, *, out: Path | None = None, json: bool = False) -> None:
    """Ask held-out questions through stock `generate`, and count the right answers.

    Args:
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document instead of a table.
    """
    if out is not None and out.is_dir():
        raise InputError(f"--out names a file to write, {out} is a folder")
    with ProgressBar("questions", config.questions) as bar:
        asked = evaluate_vlm(config, bar.update)
    rows = summarise(asked)
    document = {"bar": BAR, "rows": [_plain(row) for row in rows]}
    if out is not None:
        device = "cuda" if config.device != "cpu" and _has_cuda() else "cpu"
        head = provenance("eligo", device)
        wrong = [
            {"family": a.family, "question": a.question, "answer": a.answer, "said": a.said}
            for a in asked
            if a.said != a.answer
        ]
        write_text(out, dumps(head | document | {"wrong": wrong}, indent=1) + "\n")
    if json:
        print_result(document, json=True)
    else:
        results().print(_table(rows, config))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _plain(row: FamilyRow) -> dict[str, object]:
    shares = {
        name: {"right": share.right, "asked": share.asked, "share": round(share.value, 4)}
        | {"interval": [round(end, 4) for end in share.interval]}
        for name in ("accuracy", "held_out", "grey", "blind")
        if (share := getattr(row, name)).asked
    }
    return {"family": row.family, "met": row.met, "chance": round(row.chance, 4)} | shares


def _table(rows: list[FamilyRow], config: VlmEvaluationConfig) -> Table:
    table = Table(
        title=f"right answers on the {config.split} split (%), 95 % intervals",
        caption="held out: a colour-shape pair that training never showed · grey: the same model "
        "shown an empty image · blind: the most frequent training answer to the same words",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("family", no_wrap=True)
    for name in ("asked", "right", "held out", "grey", "blind", "chance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("met")
    for row in rows:
        cells = [_cell(share) for share in (row.accuracy, row.held_out, row.grey, row.blind)]
        verdict = "[green]yes[/]" if row.met else "[bold red]no[/]"
        table.add_row(
            row.family, str(row.accuracy.asked), *cells, f"{100 * row.chance:.1f}", verdict,
            style="bold" if row.family == "all" else "",
        )  # fmt: skip
    return table


def _cell(share: Share) -> str:
    if not share.asked:
        return "-"
    low, high = share.interval
    return f"{100 * share.value:.1f} ({100 * low:.1f}-{100 * high:.1f})"
