"""A record as one JSON value with pictures inside, as the page reads it.

Numbers are rounded. Of an assignment, the page needs only the kept candidate that each candidate
went to most, and the share of its weight; a dense matrix of 576 x 192 would dominate the page.
"""

from base64 import b64encode
from io import BytesIO
from math import isfinite
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from eligo.explorer.record import ExplorerRecord, Grid, Stage
from eligo.selection import Selection

_DIGITS = 4  # significant: the weights of an attention map are small
_QUALITY = 90
_SIDE = 1024  # pixels; the page shows no more


def inline(record: ExplorerRecord) -> dict[str, Any]:
    """Return the record with pictures as data URLs and selections as lists."""
    return {
        "title": record.title,
        "kind": record.kind,
        "query": record.query,
        "pictures": {name: _data_url(image) for name, image in record.pictures.items()},
        "legends": {name: [vars(key) for key in keys] for name, keys in record.legends.items()},
        "stages": [_stage(stage) for stage in record.stages],
        "answers": [vars(answer) for answer in record.answers],
        "cost": dict(record.cost),
        "note": record.note,
    }


def _stage(stage: Stage) -> dict[str, Any]:
    over: dict[str, Any] = (
        {"grid": vars(stage.over)}
        if isinstance(stage.over, Grid)
        else {"items": [vars(item) for item in stage.over]}
    )
    chosen = stage.selection.to("cpu")
    rows = [chosen] if not stage.rows else [_row(chosen, at) for at in range(len(stage.rows))]
    return {
        "name": stage.name,
        "layer": stage.layer,
        "note": stage.note,
        **over,
        "candidates": None if stage.candidates is None else list(stage.candidates),
        "rows": list(stage.rows) or [""],
        "chosen": [_choice(row) for row in rows],
    }


def _row(selection: Selection, at: int) -> Selection:
    parts = (selection.indices[at], selection.scores[at], selection.mask[at])
    assignment = selection.assignment
    return Selection(*parts, None if assignment is None else assignment[at])


def _choice(selection: Selection) -> dict[str, Any]:
    """Return one row: kept candidates in order of choice, scores, and assignments.

    A score is None for a masked candidate or an infinite score; `absent` lists masked candidates.
    """
    kept = [place for place in selection.indices.tolist() if place >= 0]
    real = selection.mask.tolist()
    scores = [
        float(f"{score:.{_DIGITS}g}") if is_real and isfinite(score) else None
        for score, is_real in zip(selection.scores.tolist(), real, strict=True)
    ]
    absent = [place for place, is_real in enumerate(real) if not is_real]
    return {"kept": kept, "scores": scores, "absent": absent, **_folded(selection)}


def _folded(selection: Selection) -> dict[str, Any]:
    """Return for every candidate the kept one that took most of it, and the share."""
    if selection.assignment is None or not len(selection.indices):
        return {"into": None, "share": None}
    weights: Tensor = selection.assignment.float()  # (kept, candidates)
    total = weights.sum(0)
    best = weights.max(0)
    into = torch.where(total > 0, selection.indices[best.indices].long(), -1)
    share = best.values / total.clamp_min(torch.finfo(torch.float32).tiny)
    return {
        "into": into.tolist(),
        "share": [round(value, 2) for value in share.tolist()],
    }


def _data_url(image: Image.Image) -> str:
    """Encode as PNG or JPEG, whichever is smaller.

    Flat colours (labels, depth) are smaller as PNG and stay exact; photos are smaller as JPEG.
    """
    picture = image.convert("RGB")
    picture.thumbnail((_SIDE, _SIDE))
    encoded = {}
    for kind, options in (("png", {}), ("jpeg", {"quality": _QUALITY})):
        buffer = BytesIO()
        picture.save(buffer, kind, **options)
        encoded[kind] = buffer.getvalue()
    kind = min(encoded, key=lambda kind: len(encoded[kind]))
    return f"data:image/{kind};base64,{b64encode(encoded[kind]).decode()}"
