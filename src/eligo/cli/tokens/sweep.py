"""`eligo tokens sweep`: accuracy over cost of methods and plans, on the same questions."""

import csv
import io
import json as json_module
import logging
from pathlib import Path
from typing import Annotated, Any

from eligo.cli.console import compact_table, print_result, results
from eligo.errors import InputError, MissingExtraError
from eligo.io.files import kept_json, write_text
from eligo.io.reading import read_json
from eligo.tokens.config import SweepConfig
from eligo.tokens.metrics import ALL, paired_drop

logger = logging.getLogger("eligo.tokens")
_COLUMNS = ("name", "budget", "kept", "layers", "vision_keep_mean", "mean_length", "flops_llm",
            "flops_selector", "flops_total", "flops_reduction_llm",
            "flops_reduction_with_selector", "flops_reduction_total")  # fmt: skip
_RESULTS = ("family", "asked", "right", "accuracy", "low", "high")
_Entry = dict[str, Any]


def run(
    config: Annotated[SweepConfig, "tokens/sweep"],
    *,
    out: Path = Path("runs/tokens_sweep"),
    json: bool = False,
) -> None:
    """Compare methods and trained plans, budget by budget, on the same questions about scenes.

    Writes sweep.json after every variant, then sweep.csv and plots. A second run with the same
    --out skips the variants that are in sweep.json and adds new ones. With --trials, methods are
    compared at equal cost, each with its best setting (tuning.json).

    Args:
        out: The folder to write to.
        json: Print one JSON document.
    """
    from eligo.pretrained.devices import resolve_device
    from eligo.report.provenance import provenance
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.inference.resolve import load_plan
    from eligo.tokens.inference.sweep import Sweep, variants_of
    from eligo.train.progress import ProgressBar

    path, device = out / "sweep.json", str(resolve_device(config.device))
    done = _read(path, config)
    plans = [(name, load_plan(name)) for name in config.plans]
    tuned = sweep = None
    if config.trials:
        sweep = Sweep(config, *load_host(config.host, device=device))
        tuned = sweep.tuned_variants(_tune(sweep, out / "tuning.json"))
    variants = variants_of(config, plans, tuned)
    missing = [variant for variant in variants if variant.key not in done]
    if len(missing) < len(variants):
        logger.info(
            "%d of %d variants are in %s", len(variants) - len(missing), len(variants), path
        )
    if missing:
        sweep = sweep or Sweep(config, *load_host(config.host, device=device))
        sweep.check(missing)
        with ProgressBar("questions", len(missing) * config.questions) as bar:
            for number, variant in enumerate(missing):
                before, name = number * config.questions, variant.name

                def report(count: int, before: int = before, name: str = name) -> None:
                    bar.update(before + count, name)

                entry = sweep.run(variant, report) | {"provenance": provenance(device)}
                done = _with_entry(done, entry)
                document = {"settings": config.shared_settings, "variants": list(done.values())}
                write_text(path, json_module.dumps(document, indent=1) + "\n")
    entries = _ordered(list(done.values()), [variant.key for variant in variants])
    _write_csv(out / "sweep.csv", entries)
    _plot(out, entries)
    if json:
        print_result({"settings": config.shared_settings, "variants": entries}, json=True)
    else:
        for table in _tables(entries, config):
            results().print(table)
    logger.info("written: %s", ", ".join(sorted(str(file) for file in out.glob("*.*"))))


def _tune(sweep: Any, path: Path) -> dict[str, Any]:
    """Return the tuning of the methods, which a second run reads from a file."""
    from eligo.train.progress import ProgressBar

    config = sweep.config
    chosen = config.model_dump(mode="json", include={"methods", "budgets", "trials"})

    def tune() -> dict[str, Any]:
        with ProgressBar("tuning", config.questions) as bar:
            return sweep.tune(lambda done: bar.update(done, ""))

    return kept_json(path, config.shared_settings | chosen | {"split": "validation"}, tune)


def _read(path: Path, config: SweepConfig) -> dict[str, _Entry]:
    """Return the variants of an earlier run, which must have the same settings."""
    if not path.is_file():
        return {}
    try:
        document = read_json(path)
        settings = dict(document["settings"])
        done = {entry["key"]: entry for entry in document["variants"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: not a result of this version's sweep ({error!r:.80}); give another --out"
        ) from None
    current = config.shared_settings
    if changed := [key for key in current if settings.get(key) != current[key]]:
        raise InputError(
            f"{path}: was made with other settings ({', '.join(changed)} differ), so its results "
            "are not comparable; give another --out"
        )
    return done


def _with_entry(done: dict[str, _Entry], entry: _Entry) -> dict[str, _Entry]:
    """Add one variant; the result of a retrained plan replaces the old one."""
    stale = {
        key
        for key, old in done.items()
        if old["name"] == entry["name"] and entry["budget"] is None and old["budget"] is None
    }
    return {key: old for key, old in done.items() if key not in stale} | {entry["key"]: entry}


def _ordered(entries: list[_Entry], keys: list[str]) -> list[_Entry]:
    """Sort by the order of `keys`; others come before the last row, the blind baseline."""
    place = {key: number for number, key in enumerate(keys)}
    return sorted(entries, key=lambda entry: place.get(entry["key"], len(keys) - 1.5))


def _write_csv(path: Path, entries: list[_Entry]) -> None:
    """Write one line for each variant and family."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, *_RESULTS))
    for entry in entries:
        values = [entry.get(name) for name in _COLUMNS]
        head = [">".join(map(str, v)) if isinstance(v, list) else v for v in values]
        writer.writerows([*head, *(row[name] for name in _RESULTS)] for row in entry["rows"])
    write_text(path, text.getvalue())


def _plot(out: Path, entries: list[_Entry]) -> None:
    from eligo.report.plots import save_panels

    families = [row["family"] for row in entries[0]["rows"] if row["family"] != ALL]
    labels = {"x_label": "GFLOPs of language model and selector", "y_label": "right answers (%)"}
    try:
        save_panels([_panel(entries, ALL)], out / "accuracy.png", **labels)
        if families:
            panels = [_panel(entries, family) for family in families]
            save_panels(panels, out / "families.png", **labels)
    except MissingExtraError as error:
        logger.info("no plots: %s", error)


def _panel(entries: list[_Entry], family: str) -> Any:
    from eligo.report.plots import Panel, Point

    curves: dict[str, list[Point]] = {}
    levels: dict[str, float] = {}
    count = 0
    for entry in entries:
        row = next(row for row in entry["rows"] if row["family"] == family)
        count = row["asked"]
        right, low, high = (100 * row[name] for name in ("accuracy", "low", "high"))
        if "flops_llm" in entry:
            spent = (entry["flops_llm"] + entry["flops_selector"]) / 1e9
            curves.setdefault(entry["name"], []).append(Point(spent, right, low, high))
        else:
            levels[entry["name"]] = right
    return Panel(f"{family} ({count} questions)", curves, levels)


def _tables(entries: list[_Entry], config: SweepConfig) -> list[Any]:
    from rich.text import Text

    overall = compact_table(
        f"right answers (%), {config.questions} questions of the {config.split} split",
        "interval: 95 % (Wilson) · drop: points against none, on the same questions · saved: "
        "FLOPs (%) of the language model, of it with the selector counted, of everything · "
        "length: tokens of a layer, mean",
        ("variant",),
        ["kept", "right", "interval", "drop", "LLM", "+sel.", "total", "length"],
    )
    families = compact_table(
        "by family (%)", "", ("variant",), [row["family"] for row in entries[0]["rows"]]
    )
    whole = next(entry for entry in entries if entry["name"] == "none")
    for entry in entries:
        overall.add_row(Text(entry["name"]), *_cells(entry, whole))
        budget = f" {entry['budget']}" if entry["budget"] else ""
        shares = [f"{100 * row['accuracy']:.1f}" for row in entry["rows"]]
        families.add_row(Text(entry["name"] + budget), *shares)
    return [overall, families]


def _cells(entry: _Entry, whole: _Entry) -> list[str]:
    row = entry["rows"][0]
    counted = "flops_llm" in entry
    saved = [
        f"{100 * entry[f'flops_reduction_{part}']:.1f}" if counted else "-"
        for part in ("llm", "with_selector", "total")
    ]
    kept = ">".join(map(str, entry["kept"]))
    if len(entry["kept"]) > 1:
        kept += f" @{','.join(map(str, entry['layers']))}"
    drop = paired_drop(map(int, whole["right"]), map(int, entry["right"]))[0]
    return [
        kept,
        f"{100 * row['accuracy']:.1f}",
        f"{100 * row['low']:.1f}-{100 * row['high']:.1f}",
        f"{100 * drop:.1f}",
        *saved,
        f"{entry['mean_length']:.0f}" if counted else "-",
    ]
