"""Auxiliary heads for training the tiny LLaVA, with exact targets from the scenes.

Patches (of layer -2, the input of the language model) predict attributes and position of their
object; [CLS] predicts which colour-shape pairs are in the image, so that methods which rank patches
by its attention have a fair chance. In the middle of the language model, the last word of every
phrase predicts how many objects match the phrase and, if it is one, its attributes and position:
with answers alone, relations between two objects were still at chance after 3,000 steps.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn

from eligo.scenes import words
from eligo.scenes.config import GRID
from eligo.scenes.graph import UNIT, SceneGraph
from eligo.scenes.painter import Rendered
from eligo.scenes.phrases import VOCABULARY, matches
from eligo.scenes.question_kinds import Questions
from eligo.scenes.words import COLOUR, SHAPE

_SIZES = (*(len(values) for values in words.VALUES), GRID, GRID)  # attributes, column, row
_MIN_SHARE = 0.1  # a patch belongs to the object that covers most of it, and at least this much
_PAIRS = len(words.COLOURS) * len(words.SHAPES)
_MOST_MATCHES = 4


@dataclass(frozen=True)
class PatchTargets:
    """The targets of every patch, and which colour-shape pairs are in the image."""

    owned: Bool[Tensor, "scenes patches"]
    values: Int64[Tensor, "scenes patches 6"]
    """Size, colour, texture, shape, column, row of the patch's object."""
    place: Float32[Tensor, "scenes patches 2"]
    """Centre of the patch's object, -1 to 1."""
    centre: Bool[Tensor, "scenes patches"]
    """Whether an object's centre lies in the patch: one such patch per object."""
    pairs: Bool[Tensor, "scenes pairs"]


def patch_targets(rendered: Rendered, patch_size: int) -> PatchTargets:
    """Compute the targets from the graph and the instance map."""
    graph = rendered.graph
    slots = graph.config.max_objects
    rows, columns = (size // patch_size for size in rendered.instances.shape[1:])
    area = patch_size * patch_size
    tiles = rendered.instances.unfold(1, patch_size, patch_size).unfold(2, patch_size, patch_size)
    tiles = tiles.flatten(3).flatten(1, 2)  # (scenes, patches, pixels)
    share = torch.stack([(tiles == slot + 1).sum(-1) for slot in range(slots)], -1) / area
    most = share.max(-1)
    owner, askable = most.indices, graph.askable[:, :slots]

    x, y, attributes = (values[:, :slots] for values in (graph.x, graph.y, graph.attributes))
    described, place = _described(graph)

    def of_owner(values: Tensor) -> Tensor:
        return values.gather(1, owner[..., None].expand(-1, -1, values.shape[-1]))

    centre = torch.zeros(len(graph), rows * columns, dtype=torch.bool, device=graph.device)
    centre_patch = (y * rows // UNIT) * columns + x * columns // UNIT
    centre.scatter_(1, torch.where(askable, centre_patch, centre_patch[:, :1]), True)
    pair = attributes[..., COLOUR] * len(words.SHAPES) + attributes[..., SHAPE]
    pairs = (F.one_hot(pair, _PAIRS).bool() & askable[..., None]).any(1)
    return PatchTargets(
        owned=most.values >= _MIN_SHARE,
        values=of_owner(described),
        place=of_owner(place),
        centre=centre,
        pairs=pairs,
    )


def _described(
    graph: SceneGraph,
) -> tuple[Int64[Tensor, "scenes slots 6"], Float32[Tensor, "scenes slots 2"]]:
    """Size, colour, texture, shape, column, row of every object; and its centre, -1 to 1."""
    slots = graph.config.max_objects  # objects come first
    places = torch.stack([graph.x, graph.y], -1)[:, :slots]
    values = torch.cat([graph.attributes[:, :slots], places * GRID // UNIT], -1)
    return values, places.float() * 2 / UNIT - 1


def _object_losses(
    read: Float[Tensor, "*batch outputs"],
    values: Int64[Tensor, "*batch 6"],
    place: Float32[Tensor, "*batch 2"],
    share: Float32[Tensor, "*batch"],
) -> dict[str, Float32[Tensor, ""]]:
    """Return the losses of a read-out (logits of six values, then x and y) of an object."""
    *logits, centre = read.float().split((*_SIZES, 2), -1)
    loss = sum(
        F.cross_entropy(scores.flatten(0, -2), value.flatten(), reduction="none")
        for scores, value in zip(logits, values.unbind(-1), strict=True)
    )
    right = (logits[SHAPE].argmax(-1) == values[..., SHAPE]).float()
    return {
        "attributes": (loss / len(_SIZES) * share.flatten()).sum(),
        "place": ((centre - place).abs().mean(-1) * share).sum(),
        "accuracy_shape": (right * share).sum().detach(),
    }


def _share(mask: Bool[Tensor, "*batch"]) -> Float32[Tensor, "*batch"]:
    """Return weights that make a sum a mean over the mask."""
    return mask.float() / mask.sum().clamp(min=1)


class VisionHeads(nn.Module):
    """Linear read-outs of patch features and [CLS]; used in training only, never shipped."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Linear(width, sum(_SIZES) + 2 + 2)  # values, place, owned and centre
        self.image = nn.Linear(width, _PAIRS)

    def losses(
        self,
        patches: Float[Tensor, "scenes patches width"],
        cls: Float[Tensor, "scenes width"],
        targets: PatchTargets,
    ) -> dict[str, Float32[Tensor, ""]]:
        """Mean losses, and accuracies as `accuracy_*`."""
        read, flags = self.patch(patches).split((sum(_SIZES) + 2, 2), -1)
        share = _share(targets.owned)
        results = _object_losses(read, targets.values, targets.place, share)
        labels = torch.stack([targets.owned, targets.centre], -1).float()
        rare = torch.tensor([3.0, 20.0], device=patches.device)
        results["flags"] = F.binary_cross_entropy_with_logits(
            flags.float(), labels, pos_weight=rare
        )
        pairs = self.image(cls).float()
        results["pairs"] = F.binary_cross_entropy_with_logits(
            pairs, targets.pairs.float(), pos_weight=torch.tensor(8.0, device=pairs.device)
        )
        return results


@cache
def _is_noun(device: torch.device) -> Bool[Tensor, " words"]:
    nouns = {*words.SHAPES, *words.PLURALS, "thing", "things"}
    return torch.tensor([word in nouns for word in VOCABULARY], device=device)


class PhraseHeads(nn.Module):
    """Predicts, at the last word of a phrase, the objects that match it; used in training only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, sum(_SIZES) + 2 + _MOST_MATCHES + 1)

    def losses(
        self,
        states: Float[Tensor, "scenes questions length width"],
        questions: Questions,
        graph: SceneGraph,
    ) -> dict[str, Float32[Tensor, ""]]:
        """Mean losses over phrases, and accuracies as `accuracy_*`."""
        noun = _is_noun(states.device)[questions.words.clamp(min=0)] & (questions.words >= 0)
        noun = noun[..., : states.shape[2]]
        last = noun.shape[-1] - 1 - noun.flip(-1).to(torch.uint8).argmax(-1)
        where = torch.stack([noun.to(torch.uint8).argmax(-1), last], -1)  # (scenes, questions, 2)
        phrase = torch.stack([questions.first, questions.second], 2)
        is_phrase = noun.sum(-1)[..., None] > torch.arange(2, device=noun.device)
        is_phrase = is_phrase & questions.valid[..., None]
        matching = matches(phrase, graph)[..., : graph.config.max_objects]
        count = matching.sum(-1)

        index = where[..., None].expand(-1, -1, -1, states.shape[-1])
        read = self.read(self.norm(states.gather(2, index).float()))
        read, counts = read.split((sum(_SIZES) + 2, _MOST_MATCHES + 1), -1)
        values, place = _described(graph)
        which = matching.to(torch.uint8).argmax(-1).flatten(1)[..., None]  # (scenes, places, 1)
        results = _object_losses(
            read,
            values.gather(1, which.expand(-1, -1, 6)).view(*count.shape, 6),
            place.gather(1, which.expand(-1, -1, 2)).view(*count.shape, 2),
            _share(is_phrase & (count == 1)),
        )
        labels = count.clamp(max=_MOST_MATCHES).flatten()
        number = F.cross_entropy(counts.float().flatten(0, -2), labels, reduction="none")
        results["number"] = (number * _share(is_phrase).flatten()).sum()
        return {f"{name}_of_phrase": value for name, value in results.items()}
