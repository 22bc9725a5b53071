"""A prediction as a record of the explorer: the tokens that every stage kept."""

from collections.abc import Sequence

from torch import Tensor

from eligo.explorer.record import Answer, ExplorerRecord, Grid, Stage
from eligo.selection import Selection
from eligo.tokens.cost.flops import Cost
from eligo.tokens.inference.frames import by_frame
from eligo.tokens.inference.predict import Prediction
from eligo.tokens.trace import Trace

KIND = "tokens"
_MIB = 2**20


def record(
    prediction: Prediction,
    *,
    answers: Sequence[Answer] = (),
    title: str | None = None,
    note: str = "",
) -> ExplorerRecord:
    """Return a record with a stage for each reduction (and tile or frame), over its token grid.

    `answers`: the answers to show, by default only that of the prediction.
    """
    images = prediction.images
    part = "tile" if prediction.trace.frames is None else "frame"
    names = ["image"] if len(images) == 1 else [f"{part} {n + 1}" for n in range(len(images))]
    return ExplorerRecord(
        title=title or prediction.question,
        kind=KIND,
        query=prediction.question,
        stages=trace_stages(by_frame(prediction.trace), names),
        pictures=dict(zip(names, images, strict=True)),
        answers=tuple(answers) or (Answer("pruned", prediction.answer),),
        cost=cost_lines(prediction.cost),
        note=note,
    )


def trace_stages(trace: Trace, pictures: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages of a trace in the order of their layers; `pictures`: one name per image."""
    assert trace.grid is not None
    stages = []
    for image, (picture, (rows, columns)) in enumerate(
        zip(pictures, trace.grid.tolist(), strict=True)
    ):
        remaining = list(range(rows * columns))
        for stage in trace.stages:
            kept = [place for place in stage.positions[image].tolist() if place >= 0]
            stages.append(
                Stage(
                    name=stage.name,
                    selection=_of_image(stage.selection.to("cpu"), image, len(remaining)),
                    over=Grid(picture, rows, columns),
                    layer=stage.layer,
                    candidates=None if len(remaining) == rows * columns else tuple(remaining),
                )
            )
            remaining = kept
    return tuple(sorted(stages, key=lambda stage: stage.layer or 0))  # stable: tiles stay in order


def _of_image(selection: Selection, image: int, num_candidates: int) -> Selection:
    """Return the row of one image without padding."""
    indices = selection.indices[image]
    kept = indices >= 0
    weights: Tensor | None = None
    if selection.assignment is not None:
        weights = selection.assignment[image][kept][:, :num_candidates]
    scores, mask = (part[image][:num_candidates] for part in (selection.scores, selection.mask))
    return Selection(indices[kept], scores, mask, weights)


def cost_lines(cost: Cost) -> dict[str, str]:
    """Return the cost as the explorer shows it: a label, and before > after."""
    schedule, measured = cost.schedule, cost.measured
    counts = [schedule.vision, schedule.merged, *(budget for _, budget in schedule.cuts)]
    scale, unit = (1e12, "TFLOPs") if cost.llm_full >= 1e11 else (1e9, "GFLOPs")
    lines = {
        "vision tokens": " > ".join(map(str, counts)),
        "fewer from layer": ", ".join(map(str, (0, *(layer for layer, _ in schedule.cuts)))),
        "text tokens": str(schedule.text),
        "mean tokens per layer": f"{schedule.vision + schedule.text} > {cost.mean_length:.0f}",
        "language model": f"{cost.llm_full / scale:.3g} > {cost.llm / scale:.3g} {unit}",
        "selector": f"{(cost.selector or 0.0) / scale:.3g} {unit}",
        "FLOPs saved, selector counted": f"{cost.reduction_with_selector:.1%}",
        "FLOPs saved, vision tower counted": f"{cost.reduction_total:.1%}",
        "key-value cache": f"{cost.kv_bytes_full / _MIB:.3g} > {cost.kv_bytes / _MIB:.3g} MiB",
    }
    if cost.uncounted:
        lines["not counted"] = ", ".join(cost.uncounted)
    if measured.ttft_p50_ms is not None:
        lines["time to the first token"] = f"{measured.ttft_p50_ms:.0f} ms, median"
    if measured.selector_ms is not None:
        lines["of which selector"] = f"{measured.selector_ms:.1f} ms"
    return lines
