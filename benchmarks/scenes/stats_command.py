"""`eligo scenes stats`: what a world is made of, and how far one gets in it without looking."""

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from benchmarks.scenes.stats_config import StatsConfig
from eligo.cli import run_script
from eligo.cli.console import print_result, results

if TYPE_CHECKING:
    from benchmarks.scenes.stats import Row, Stats


def run(config: StatsConfig, *, json: bool = False) -> None:
    """Count questions, answers and objects, and measure the blind baseline.

    The blind baseline knows every training question and its most frequent answer, and sees no
    image. A kind of question is marked !! where that is surely, and more than five points, above
    chance.

    Args:
        json: Print one JSON document.
    """
    from benchmarks.scenes.stats import as_plain, scene_stats
    from eligo.train.progress import ProgressBar

    with ProgressBar("scenes", config.train + config.validation) as bar:
        stats = scene_stats(config, bar.update)
    if json:
        print_result(as_plain(stats), json=True)
    else:
        results().print(Group(_questions(stats), _answers(stats), _objects(stats), _verdict(stats)))


def _questions(stats: "Stats") -> Table:
    table = Table(title="questions on the validation split (%)", title_justify="left")
    for name in ("family", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("count", "valid", "chance", "blind", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(min_width=2)
    for row in stats.rows:
        table.add_row(*_cells(row), style="bold" if row.kind == "all" else "")
    return table


def _cells(row: "Row") -> list[str | Text]:
    low, high = row.interval
    numbers = [f"{100 * share:.1f}" for share in (row.valid, row.chance, row.blind)]
    between = f"{100 * low:.1f}-{100 * high:.1f}"
    mark = Text("OK", "green") if row.fair else Text("!!", "bold red")
    family = row.family if row.kind == "all" else ""
    return [family, row.kind, str(row.count), *numbers, between, mark]


def _answers(stats: "Stats") -> Table:
    kinds_of = Counter(row.family for row in stats.rows)
    single = [row for row in stats.rows if row.kind != "all" or kinds_of[row.family] == 1]
    names = [row.family if row.kind == "all" else row.kind for row in single]
    return _shares("answers (%)", dict(zip(names, (row.answers for row in single), strict=True)))


def _objects(stats: "Stats") -> Table:
    held_out = {"held-out pairs": stats.held_out}
    return _shares("things in a scene (%)", {**stats.objects, **held_out})


def _shares(title: str, rows: dict[str, dict[str, float]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, shares in rows.items():
        listed = (f"{value} {100 * share:.1f}" for value, share in shares.items())
        table.add_row(name, ", ".join(listed))
    return table


def _verdict(stats: "Stats") -> Text:
    from benchmarks.scenes.stats import MARGIN

    above = [row for row in stats.rows if row.blind > row.chance + MARGIN]
    unfair, unsure = (
        ", ".join(f"{row.family}/{row.kind}" for row in above if row.fair is fair)
        for fair in (False, True)
    )
    far = f"more than {100 * MARGIN:.0f} points above chance without looking"
    if unfair:
        return Text(f"!! {far}, and surely above it: {unfair}", "bold red")
    if unsure:
        return Text(f"OK, but too few questions to be sure; {far}: {unsure}", "green")
    return Text(f"OK: none is {far}", "green")


if __name__ == "__main__":
    raise SystemExit(run_script(run))
