"""Choose examples for one question after another; the base of the selectors for other libraries."""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image, UnidentifiedImageError

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.images import as_image
from eligo.pretrained.chat import place_image
from eligo.shots.data.items import Item, image_group
from eligo.shots.hosts.prompt import in_prompt_order
from eligo.shots.inference.embed import embed_query, embedded_pool
from eligo.shots.inference.encoders import Encoder, open_encoder
from eligo.shots.inference.load import default_shots, load_pipeline, trained_encoder
from eligo.shots.inference.predict import check_encoder
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import PoolSelector

_DATA = "data:image/"


class ExampleChooser:
    """A selector with its encoder, and the examples that it chooses from."""

    def __init__(
        self,
        selector: str | Path | PoolSelector | PointerSelector,
        examples: Sequence[Mapping[str, Any]] | None = None,
        *,
        num_shots: int | None = None,
        encoder: str | Encoder | None = None,
        device: str = "auto",
    ) -> None:
        """`examples` have `question`, `answer` and optionally `image`; the rest as in `predict`.

        Without examples, those that the selector was saved with. By default the encoder is that of
        the training, or `words`.
        """
        self._scratch: TemporaryDirectory[str] | None = None
        name = encoder or trained_encoder(selector) or ("words" if examples is not None else None)
        opened = open_encoder(name, device) if isinstance(name, str) else name
        pool = None
        if examples is not None:
            if not examples:
                raise InputError("examples: got none, expected at least one")
            items = [self._item(str(n), example) for n, example in enumerate(examples)]
            assert opened is not None
            pool = embedded_pool(items, opened)
        self.pipeline = load_pipeline(selector, pool, encoder=opened)
        if isinstance(self.pipeline.encoder, str):
            loaded = open_encoder(self.pipeline.encoder, device)
            self.pipeline = replace(self.pipeline, encoder=loaded)
        assert isinstance(self.pipeline.encoder, Encoder)
        self.encoder: Encoder = self.pipeline.encoder
        check_encoder(self.pipeline, self.encoder)
        count = default_shots(self.pipeline.selector) if num_shots is None else num_shots
        self.num_shots = check_count("num_shots", count)

    def choose(self, question: str, image: Any = None) -> list[str]:
        """Return the ids of the examples for a question, in the order of the prompt."""
        pipeline, path = self.pipeline, self._image_file(image)
        query = embed_query(self.encoder, f"question: {question}", question, path)
        expected = set(pipeline.selector.pool.views)
        if set(query.views) != expected:
            got = "no image" if image is None else "an image"
            raise InputError(f"image: got {got}, but the examples have {', '.join(expected)}")
        names = pipeline.sampler.names(query)
        picks = pipeline.selector.select(query, self.num_shots, candidates=names)
        placement = pipeline.prompt.get("placement", "prepend")
        return in_prompt_order(
            pipeline.selector.pool.picked(picks), "append" if placement == "append" else "prepend"
        )

    def payload(self, name: str) -> dict[str, Any]:
        """Return question, answer and perhaps image of an example."""
        pool = self.pipeline.selector.pool
        row = int(pool.rows([name])[0])
        if pool.payload is None:
            raise InputError("examples: those of the selector have no texts; give examples")
        return dict(pool.payload[row])

    def add(self, example: Mapping[str, Any]) -> str:
        """Add an example to choose from, and return its id; nothing is learned again."""
        pool = self.pipeline.selector.pool
        number = len(pool)
        while str(number) in pool:
            number += 1
        more = embedded_pool([self._item(str(number), example)], self.encoder)
        columns = {"payload": more.payload or ()} | ({"groups": more.groups} if more.groups else {})
        pool = pool.add(more.ids, more.views, **columns)
        sampler = self.pipeline.sampler.config
        if sampler.num_candidates == number:  # all examples are candidates
            sampler = sampler.replace({"num_candidates": number + 1})
        self.pipeline = replace(
            self.pipeline,
            selector=self.pipeline.selector.with_pool(pool),
            sampler=Sampler(pool, sampler),
        )
        return str(number)

    def _item(self, name: str, example: Mapping[str, Any]) -> Item:
        where = f"example {name}"
        for key in ("question", "answer"):
            if not isinstance(example.get(key), str):
                got = type(example.get(key)).__name__
                raise InputError(f"{where}: {key}: got {got}, expected text")
        image = self._image_file(example.get("image"))
        question = example["question"]
        if image is not None:
            question = place_image(question, where)
        group = None if image is None else image_group(image)
        return Item(name, question, (example["answer"],), image, group)

    def _image_file(self, image: Any) -> str | None:
        """Return the path of an image; encoders read files."""
        if image is None:
            return None
        image = getattr(image, "url", image)  # dspy.Image
        if isinstance(image, str) and image.startswith(_DATA):
            try:
                image = Image.open(BytesIO(b64decode(image.partition(",")[2], validate=True)))
            except (binascii.Error, UnidentifiedImageError):
                raise InputError(f"image: {image[:40]!r}... holds no image") from None
        if isinstance(image, str) and image.startswith(("http://", "https://")):
            raise InputError(f"image: got {image!r:.60}, expected a file or an image; download it")
        if isinstance(image, str | Path):
            return str(image)
        if self._scratch is None:
            self._scratch = TemporaryDirectory(prefix="eligo-")
        path = Path(self._scratch.name) / f"{len(list(Path(self._scratch.name).iterdir()))}.png"
        as_image(image).save(path)
        return str(path)
