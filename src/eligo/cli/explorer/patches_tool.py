"""Live retrieval: a caption, the patches it keeps in an image, and the images it finds.

The slider sets the share of patches to keep. The network was trained with one share but works with
any: its slots aggregate as many patches as are kept.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from PIL import Image

from eligo.config import load_config
from eligo.errors import InputError
from eligo.explorer.record import ExplorerRecord
from eligo.explorer.tools import LiveBudget, LiveExample, LiveRequest, LiveText, LiveTool
from eligo.patches.config import RetrievalConfig, ScenesDataConfig
from eligo.patches.inference.predict import predict
from eligo.patches.inference.record import SearchResult, record
from eligo.patches.model.inputs import Images
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained.load import shipped_model, shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.dataset import SceneDataset

_NAME = "patches"
_GALLERY = 12
_STEP = 5  # per cent
_SMALL = (128, 128)


def patches_tool(device: str) -> LiveTool | None:
    """Return the tool, or None if its model is not shipped."""
    if _NAME not in shipped_models():
        return None
    folder = shipped_model(_NAME, made_by="eligo patches train")
    match = load_config(RetrievalConfig, folder / "config.yaml").match
    scenes = SceneDataset(ScenesDataConfig().scenes, "validation", _GALLERY)
    items = scenes.__getitems__(range(_GALLERY))
    examples = [
        LiveExample(item.id, item.captions[0], rgb_picture(item.rgb), item.captions[0])
        for item in items
    ]
    dense = [item.dense_caption for item in items] if match.dense else None
    share = max(_STEP, _STEP * round(100 * match.sparse_ratio / _STEP))
    return LiveTool(
        name=_NAME,
        title="Match words with patches",
        text=LiveText("Caption", "a small red ball is left of a box.", examples[0].text),
        budget=LiveBudget("Patches kept", _STEP, 100, _STEP, share, "%"),
        examples=examples,
        run=_Matcher(device, examples, dense).run,
    )


class _Matcher:
    """The model, loaded on first use, with the encoded images of the gallery."""

    def __init__(
        self, device: str, gallery: Sequence[LiveExample], dense: Sequence[str] | None
    ) -> None:
        self.device, self.gallery, self.dense = device, gallery, dense

    @cached_property
    def model(self) -> RetrievalModel:
        return RetrievalModel.from_pretrained(_NAME, device=self.device)

    @cached_property
    def encoded(self) -> Images:
        return self.model.image_side([example.picture for example in self.gallery], self.dense)

    @cached_property
    def small(self) -> list[Image.Image]:
        return [
            example.picture.resize(_SMALL, Image.Resampling.LANCZOS) for example in self.gallery
        ]

    def run(self, request: LiveRequest) -> ExplorerRecord:
        """Return the kept patches and words of the image, and all images ranked by score."""
        if not request.text:
            raise InputError("text: is empty, expected a caption")
        assert request.image is not None
        assert request.budget is not None
        keys = [example.image for example in self.gallery]
        place = keys.index(request.image) if request.image in keys else None
        dense = None
        if self.dense is not None:
            if place is None:
                raise InputError(
                    "image: this model was trained with a dense caption of every image, which only "
                    "the examples have; choose one of them"
                )
            dense = self.dense[place]
        with self.model.keeping(request.budget / 100):
            picture = request.image.picture
            prediction = predict(picture, request.text, model=self.model, dense=dense)
            results = self._search(request.text)
        return record(prediction, results=results)

    @torch.no_grad()
    def _search(self, text: str) -> list[SearchResult]:
        scores = self.model.match(self.encoded, self.model.text_side([text]))[:, 0].tolist()
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        return [
            SearchResult(self.gallery[place].id, self.small[place], scores[place])
            for place in order
        ]
