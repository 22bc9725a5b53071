"""A text and its image as a record: words are linked to the patches that match them."""

import pytest
import torch
from PIL import Image

from eligo.explorer.folder import load_record, save_record
from eligo.patches.inference.predict import predict
from eligo.patches.inference.record import SearchResult, record
from eligo.patches.model.retrieval_model import RetrievalModel

TEXT = "there is a red ball."


@pytest.fixture(scope="module", params=["open", "paper"])
def pair(request):
    torch.manual_seed(0)
    image = Image.effect_noise((70, 50), 90).convert("RGB")
    model = RetrievalModel.tiny(kind=request.param).eval()
    return predict(image, TEXT, model=model), image


def test_patch_contributions_add_up_to_the_score(pair):
    why = pair[0].explanation
    named = torch.tensor([name != "[CLS]" for name in why.token_names])
    is_made = named[why.word_tokens]
    assert is_made.any()
    sums = why.word_patches.sum(-1)
    torch.testing.assert_close(sums[is_made], why.word_scores[is_made], atol=1e-5, rtol=1e-5)
    assert (why.word_patches[~is_made] == 0).all()


def test_kept_patches_and_links(pair):
    found, _ = pair
    shown = record(found)
    kept, links = shown.stages[0], shown.stages[-1]
    assert (kept.over.rows, kept.over.columns) == (7, 7)
    assert torch.equal(kept.selection.indices, found.explanation.sparse.indices)
    assert len(links.rows) == len(found.words)
    assert links.rows[1].startswith("there ")
    for scores, indices in zip(links.selection.scores, links.selection.indices, strict=True):
        linked = [place for place in indices.tolist() if place >= 0]
        for_it = scores.clamp_min(0)
        if not linked:
            assert for_it.sum() == 0
            continue
        # The smallest set: half is reached only with its last patch.
        assert for_it[linked].sum() >= 0.5 * for_it.sum() - 1e-6
        assert for_it[linked[:-1]].sum() < 0.5 * for_it.sum()
    assert shown.cost["patches"] == "49 > 25 kept"
    assert shown.pictures["image"].size == (70, 50)


def test_results_are_items_with_pictures(pair, tmp_path):
    found, image = pair
    results = [SearchResult("a", image, 0.9, "true of it"), SearchResult("b", image, 0.4)]
    shown = record(found, results=results, title="a title")
    items = shown.stages[-1]
    assert [item.text for item in items.over] == ["a", "b"]
    assert [shown.pictures[item.picture].size for item in items.over] == [(70, 50)] * 2
    assert items.selection.indices.tolist() == [0]
    assert items.selection.scores.tolist() == pytest.approx([0.9, 0.4])
    save_record(shown, tmp_path)
    assert load_record(tmp_path).stages[-1].over == items.over
