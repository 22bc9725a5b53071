"""`python -m benchmarks.tokens.serving`: plans for serving engines (docs/serving.md).

Trains mergers for the tiny LLaVA under the constraints of engines: without a size bias, and with
positions that are numbered anew (`tokens_reindex`) or kept (`tokens_folding`). Then they answer
questions of the test split, beside the unpruned model, `tokens_default`, and training-free methods
that engines can run, under the same constraints. The run of each plan that did best on validation
questions is written to `plans/` in half precision, with its card. A second run trains only what is
missing. `--show FILE` prints the tables of a result file.
"""

import json
import math
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from accelerate import PartialState

from benchmarks.studies import print_end, study_folder
from benchmarks.tokens.study import train_all
from benchmarks.tokens.summary import Results, summarise
from eligo.cli import run_script
from eligo.cli.console import print_text
from eligo.cli.flags import Count
from eligo.config import load_config
from eligo.config.bounds import Seed
from eligo.io.files import write_text
from eligo.io.reading import read_json
from eligo.pretrained.load import CARD
from eligo.report.provenance import provenance
from eligo.tokens.config import ScenesDataConfig, TokensTrainConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import SceneExamples
from eligo.tokens.inference.evaluate import BLIND, WHOLE, answer_blindly, answer_questions
from eligo.tokens.inference.load import load_host
from eligo.tokens.methods import METHODS, VIDEO_METHODS, build
from eligo.tokens.metrics import ALL, as_bits
from eligo.tokens.plan import Plan, Stage1

PLANS: Mapping[str, Mapping[str, Any]] = {
    "tokens_reindex": {"optim.merger.lr": 1e-3},
    "tokens_folding": {"positions": "original"},
    "tokens_reindex_half": {"optim.merger.lr": 1e-3, "merger.ratio": 0.5},
}
"""Differences from `eligo tokens train serving`."""
_SHIPPED = ("tokens_reindex", "tokens_folding")
"""The others are trained with the first seed only, to compare."""
_LAYERS = 12


def configs(out: Path, seeds: Sequence[int], quick: bool) -> dict[str, list[TokensTrainConfig]]:
    """Return the trainings of every plan."""
    found = {}
    for name, changes in PLANS.items():
        config = load_config(TokensTrainConfig, "tokens/serving", dict(changes))
        if quick:
            config = config.smoke().replace({"host.random.layers": _LAYERS})
        found[name] = [
            config.replace({"train.out": out, "train.name": f"{name}_{seed}", "train.seed": seed})
            for seed in (seeds if name in _SHIPPED else seeds[:1])
        ]
    return found


def training_free(num_tokens: int) -> dict[str, Plan]:
    """Return the methods that engines can run, at a quarter of the tokens, for both positions."""
    names = [name for name in METHODS if name not in ("none", "oracle", *VIDEO_METHODS)]
    methods = {name: build(name, **METHODS[name].before) for name in names}
    usable = {
        name: method
        for name, method in methods.items()
        if "before" in method.where and set(method.needs) <= {"question"}
    }
    return {
        f"{name}, {positions}": Plan(Stage1(method, num_tokens // 4), positions=positions,
                                     size_bias=False)
        for positions in ("reindex", "original")
        for name, method in usable.items()
    }  # fmt: skip


def train_and_compare(
    out: Path, seeds: Sequence[int], workers: int, questions: int, quick: bool
) -> Path:
    """Train what is missing, answer the questions, and write results, plans and cards."""
    out = study_folder(out, quick)
    trainings = configs(out, seeds, quick)
    train_all([one for runs in trainings.values() for one in runs], workers)
    first = trainings["tokens_reindex"][0]
    device = PartialState().device
    assert device is not None
    assert isinstance(first.data, ScenesDataConfig)
    model, processor = load_host(first.host, device=str(device))
    num_tokens = HostShape.of(model).vision
    assert num_tokens is not None
    plans: dict[str, Plan] = {WHOLE: Plan()}
    if not quick:
        plans["tokens_default"] = Plan.from_pretrained("tokens_default")
    best = {}
    for name, runs in trainings.items():
        found = [read_json(one.train.folder / "trained.json")["best"] for one in runs]
        scores = [metrics[one.train.monitor] for metrics, one in zip(found, runs, strict=True)]
        best[name] = scores.index(max(scores))
        for seed, one in zip(seeds, runs, strict=False):
            plans[f"{name}#{seed}"] = Plan.load(one.train.folder)
    for name in _SHIPPED:  # in an engine of the other kind
        plan = plans[f"{name}#{seeds[best[name]]}"]
        other = "original" if plan.positions == "reindex" else "reindex"
        plans[f"{name}, run with positions: {other}"] = replace(plan, positions=other)
    plans |= training_free(num_tokens)
    side = math.isqrt(num_tokens)
    scenes = first.data.scenes
    examples = SceneExamples(scenes, "test", questions, grid=(side, side), device=device)
    answers = answer_questions(
        model, processor, examples, plans, batch_size=12 if quick else 500,
        on_progress=lambda done: print(f"{done} of {questions} questions", flush=True),
    )  # fmt: skip
    _, blind = answer_blindly(examples, 64 if quick else 4000)
    right = {name: as_bits(bits) for name, bits in answers.right.items()} | {BLIND: as_bits(blind)}
    results = Results(answers.families, right, answers.cost, {}, 50 if quick else 2000)
    document = provenance(str(device))
    document |= {
        "quick": quick,
        "seeds": list(seeds),
        "shipped": {name: seeds[number] for name, number in best.items()},
        "variants": summarise(results)["variants"],
        "ahead": _comparisons(results),
        **results.packed(),
    }
    written = write_text(out / "serving.json", json.dumps(document) + "\n")
    for name, runs in trainings.items():
        folder = out / "plans" / name
        Plan.load(runs[best[name]].train.folder).save_pretrained(folder, dtype=torch.float16)
        write_text(folder / CARD, card(name, document))
    with tarfile.open(out / "plans.tar.gz", "w:gz") as archive:
        archive.add(out / "plans", arcname=".")
    print_text(tables(document))
    return written


def _comparisons(results: Results) -> list[dict[str, Any]]:
    """Compare each plan with the training-free methods under its own positions."""
    found = []
    for name, changes in PLANS.items():
        ending = f", {changes.get('positions', 'reindex')}"
        for other in results.variants:
            if other.endswith(ending) and other.removesuffix(ending) in METHODS:
                mean, low, high = results.difference(name, other)
                found.append({"plan": name, "baseline": other, "ahead": [mean, low, high]})
    return found


def tables(document: Mapping[str, Any]) -> str:
    """Return the table of the page as Markdown, best first."""
    families = [name for name in document["variants"][0]["accuracy"] if name != ALL]
    lines = [["Plan", "Tokens", "All", "Lost (95 %)", *families]]
    lines.append(["---"] * len(lines[0]))
    for row in sorted(document["variants"], key=lambda row: -row["accuracy"][ALL]):
        shares = [f"{row['accuracy'][name]:.1f}" for name in families]
        lost = f"{row['drop']:.1f} ({row['drop_low']:.1f} to {row['drop_high']:.1f})"
        kept = " > ".join(map(str, row.get("kept", [])))
        lines.append([row["variant"], kept, f"{row['accuracy'][ALL]:.1f}", lost, *shares])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _trainings(count: int) -> str:
    return "one training" if count == 1 else f"mean of {count} trainings"


def card(name: str, document: Mapping[str, Any]) -> str:
    """Return the card of a plan, with the figures of a result file."""
    rows = {row["variant"]: row for row in document["variants"]}
    row, positions = rows[name], PLANS[name].get("positions", "reindex")
    kept, seed = row.get("kept", [0])[0], document["shipped"][name]
    own = Results.unpacked({**document, "config": {"resamples": 50}}).accuracies_of(
        f"{name}#{seed}"
    )
    compared = [one for one in document["ahead"] if one["plan"] == name]
    closest = min(compared, key=lambda one: one["ahead"][0])
    baseline = closest["baseline"].partition(",")[0]
    ahead, low, high = closest["ahead"]
    count = len(document["answers"]["families"]["codes"])
    if positions == "reindex":
        title = f"numbered anew, for serving engines: 576 vision tokens > {kept}"
        usage = "engines with one-dimensional positions (vLLM with image embeddings, SGLang)"
    else:
        title = f"at their own positions, without a size bias: 576 vision tokens > {kept}"
        usage = "engines that receive positions with the features"
    about = (
        f"A `TokenMerger` (it does not read the question, width 64) for `vlm`: {kept} tokens "
        f"before the language model, `positions: {positions}`, `size_bias: false`, no cuts."
    )
    fields = {
        "For": f"{usage}; `eligo tokens export --plan {name}` writes it (`docs/serving.md`).",
        "Data": "questions about generated scenes of `eligo.scenes`; no photos. Eight colour-shape "
        "pairs never occur in training. Validation questions chose the step and the training.",
        "Scores": f"{own[ALL]:.1f} % of {count:,} test questions, where all tokens reach "
        f"{rows[WHOLE]['accuracy'][ALL]:.1f} % ({row['drop']:.1f} points lost, 95 % interval "
        f"{row['drop_low']:.1f} to {row['drop_high']:.1f}, {_trainings(row['runs'])}). The "
        f"closest training-free method with as many tokens and the same positions is {baseline}: "
        f"the lead over it is {ahead:.1f} points ({low:.1f} to {high:.1f}). The blind baseline "
        f"reaches {rows[BLIND]['accuracy'][ALL]:.1f} %. By `python -m benchmarks.tokens.serving`, "
        f"{document['date']}; all results are in `docs/serving.md`.",
        "Size": "0.1 MB, half precision.",
        "Limits": f"it fits this model and these scenes only, run with `positions: {positions}`. "
        "For another model, train a plan with `eligo tokens train serving`.",
        "License": "Apache-2.0, as all of eligo.",
    }
    made = (
        f"**Made** on {document['date']} by `python -m benchmarks.tokens.serving`; the command "
        f"below is the training alone. **Hardware**: {document['hardware']}, a minute."
    )
    flags = "".join(f" --{key} {value}" for key, value in PLANS[name].items())
    lines = [f"- **{field}**: {text}" for field, text in fields.items()]
    listed = "\n".join(fill(line, 100, subsequent_indent="  ") for line in lines)
    command = f"```sh\neligo tokens train serving --train.seed {seed}{flags}\n```\n"
    return "\n\n".join(
        [f"# Merged tokens {title}", fill(about, 100), listed, fill(made, 100), command]
    )


def run(
    *,
    seeds: tuple[Seed, ...] = (0, 1),
    workers: Count = 3,
    questions: Count = 4000,
    out: Path = Path("runs/tokens_serving_study"),
    quick: bool = False,
    show: Path | None = None,
) -> None:
    """Train the plans, compare them, and write them with their cards.

    Args:
        seeds: A shipped plan is the best of these trainings.
        workers: Trainings at a time, each in its own process.
        questions: Questions of the test split.
        out: The folder to write to; finished trainings in it are not repeated.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        show: Only print the tables of this result file.
    """
    if show is not None:
        print_text(tables(read_json(show)))
        return
    workers, questions = (1, 24) if quick else (workers, questions)
    print_end(quick, train_and_compare(out, seeds, workers, questions, quick))


if __name__ == "__main__":
    raise SystemExit(run_script(run))
