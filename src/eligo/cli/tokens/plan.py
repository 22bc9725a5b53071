"""`eligo tokens plan`: how many vision tokens to keep at which layers, to reach a target."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal

from rich.table import Table

from eligo.cli.console import compact_table, messages, print_result, results
from eligo.cli.flags import Count, Share
from eligo.errors import InputError
from eligo.tokens.cost.flops import Cost, Schedule, count_cost
from eligo.tokens.cost.proposals import Proposal, propose
from eligo.tokens.cost.shapes import LLAVA_7B, HostShape


def run(
    target: Share = 0.6,
    text: Count | None = None,
    vision: Count | None = None,
    layers: Count | None = None,
    model: Path | None = None,
    image: Path | None = None,
    questions: Path | None = None,
    merge: Count | None = None,
    cuts: tuple[Count, ...] = (),
    budgets: tuple[Count, ...] = (),
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16",
    json: bool = False,
) -> None:
    """Propose schedules that save a share of the language model's prefill, with their cost.

    Without --model, for LLaVA-1.5-7B. With --merge, or --cuts and --budgets, the cost of that
    schedule is computed instead. Nothing is run.

    Args:
        target: Share of the language model's FLOPs to save.
        text: Text tokens of a prompt; by default 100, or the median of --questions.
        vision: Vision tokens of an image; by default those of the host.
        layers: Layers of the language model, if other than the host's.
        model: Folder of a model; its config.json gives all sizes.
        image: An image whose vision tokens are counted (needs --model, for its processor).
        questions: JSON lines with image, question, answers, to take the median text length from
            (needs --model, for its tokenizer).
        merge: Vision tokens that enter the language model.
        cuts: Layers at whose input tokens are dropped.
        budgets: Vision tokens that each cut keeps.
        dtype: Data type of the key-value cache.
        json: Print one JSON document.
    """
    host = LLAVA_7B if model is None else HostShape.load(model)
    if layers is not None:
        host = replace(host, num_layers=layers)
    num_tokens = vision or host.vision
    if image is not None:
        if vision is not None or model is None:
            raise InputError("--image: expected with --model, and instead of --vision")
        num_tokens = _count_vision(image, model)
    if num_tokens is None:
        raise InputError(
            f"--image: needed, as a {host.name} takes images of any size (or --vision)"
        )
    length = _text_length(text, questions, model)
    if merge is not None or cuts or budgets:
        if len(cuts) != len(budgets):
            raise InputError(f"got {len(cuts)} --cuts and {len(budgets)} --budgets, expected pairs")
        pairs = tuple(zip(cuts, budgets, strict=True))
        given = Schedule(num_tokens, merge or num_tokens, pairs, length, host.num_layers)
        proposals = [Proposal("given", count_cost(host, given, dtype=dtype))]
    else:
        proposals = [
            replace(proposal, cost=count_cost(host, proposal.schedule, dtype=dtype))
            for proposal in propose(host, num_tokens, length, target)
        ]
    best = proposals[0]
    notes = best.cost.warnings(target)
    if image is not None and (unit := _unit_note(host, num_tokens)):
        notes.append(unit)
    if json:
        plain = [{"name": proposal.name, **proposal.cost.as_plain()} for proposal in proposals]
        print_result({"target": target, "proposals": plain, "warnings": notes}, json=True)
        return
    if len(proposals) > 1:
        results().print(_table(proposals, target, host))
    results().print(f"{best.name}:\n{best.cost.block()}", highlight=False, soft_wrap=True)
    for note in notes:
        messages().print(f"[bold yellow]warning:[/] {note}", soft_wrap=True)


def _text_length(text: int | None, questions: Path | None, model: Path | None) -> int:
    if questions is None:
        return 100 if text is None else text
    if text is not None or model is None:
        raise InputError("--questions: expected with --model, and instead of --text")
    from transformers import AutoProcessor

    from eligo.pretrained.load import load_part
    from eligo.tokens.data.prompts import text_lengths
    from eligo.vqa import read_vqa_lines

    processor = load_part(AutoProcessor, str(model))
    texts = [example.question for example in read_vqa_lines(questions)]
    return round(median(text_lengths(processor, texts)))


def _count_vision(image: Path, model: Path) -> int:
    """Return the vision tokens of an image file, by the processor of a model."""
    from eligo.images import open_image
    from eligo.pretrained.hosts import load_processor
    from eligo.tokens.data.prompts import build_prompt, encode, image_token_id

    picture = open_image(image)
    processor = load_processor(str(model), needs_images=True)
    inputs = encode(processor, [picture], [build_prompt(processor, "what is it?")])
    return int((inputs["input_ids"] == image_token_id(processor)).sum())


def _unit_note(host: HostShape, num_tokens: int) -> str | None:
    """Return how to convert tokens of a whole image to budgets, if they are not the same."""
    from eligo.tokens.hosts import budget_unit

    unit = budget_unit(host.name)
    if unit == "image" or num_tokens == host.vision:
        return None
    note = f"these are tokens of the whole image; budgets of plans are per {unit}"
    if host.vision is None:
        return note
    count = num_tokens // host.vision
    return f"{note}, of which it has {count} with {host.vision} tokens each: divide by {count}"


def _table(proposals: list[Proposal], target: float, host: HostShape) -> Table:
    table = compact_table(
        f"to save {target:.0%} of a language model with {host.num_layers} layers ({host.name})",
        "length, kept: tokens and share of the vision tokens, mean over layers · saved: FLOPs of "
        "the language model · total: with tower and projector, without selectors · MiB: key-value "
        "cache",
        ("schedule", "vision tokens", "cuts at"),
        ("length", "kept", "saved", "total", "MiB"),
    )
    for proposal in proposals:
        table.add_row(
            proposal.name,
            *_cells(proposal.cost),
            style="" if proposal.cost.reduction_llm >= target else "dim",
        )
    return table


def _cells(cost: Cost) -> list[str]:
    tokens, _, layers = cost.parts()[0].removeprefix("vision ").partition(" @ 0")
    return [
        tokens,
        layers.removeprefix(","),
        f"{cost.mean_length:.0f}",
        f"{cost.vision_keep_mean:.0%}",
        f"{cost.reduction_llm:.1%}",
        f"{cost.reduction_total:.1%}",
        f"{cost.kv_bytes / 2**20:.3g}",
    ]
