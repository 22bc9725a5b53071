"""Selection: exact budgets, gather and scatter, merging, files, invalid input."""

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from eligo import Selection, ops
from eligo.errors import InputError
from strategies import Ragged, production, quick, ragged, rows

FIELDS = ("indices", "scores", "mask", "assignment")


def selections(case: Ragged, k: int, folded: bool) -> Selection:
    """A selection of k, without or with a soft merge of the rest."""
    pure = Selection.top_k(case.scores, k, case.mask)
    if not folded:
        return pure
    logits = torch.randn(*pure.indices.shape, case.scores.shape[-1], generator=case.generator)
    assignment = ops.soft_assignment(logits, pure.indices, case.mask)
    return dataclasses.replace(pure, assignment=assignment)


def assert_same(one: Selection, other: Selection) -> None:
    for name in FIELDS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None and b is None) or a.equal(b), name


@quick
@given(ragged(), st.integers(0, 10))
def test_budgets_are_exact_and_padding_is_explicit(case: Ragged, k: int):
    selection = Selection.top_k(case.scores, k, case.mask)
    num_real = case.mask.sum(-1)
    assert selection.indices.shape == (*case.scores.shape[:-1], k)
    assert selection.num_kept.equal(num_real.clamp_max(k))
    assert selection.kept_mask.sum(-1).equal(selection.num_kept)
    assert not (selection.kept_mask & ~case.mask).any()
    assert selection.sizes.sum(-1).equal(selection.num_kept.float())
    selection.check()
    # No dropped score exceeds a kept one.
    for kept, scores, mask in zip(
        rows(selection.kept_mask), rows(case.scores), rows(case.mask), strict=True
    ):
        if kept.any() and (mask & ~kept).any():
            assert scores[kept].min() >= scores[mask & ~kept].max()


@quick
@given(ragged(), st.integers(0, 5), st.sampled_from([(), (3,), (2, 2)]))
def test_pure_selection_folds_by_gathering_and_unfolds_back(case: Ragged, k: int, features: tuple):
    selection = selections(case, k, folded=False)
    values = case.randn(*features)
    gathered = selection.gather(values)
    assert gathered.shape == (*selection.indices.shape, *features)
    assert selection.fold(values).equal(gathered)
    back = selection.unfold(gathered)
    kept = ops.masked.append_axes(selection.kept_mask, len(features))
    assert back.equal(values * kept)
    own = selection.indices.unsqueeze(-1) == torch.arange(case.scores.shape[-1])
    one_hot = dataclasses.replace(selection, assignment=own.float())
    assert one_hot.unfold(gathered).allclose(back)
    assert one_hot.fold(values).allclose(gathered)
    assert one_hot.sizes.equal(selection.sizes)


@quick
@given(ragged(), st.integers(0, 5), st.sampled_from([(), (3,), (2, 2)]))
def test_folding_is_a_weighted_mean_and_loses_no_weight(case: Ragged, k: int, features: tuple):
    selection = selections(case, k, folded=True)
    assert selection.assignment is not None
    values = case.randn(*features)
    folded = selection.fold(values)
    assert folded.shape == (*selection.indices.shape, *features)
    # sizes * means = sums, so that total weight and total value survive the folding.
    reached = (case.mask & selection.num_kept.gt(0).unsqueeze(-1)).float()
    torch.testing.assert_close(selection.sizes.sum(-1), reached.sum(-1))
    dim = case.scores.ndim - 1
    expand = lambda weights: ops.masked.append_axes(weights, len(features))  # noqa: E731
    total = (folded * expand(selection.sizes)).sum(dim)
    torch.testing.assert_close(total, (values * expand(reached)).sum(dim), atol=1e-4, rtol=1e-4)
    # Constants stay constant in both directions.
    back = selection.unfold(selection.fold(torch.ones_like(values)))
    torch.testing.assert_close(back, expand(reached).expand(back.shape))


def test_unfold_copies_to_every_candidate_folded_in():
    selection = Selection(
        torch.tensor([[1, 2, -1]]),
        torch.zeros(1, 4),
        torch.tensor([[True, True, True, False]]),
        torch.tensor([[[0.4, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 0, 0]]]),
    )
    values = torch.tensor([[[5.0], [7.0], [torch.nan]]])
    assert selection.unfold(values).tolist() == [[[5.0], [5.0], [7.0], [0.0]]]
    assert selection.sizes.tolist() == [[pytest.approx(1.4), 1.0, 0.0]]


@quick
@given(ragged(), st.integers(0, 6), st.booleans())
def test_in_order_sorts_and_changes_nothing_else(case: Ragged, k: int, folded: bool):
    selection = selections(case, k, folded)
    ordered = selection.in_order()
    for row, before in zip(rows(ordered.indices), rows(selection.indices), strict=True):
        kept = sorted(i for i in before.tolist() if i >= 0)
        assert row.tolist() == kept + [-1] * (k - len(kept))
    assert ordered.kept_mask.equal(selection.kept_mask)
    values = case.randn(2)
    # Row by row, the same pairs of (index, folded value).
    by_index = selection.unfold(selection.fold(values))
    torch.testing.assert_close(ordered.unfold(ordered.fold(values)), by_index)
    centres = ops.gather(by_index, ordered.indices)
    torch.testing.assert_close(ordered.fold(values), centres)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6), (3, 0), (0, 4)])
def test_save_and_load(tmp_path: Path, shape: tuple[int, ...], folded: bool):
    scores, mask = torch.randn(shape), torch.rand(shape) < 0.6
    case = Ragged(scores, mask, torch.Generator())
    selection = selections(case, 3, folded)
    path = tmp_path / "wähl.safetensors"
    selection.save(path)
    selection.save(path)  # overwrites the file
    assert_same(Selection.load(path), selection)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_failed_save_keeps_the_old_file_and_no_other(tmp_path: Path, monkeypatch):
    path = tmp_path / "selection.safetensors"
    old = Selection.top_k(torch.randn(2, 5), 3)
    old.save(path)

    def half_written(tensors, filename, metadata):
        Path(filename).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("eligo.io.tensors.save_file", half_written)
    with pytest.raises(InputError, match="disk full"):
        Selection.top_k(torch.randn(2, 5), 2).save(path)
    assert_same(Selection.load(path), old)
    assert len(list(tmp_path.iterdir())) == 1


def test_invalid_files_are_refused_on_load(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        Selection.load(tmp_path / "missing.safetensors")
    with pytest.raises(InputError, match=r"cannot be written.*where you may write"):
        Selection.top_k(torch.zeros(1, 2), 1).save(tmp_path / "no" / "folder.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="cannot be read"):
        Selection.load(broken)
    save_file({"indices": torch.zeros(1)}, broken)
    with pytest.raises(InputError, match="got format None"):
        Selection.load(broken)
    save_file({"indices": torch.zeros(1)}, broken, metadata={"format": "eligo.selection.v1"})
    with pytest.raises(InputError, match="cannot be read"):
        Selection.load(broken)


GOOD = {
    "indices": torch.tensor([[2, 0, -1]]),
    "scores": torch.tensor([[0.5, 0.0, 1.0, 0.2]]),
    "mask": torch.tensor([[True, False, True, True]]),
    "assignment": torch.tensor([[[0, 0, 1.0, 0.3], [1.0, 0, 0, 0.7], [0, 0, 0, 0]]]),
}
ROW = GOOD["assignment"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.tensor([[2, 4, -1]])}, r"\[-1, 4\)"),
        ({"indices": torch.tensor([[2, -2, -1]])}, r"\[-1, 4\)"),
        ({"indices": torch.tensor([[2, -1, 0]])}, "only at the end"),
        ({"indices": torch.tensor([[-1, 2, 0]])}, "only at the end"),
        ({"indices": torch.tensor([[2, 2, -1]])}, "twice"),
        ({"indices": torch.tensor([[2, 1, -1]])}, "real under the mask"),
        ({"scores": torch.tensor([[torch.nan, 0, 1, 0]])}, "NaN"),
        ({"assignment": -GOOD["assignment"]}, ">= 0"),
        ({"assignment": GOOD["assignment"] * torch.inf}, "finite"),
        ({"assignment": torch.ones(1, 3, 4)}, "weight 0 in padding"),
        ({"assignment": torch.zeros(1, 3, 4)}, "positive size"),
        ({"indices": torch.tensor([2, 0, -1])}, "got indices"),
        ({"indices": torch.tensor([[2.0, 0.0, -1.0]])}, "got indices"),
        ({"scores": GOOD["scores"].double()}, "got scores torch.float64"),
        ({"mask": GOOD["mask"].float()}, "got mask"),
        ({"mask": GOOD["mask"][:, :3]}, r"got mask .*\(1, 3\), expected .*\(1, 4\)"),
        ({"assignment": GOOD["assignment"].mT}, "got assignment"),
    ],
)
def test_invalid_selections_are_refused(change: dict, message: str):
    Selection(**GOOD)
    with production(), pytest.raises(InputError, match=message):
        Selection(**{**GOOD, **change})


def test_masked_scores_may_be_anything():
    scores = GOOD["scores"].clone()
    scores[0, 1] = torch.nan
    Selection(**{**GOOD, "scores": scores}).check()


def test_values_of_another_shape_are_refused():
    selection = Selection(**GOOD)
    for method in (selection.gather, selection.fold):
        with pytest.raises(InputError, match=r"begin with \(1, 4\)"):
            method(torch.zeros(1, 3, 2))
    with pytest.raises(InputError, match=r"begin with \(1, 3\)"):
        selection.unfold(torch.zeros(1, 4, 2))


def test_selections_are_frozen_and_can_be_moved():
    selection = Selection(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        selection.indices = torch.zeros(1, 3)
    assert_same(selection.to("cpu"), selection)
    # Where reading values would wait for the device, only shapes are checked.
    assert selection.to("meta").indices.device.type == "meta"


@pytest.mark.gpu
def test_no_device_sync_on_cuda():
    selection = Selection(**GOOD).to("cuda")
    values = torch.randn(1, 4, 3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        Selection.top_k(selection.scores, 2, selection.mask).in_order()
        selection.unfold(selection.fold(values))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    selection.check()
    assert_same(selection.to("cpu"), Selection(**GOOD))


def test_folding_is_differentiable():
    values = torch.randn(1, 4, 3, requires_grad=True)
    assignment = GOOD["assignment"].clone().requires_grad_()
    Selection(**{**GOOD, "assignment": assignment}).fold(values).pow(2).sum().backward()
    assert values.grad is not None
    assert assignment.grad is not None
    assert values.grad[0, [0, 2, 3]].ne(0).all()
    assert values.grad[0, 1].eq(0).all()
    assert assignment.grad[0, :2, [0, 2, 3]].ne(0).all()


@quick
@given(ragged(batch=(3,)), st.integers(0, 4), st.booleans())
def test_rows_are_independent_of_the_batch(case: Ragged, k: int, folded: bool):
    selection, values = selections(case, k, folded), case.randn(2)
    for i in range(3):
        assignment = None if selection.assignment is None else selection.assignment[i]
        alone = Selection(selection.indices[i], case.scores[i], case.mask[i], assignment)
        assert Selection.top_k(case.scores[i], k, case.mask[i]).indices.equal(alone.indices)
        torch.testing.assert_close(alone.fold(values[i]), selection.fold(values)[i])


def test_bfloat16_values_keep_their_dtype():
    selection = Selection(**GOOD)
    values = torch.randn(1, 4, 3).bfloat16()
    assert selection.fold(values).dtype == selection.gather(values).dtype == torch.bfloat16
    torch.testing.assert_close(
        selection.fold(values).float(), selection.fold(values.float()), atol=1e-2, rtol=1e-2
    )


@quick
@given(ragged(min_candidates=1), st.integers(1, 5), st.booleans())
def test_padded_false_gives_the_same_results(case: Ragged, k: int, folded: bool):
    whole = case._replace(mask=torch.ones_like(case.mask))
    selection = selections(whole, min(k, case.scores.shape[-1]), folded)
    values = case.randn(3)
    assert_same(selection.in_order(padded=False), selection.in_order())
    assert selection.fold(values, padded=False).equal(selection.fold(values))
    assert selection.gather(values, padded=False).equal(selection.gather(values))
