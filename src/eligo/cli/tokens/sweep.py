"""`eligo tokens sweep`: accuracy over cost, for any methods and plans, on the same questions."""

import csv
import io
import json as json_module
import logging
from pathlib import Path
from typing import Annotated, Any

from eligo.cli.console import compact_table, print_result, results
from eligo.errors import InputError, MissingExtraError
from eligo.io.files import write_text
from eligo.io.reading import read_json
from eligo.tokens.sweep_config import SweepConfig

logger = logging.getLogger("eligo.tokens")
_COLUMNS = ("name", "budget", "kept", "layers", "vision_keep_mean", "mean_length", "flops_llm",
            "flops_selector", "flops_total", "flops_reduction_llm",
            "flops_reduction_with_selector", "flops_reduction_total")  # fmt: skip
_RESULTS = ("family", "asked", "right", "accuracy", "low", "high")


def run(
    config: Annotated[SweepConfig, "tokens/sweep"],
    *,
    out: Path = Path("runs/tokens_sweep"),
    json: bool = False,
) -> None:
    """Compare methods and trained plans, budget by budget, on the same questions about scenes.

    Writes sweep.json and sweep.csv after every arm, then plots. Started again, it skips the arms
    that are in sweep.json; arms asked for later join those.

    Args:
        out: The folder to write to.
        json: Print one JSON document.
    """
    from eligo.pretrained.devices import resolve_device
    from eligo.report.provenance import provenance
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.inference.resolve import find_plan
    from eligo.tokens.inference.sweep import Sweep, arms_of
    from eligo.train.progress import ProgressBar

    arms = arms_of(config, [(name, find_plan(name)) for name in config.plans])
    path = out / "sweep.json"
    done = _read(path, config)
    missing = [arm for arm in arms if arm.key not in done]
    if len(missing) < len(arms):
        logger.info("%d of %d arms are in %s", len(arms) - len(missing), len(arms), path)
    if missing:
        device = str(resolve_device(config.device))
        sweep = Sweep(config, *load_host(config.host, device=device))
        sweep.check(missing)
        with ProgressBar("questions", len(missing) * config.questions) as bar:
            for number, arm in enumerate(missing):
                before, name = number * config.questions, arm.name

                def tell(asked: int, before: int = before, name: str = name) -> None:
                    bar.update(before + asked, name)

                made = sweep.run(arm, tell) | {"provenance": provenance("eligo", device)}
                done = _joined(done, made)
                _write(path, config, done)
    entries = _ordered(list(done.values()), [arm.key for arm in arms])
    _write_csv(out / "sweep.csv", entries)
    _plot(out, entries)
    if json:
        print_result({"asked": config.asked, "arms": entries}, json=True)
    else:
        for table in _tables(entries, config):
            results().print(table)
    logger.info("written: %s", ", ".join(sorted(str(file) for file in out.glob("*.*"))))


# ------------------------------------------------------------------ files


def _read(path: Path, config: SweepConfig) -> dict[str, dict[str, Any]]:
    """The arms of an earlier start, which must have been asked the same."""
    if not path.is_file():
        return {}
    try:
        found = read_json(path)
        asked, arms = found["asked"], {arm["key"]: arm for arm in found["arms"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: no result of a sweep ({error!r:.80}); give another --out"
        ) from None
    wanted = config.asked
    asked = asked if isinstance(asked, dict) else {}
    other = [key for key in wanted if asked.get(key) != wanted[key]]
    if other:
        raise InputError(
            f"{path}: its arms were asked otherwise ({', '.join(other)} differ), so that new ones "
            "could not be compared with them; give another --out"
        )
    return arms


def _joined(done: dict[str, dict[str, Any]], made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """With one more arm; a plan that was trained again replaces what it was."""
    stale = {
        key
        for key, arm in done.items()
        if arm["name"] == made["name"] and made["budget"] is None and arm["budget"] is None
    }
    return {key: arm for key, arm in done.items() if key not in stale} | {made["key"]: made}


def _write(path: Path, config: SweepConfig, done: dict[str, dict[str, Any]]) -> None:
    document = {"asked": config.asked, "arms": list(done.values())}
    write_text(path, json_module.dumps(document, indent=1) + "\n")


def _ordered(entries: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    """As asked for; those of earlier starts stand before the last row, which is blind."""
    place = {key: number for number, key in enumerate(keys)}
    return sorted(entries, key=lambda arm: place.get(arm["key"], len(keys) - 1.5))


def _write_csv(path: Path, entries: list[dict[str, Any]]) -> None:
    """A line for each arm and family."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, *_RESULTS))
    for arm in entries:
        head = [_csv_cell(arm.get(name)) for name in _COLUMNS]
        writer.writerows([*head, *(row[name] for name in _RESULTS)] for row in arm["rows"])
    write_text(path, text.getvalue())


def _csv_cell(value: Any) -> Any:
    return ">".join(map(str, value)) if isinstance(value, list) else value


def _plot(out: Path, entries: list[dict[str, Any]]) -> None:
    from eligo.report.plots import save_panels
    from eligo.tokens.inference.evaluate import ALL

    families = [row["family"] for row in entries[0]["rows"] if row["family"] != ALL]
    labels = {"x_label": "GFLOPs of language model and selector", "y_label": "right answers (%)"}
    try:
        save_panels([_panel(entries, ALL)], out / "accuracy.png", **labels)
        if families:
            panels = [_panel(entries, family) for family in families]
            save_panels(panels, out / "families.png", **labels)
    except MissingExtraError as error:
        logger.info("no plots: %s", error)


def _panel(entries: list[dict[str, Any]], family: str) -> Any:
    from eligo.report.plots import Panel, Point

    curves: dict[str, list[Point]] = {}
    levels: dict[str, float] = {}
    for arm in entries:
        row = next(row for row in arm["rows"] if row["family"] == family)
        right, low, high = (100 * row[name] for name in ("accuracy", "low", "high"))
        if "flops_llm" in arm:
            spent = (arm["flops_llm"] + arm["flops_selector"]) / 1e9
            curves.setdefault(arm["name"], []).append(Point(spent, right, low, high))
        else:
            levels[arm["name"]] = right
    asked = next(row["asked"] for row in entries[0]["rows"] if row["family"] == family)
    return Panel(f"{family} ({asked} questions)", curves, levels)


# ------------------------------------------------------------------ tables


def _tables(entries: list[dict[str, Any]], config: SweepConfig) -> list[Any]:
    overall = compact_table(
        f"right answers (%), {config.questions} questions of the {config.split} split",
        "interval: 95 % (Wilson) · drop: points against none, on the same questions · saved: "
        "FLOPs (%) of the language model, of it with the selector counted, of everything · "
        "length: tokens of a layer, mean",
        ("arm",),
        ["kept", "right", "interval", "drop", "LLM", "+sel.", "total", "length"],
    )
    families = compact_table(
        "by family (%)", "", ("arm",), [row["family"] for row in entries[0]["rows"]]
    )
    whole = next(arm for arm in entries if arm["name"] == "none")
    for arm in entries:
        overall.add_row(*_overall(arm, whole))
        kept = f" {arm['budget']}" if arm["budget"] else ""
        shares = [f"{100 * row['accuracy']:.1f}" for row in arm["rows"]]
        families.add_row(_plain(arm["name"] + kept), *shares)
    return [overall, families]


def _overall(arm: dict[str, Any], whole: dict[str, Any]) -> list[Any]:
    from eligo.tokens.inference.sweep import paired_drop

    row = arm["rows"][0]
    counted = "flops_llm" in arm
    saved = [
        f"{100 * arm[f'flops_reduction_{part}']:.1f}" if counted else "-"
        for part in ("llm", "with_selector", "total")
    ]
    kept = ">".join(map(str, arm["kept"]))
    if len(arm["kept"]) > 1:
        kept += f" @{','.join(map(str, arm['layers']))}"
    drop = paired_drop(whole["right"], arm["right"])[0]
    return [
        _plain(arm["name"]),
        kept,
        f"{100 * row['accuracy']:.1f}",
        f"{100 * row['low']:.1f}-{100 * row['high']:.1f}",
        f"{100 * drop:.1f}",
        *saved,
        f"{arm['mean_length']:.0f}" if counted else "-",
    ]


def _plain(name: str) -> Any:
    from rich.text import Text

    return Text(name)
