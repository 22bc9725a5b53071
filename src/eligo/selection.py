"""Selection: what every selector returns, and all that the explorer and the reports read.

Score candidates, keep an exact budget, fold or drop the rest: the result in one immutable value,
with any leading batch shape. Shapes and dtypes are checked on construction, always. Values are
checked on construction where looking at them is free (eager tensors on the CPU); on a GPU or under
`torch.compile` a look would stall the very path that selection is meant to speed up, so there
`.check()` does it on request, and `.to("cpu")` and `.load` do it in passing. For the same reason
`padded=False`, where there is one, lets a caller say that every candidate is real and no row short.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int, Shaped
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.io.tensors import save_tensors
from eligo.ops._checks import values_are_free

_FORMAT = "eligo.selection.v1"


@dataclass(frozen=True, eq=False)
class Selection:
    """Candidates kept per row, what they were ranked by, and what was folded into them.

    >>> selection = Selection.top_k(torch.tensor([[0.1, 0.9, 0.5]]), 2)
    >>> selection.indices, selection.num_kept
    (tensor([[1, 2]]), tensor([2]))
    """

    indices: Int[Tensor, "*batch kept"]
    """Kept candidates in order of choice; -1 pads the end of a row that could keep fewer."""
    scores: Float[Tensor, "*batch candidates"]
    """What they were ranked by (the first step's, for step-wise selectors); float32."""
    mask: Bool[Tensor, "*batch candidates"]
    """Which candidates were real."""
    assignment: Float[Tensor, "*batch kept candidates"] | None = None
    """Unnormalised weights with which candidates were folded into kept ones; None: none were."""

    def __post_init__(self) -> None:
        self._check_shapes()
        if values_are_free(*self._tensors().values()):
            self.check()

    @classmethod
    def top_k(
        cls,
        scores: Float[Tensor, "*batch candidates"],
        k: int | Int[Tensor, "*batch"],
        mask: Bool[Tensor, "*batch candidates"] | None = None,
    ) -> "Selection":
        """The k best real candidates of every row, best first, ties to the lowest index."""
        if mask is None:
            mask = torch.ones_like(scores, dtype=torch.bool)
        return cls(ops.top_k(scores, k, mask), scores.float(), mask)

    @property
    def num_kept(self) -> Int[Tensor, "*batch"]:
        """How many candidates each row kept: its budget, or fewer if it had fewer."""
        return (self.indices >= 0).sum(-1)

    @property
    def kept_mask(self) -> Bool[Tensor, "*batch candidates"]:
        """True for the candidates that were kept."""
        return ops.kept_mask(self.indices, self.scores.shape[-1])

    @property
    def sizes(self) -> Float[Tensor, "*batch kept"]:
        """Row sums of the assignment: how much each kept candidate stands for; 0 for padding."""
        if self.assignment is None:
            return (self.indices >= 0).float()
        return self.assignment.float().sum(-1)

    def gather(
        self, values: Shaped[Tensor, "..."], *, padded: bool = True
    ) -> Shaped[Tensor, "..."]:
        """`*batch candidates *features` -> `*batch kept *features`: the kept values, 0 for -1."""
        self._check_values(values, self.scores.shape)
        return ops.gather(values, self.indices, padded=padded)

    def fold(self, values: Float[Tensor, "..."], *, padded: bool = True) -> Float[Tensor, "..."]:
        """`*batch candidates *features` -> `*batch kept *features`: means weighted by assignment.

        `y_j = sum_i A_ji x_i / size_j`; a pure selection folds nothing and gathers.
        """
        if self.assignment is None:
            return self.gather(values, padded=padded)
        self._check_values(values, self.scores.shape)
        mask = self.mask if padded else None
        folded = ops.fold(self._flat(values), self.assignment, mask)
        return folded.reshape(*self.indices.shape, *values.shape[self.mask.ndim :])

    def unfold(self, values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """`*batch kept *features` -> `*batch candidates *features`: the way back from `fold`.

        Each candidate gets the value it was folded into (the mean by its weights, if several);
        candidates that went nowhere get 0.
        """
        self._check_values(values, self.indices.shape)
        if self.assignment is None:
            return ops.gather(values, self._columns())
        flat = self._flat(values).masked_fill((self.indices < 0).unsqueeze(-1), 0.0)
        unfolded = ops.unfold(flat, self.assignment)
        return unfolded.reshape(*self.scores.shape, *values.shape[self.mask.ndim :])

    def in_order(self, *, padded: bool = True) -> "Selection":
        """The same selection sorted by index (raster order); padding stays at the end."""
        last = self.scores.shape[-1]
        keys = torch.where(self.indices < 0, last, self.indices) if padded else self.indices
        indices, order = keys.sort(dim=-1, stable=True)
        if padded:
            indices = self.indices.gather(-1, order)
        assignment = self.assignment
        if assignment is not None:
            assignment = ops.gather(assignment, order, padded=False)
        return Selection(indices, self.scores, self.mask, assignment)

    def to(self, device: torch.device | str) -> "Selection":
        """The same selection on another device."""
        return Selection(**{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as safetensors; a reader never sees half a file."""
        save_tensors(Path(path), self._tensors(), {"format": _FORMAT}, make_folder=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Selection":
        """Read what `save` wrote, onto the CPU, and check it."""
        try:
            with safe_open(path, framework="pt") as file:
                found = (file.metadata() or {}).get("format")
                if found != _FORMAT:
                    raise InputError(
                        f"{path}: got format {found!r}, expected {_FORMAT!r}; this file was not "
                        "written by Selection.save of this version of eligo"
                    )
                return cls(**{name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except FileNotFoundError as error:
            raise InputError(
                f"{path}: there is no such file; expected a saved Selection"
            ) from error
        except (SafetensorError, OSError, TypeError) as error:
            raise InputError(
                f"{path}: cannot be read as a saved Selection ({error}); write it again with "
                "Selection.save"
            ) from error

    def check(self) -> None:
        """Raise InputError if the values break a promise of this class (syncs on CUDA)."""
        indices, last = self.indices, self.scores.shape[-1]
        real = indices >= 0
        _require((indices >= -1) & (indices < last), indices, f"an index in [-1, {last})")
        _require(~(real[..., 1:] & ~real[..., :-1]), indices, "-1 only at the end of a row")
        ordered = indices.sort(-1).values
        repeats = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
        _require(~repeats, indices, "no candidate twice in a row")
        kept_is_real = ops.gather(self.mask, indices) | ~real
        _require(kept_is_real, indices, "kept candidates that are real under the mask")
        _require(~(self.scores.isnan() & self.mask), self.scores, "no NaN among real candidates")
        if self.assignment is not None:
            weights = self.assignment.detach()
            _require(weights.isfinite() & (weights >= 0), weights, "finite weights >= 0")
            if not bool(real.all() & self.mask.all()):
                usable = real.unsqueeze(-1) & self.mask.unsqueeze(-2)
                _require(usable | (weights == 0), weights, "weight 0 in padding, of either side")
            _require(~real | (weights.sum(-1) > 0), weights, "a positive size for all that is kept")

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"indices": self.indices, "scores": self.scores, "mask": self.mask}
        return tensors if self.assignment is None else {**tensors, "assignment": self.assignment}

    def _columns(self) -> Tensor:
        """For each candidate, its column in `indices`; -1 if it was not kept."""
        last = self.scores.shape[-1]
        slots = torch.where(self.indices < 0, last, self.indices).long()
        columns = torch.arange(slots.shape[-1], device=slots.device).expand(slots.shape)
        # One slot more, which takes the padding and is cut off.
        spare = slots.new_full((*slots.shape[:-1], last + 1), -1)
        return spare.scatter(-1, slots, columns)[..., :last]

    def _flat(self, values: Tensor) -> Tensor:
        """All feature axes (or none) as one."""
        batch = self.mask.ndim
        return values.unsqueeze(-1) if values.ndim == batch else values.flatten(batch)

    def _check_shapes(self) -> None:
        kept = tuple(self.indices.shape)
        wanted = {
            "indices": ((torch.int64, torch.int32), (*self.scores.shape[:-1], *kept[-1:])),
            "scores": ((torch.float32,), tuple(self.scores.shape)),
            "mask": ((torch.bool,), tuple(self.scores.shape)),
            "assignment": (
                (torch.float32, torch.bfloat16, torch.float16, torch.float64),
                (*kept, *self.scores.shape[-1:]),
            ),
        }
        for name, tensor in self._tensors().items():
            dtypes, shape = wanted[name]
            if tensor.dtype not in dtypes or tensor.shape != shape or tensor.ndim == 0:
                raise InputError(
                    f"Selection: got {name} {tensor.dtype} {tuple(tensor.shape)}, expected "
                    f"{dtypes[0]} {shape}: indices are `*batch kept`, scores and mask `*batch "
                    "candidates`, assignment `*batch kept candidates`"
                )

    def _check_values(self, values: Tensor, shape: torch.Size) -> None:
        if values.shape[: len(shape)] != shape:
            raise InputError(
                f"Selection: got values of shape {tuple(values.shape)}, expected them to begin "
                f"with {tuple(shape)}; expand or slice them to the rows that were selected from"
            )


def _require(holds: Tensor, got: Tensor, expected: str) -> None:
    if not bool(holds.all()):
        where = (~holds).nonzero()[0].tolist()
        row = got[tuple(where[: got.ndim - 1])]
        raise InputError(
            f"Selection: got row {row.tolist()} (first at {where}), expected {expected}"
        )
