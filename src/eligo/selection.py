"""Selection: the result of every selector, read by the explorer and the reports.

Shapes and dtypes are always checked on construction, values only for eager tensors on the CPU: on
a GPU or under `torch.compile` that would cost a device sync or a graph break. There, `.check()`,
`.to("cpu")` and `.load` check values. `padded=False` promises that every candidate is real and
every row full, which saves a few kernels.
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
from eligo.ops.masked import full_mask

_FORMAT = "eligo.selection.v1"


@dataclass(frozen=True, eq=False)
class Selection:
    """Kept candidates per row, their scores, and merge weights; any batch shape.

    >>> selection = Selection.top_k(torch.tensor([[0.1, 0.9, 0.5]]), 2)
    >>> selection.indices, selection.num_kept
    (tensor([[1, 2]]), tensor([2]))
    """

    indices: Int[Tensor, "*batch kept"]
    """Kept candidates in order of choice; -1 pads the end of a short row."""
    scores: Float[Tensor, "*batch candidates"]
    """Scores of all candidates (of the first step, for step-wise selectors); float32."""
    mask: Bool[Tensor, "*batch candidates"]
    """Which candidates were real."""
    assignment: Float[Tensor, "*batch kept candidates"] | None = None
    """Unnormalised weights of the candidates merged into each kept one; None without merging."""

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
        """Select the k best real candidates of every row, best first, ties to the lowest index."""
        mask = full_mask(scores, mask)
        return cls(ops.top_k(scores, k, mask), scores.float(), mask)

    @property
    def num_kept(self) -> Int[Tensor, "*batch"]:
        """Number of kept candidates per row."""
        return (self.indices >= 0).sum(-1)

    @property
    def kept_mask(self) -> Bool[Tensor, "*batch candidates"]:
        """True for the candidates that were kept."""
        return ops.kept_mask(self.indices, self.scores.shape[-1])

    @property
    def sizes(self) -> Float[Tensor, "*batch kept"]:
        """Row sums of the assignment: the weight of each kept candidate; 0 for padding."""
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

        `y_j = sum_i A_ji x_i / size_j`; without an assignment, `gather`.
        """
        if self.assignment is None:
            return self.gather(values, padded=padded)
        self._check_values(values, self.scores.shape)
        mask = self.mask if padded else None
        folded = ops.fold(self._flat(values), self.assignment, mask)
        return folded.reshape(*self.indices.shape, *values.shape[self.mask.ndim :])

    def unfold(self, values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """`*batch kept *features` -> `*batch candidates *features`: the inverse of `fold`.

        Each candidate gets the weighted mean of the values it was merged into; dropped ones get 0.
        """
        self._check_values(values, self.indices.shape)
        if self.assignment is None:
            return ops.gather(values, self._columns())
        flat = self._flat(values).masked_fill((self.indices < 0).unsqueeze(-1), 0.0)
        unfolded = ops.unfold(flat, self.assignment)
        return unfolded.reshape(*self.scores.shape, *values.shape[self.mask.ndim :])

    def in_order(self, *, padded: bool = True) -> "Selection":
        """Return the selection sorted by index (raster order); padding stays at the end."""
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
        """Return the selection on another device."""
        return Selection(**{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a safetensors file."""
        save_tensors(Path(path), self._tensors(), {"format": _FORMAT}, make_folder=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Selection":
        """Read what `save` wrote, to the CPU, and check it."""
        try:
            with safe_open(path, framework="pt") as file:
                stored = (file.metadata() or {}).get("format")
                if stored != _FORMAT:
                    raise InputError(
                        f"{path}: got format {stored!r}, expected {_FORMAT!r}; this file was not "
                        "written by Selection.save of this version of eligo"
                    )
                return cls(**{name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except FileNotFoundError as error:
            raise InputError(f"{path}: no such file; expected a saved Selection") from error
        except (SafetensorError, OSError, TypeError) as error:
            raise InputError(
                f"{path}: cannot be read as a saved Selection ({error}); write it again with "
                "Selection.save"
            ) from error

    def check(self) -> None:
        """Raise InputError if a value is invalid (waits for the device)."""
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
                _require(usable | (weights == 0), weights, "weight 0 in padding")
            _require(~real | (weights.sum(-1) > 0), weights, "a positive size of kept candidates")

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"indices": self.indices, "scores": self.scores, "mask": self.mask}
        return tensors if self.assignment is None else {**tensors, "assignment": self.assignment}

    def _columns(self) -> Tensor:
        """Return each candidate's column in `indices`; -1 if it was not kept."""
        last = self.scores.shape[-1]
        slots = torch.where(self.indices < 0, last, self.indices).long()
        columns = torch.arange(slots.shape[-1], device=slots.device).expand(slots.shape)
        # A spare last slot takes the padding.
        spare = slots.new_full((*slots.shape[:-1], last + 1), -1)
        return spare.scatter(-1, slots, columns)[..., :last]

    def _flat(self, values: Tensor) -> Tensor:
        """Flatten all feature axes into one."""
        batch = self.mask.ndim
        return values.unsqueeze(-1) if values.ndim == batch else values.flatten(batch)

    def _check_shapes(self) -> None:
        kept = tuple(self.indices.shape)
        expected = {
            "indices": ((torch.int64, torch.int32), (*self.scores.shape[:-1], *kept[-1:])),
            "scores": ((torch.float32,), tuple(self.scores.shape)),
            "mask": ((torch.bool,), tuple(self.scores.shape)),
            "assignment": (
                (torch.float32, torch.bfloat16, torch.float16, torch.float64),
                (*kept, *self.scores.shape[-1:]),
            ),
        }
        for name, tensor in self._tensors().items():
            dtypes, shape = expected[name]
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
        at = (~holds).nonzero()[0].tolist()
        row = got[tuple(at[: got.ndim - 1])].tolist()
        raise InputError(f"Selection: got row {row} (first at {at}), expected {expected}")
