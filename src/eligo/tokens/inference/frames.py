"""A trace of videos as one of images, for pictures and the explorer: every frame by itself."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eligo.selection import Selection
from eligo.tokens.trace import Trace


def by_frame(trace: Trace) -> Trace:
    """Return the trace with one row per frame; tokens merged from other frames are left out."""
    if trace.frames is None or trace.grid is None:
        return trace
    frames = trace.frames.tolist()
    grids = [
        [rows // count, columns]
        for (rows, columns), count in zip(trace.grid.tolist(), frames, strict=True)
        for _ in range(count)
    ]
    remaining = [torch.arange(rows * columns) for rows, columns in trace.grid.tolist()]
    sizes = [len(tokens) // count for tokens, count in zip(remaining, frames, strict=True)]
    stages = []
    for stage in trace.stages:
        selection, parts = stage.selection.to("cpu"), []
        for video, count in enumerate(frames):
            frame = remaining[video] // sizes[video]
            parts += [_part(selection, video, frame == number) for number in range(count)]
            kept = stage.positions[video].cpu()
            remaining[video] = kept[kept >= 0]
        positions = [
            tokens[tokens // size == number] - number * size
            for tokens, size, count in zip(remaining, sizes, frames, strict=True)
            for number in range(count)
        ]
        stages.append(replace(stage, selection=_stacked(parts), positions=_padded(positions)))
    return Trace(stages, torch.tensor(grids), num_columns=trace.num_columns)


def _part(selection: Selection, video: int, own: Tensor) -> Selection:
    """Return the selection of one frame, whose candidates are `own`."""
    place = own.cumsum(0) - 1
    indices, count = selection.indices[video], len(own)
    is_own = (indices >= 0) & own[indices.clamp(0, count - 1)]
    assignment = None
    if selection.assignment is not None:
        assignment = selection.assignment[video][is_own][:, :count][:, own]
    scores = selection.scores[video, :count][own]
    mask = torch.ones(len(scores), dtype=torch.bool)
    return Selection(place[indices[is_own]], scores, mask, assignment)


def _stacked(parts: list[Selection]) -> Selection:
    indices = _padded([part.indices for part in parts])
    masks = pad_sequence([part.mask for part in parts], batch_first=True)
    scores = pad_sequence([part.scores for part in parts], batch_first=True)
    assignment = None
    if parts[0].assignment is not None:
        assignment = scores.new_zeros((*indices.shape, masks.shape[-1]))
        for row, part in enumerate(parts):
            assert part.assignment is not None
            kept, tokens = part.assignment.shape
            assignment[row, :kept, :tokens] = part.assignment
    return Selection(indices, scores, masks, assignment)


def _padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=-1)
