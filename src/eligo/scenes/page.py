"""One page of scenes with depth, labels, captions, tags and questions."""

from pathlib import Path

import torch
from PIL import Image

from eligo import __version__
from eligo.io.files import writing
from eligo.report import page, pictures
from eligo.report.page import Html, tag
from eligo.scenes.config import ROOMS, SceneConfig
from eligo.scenes.dataset import SceneDataset, SceneItem, SceneQuestion
from eligo.scenes.painter import label_names
from eligo.scenes.question_kinds import FAMILIES

_DEPTH_RANGE = (1.0, 6.0)  # metres; one scale for all pictures
_QUESTIONS = 24  # questions drawn, to have one of each family
_WALL_AND_FLOOR: tuple[pictures.Colour, ...] = ((198, 200, 208), (150, 138, 128))
_PALETTE = pictures.label_palette(len(label_names(ROOMS)), _WALL_AND_FLOOR)
_SHEET_FAMILY = "relation"
_THUMBNAIL = (168, 168)

_LEAD = (
    "Every scene is generated from a seed, with image, depth, labels, captions, tags and "
    "questions; nothing is downloaded. Answering a question takes only a small part of the image: "
    "the objects that stay in colour. eligo is about what a model keeps, and at which cost."
)
_ROOMS = (
    "Rooms for segmentation. Camouflaged things are visible in the depth only, painted ones only "
    "look solid, and twin classes (ring or hoop, gem or tile, moon or horn) look identical: only "
    "the tags tell which name applies."
)


def write_scenes_page(out: Path, count: int) -> tuple[Path, Path]:
    """Write the first scenes of the validation split as `index.html`, and a contact sheet."""
    shown = SceneDataset(SceneConfig(), "validation", count, num_questions=_QUESTIONS)
    items = shown.__getitems__(range(count))
    rooms = SceneDataset(ROOMS, "validation", count, sensor=True)
    index = page.write_page(
        out / "index.html",
        page.page(
            "eligo: generated scenes",
            *(_scene_card(item) for item in items),
            tag("h2", "Rooms with depth"),
            tag("p", _ROOMS),
            *(_room_card(item) for item in rooms.__getitems__(range(min(3, count)))),
            lead=_LEAD,
            footer=f"made by eligo {__version__}: eligo scenes show",
        ),
    )
    sheet = out / "contact_sheet.png"
    with writing(sheet) as temporary:
        _contact_sheet(items).save(temporary, "PNG")
    return index, sheet


def _scene_card(item: SceneItem) -> Html:
    image = pictures.rgb_picture(item.rgb)
    questions = [_question_figure(image, item, question) for question in _one_per_family(item)]
    return page.card(
        item.id,
        _pictures(item),
        tag("p", item.captions[0]),
        _tags(item),
        page.details("the whole scene in words", tag("p", item.dense_caption)),
        tag("h3", "Questions, and the objects that decide them"),
        page.row(*questions),
    )


def _room_card(item: SceneItem) -> Html:
    return page.card(item.id, _pictures(item), _tags(item))


def _pictures(item: SceneItem) -> Html:
    return page.row(
        page.figure(pictures.rgb_picture(item.rgb), "image", alt=" ".join(item.captions)),
        page.figure(_depth(item), "depth, bright is near"),
        page.figure(pictures.label_picture(item.labels, _PALETTE), "labels"),
        columns=3,
    )


def _tags(item: SceneItem) -> Html:
    """Return the image's tags, in the colours of the label map."""
    colours = dict(zip(label_names(ROOMS), _PALETTE, strict=True))
    return page.chips([Html(f"{page.swatch(colours[name])}{name}") for name in item.tags])


def _depth(item: SceneItem) -> Image.Image:
    near, far = _DEPTH_RANGE
    return pictures.depth_picture(item.depth, item.depth_mask, near=near, far=far)


def _question_figure(image: Image.Image, item: SceneItem, question: SceneQuestion) -> Html:
    needed = _deciding_mask(item, question)
    share = f"{100 * needed.float().mean().item():.1f} % of the pixels"
    small = pictures.highlight(image, needed).resize(_THUMBNAIL, Image.Resampling.LANCZOS)
    answer = Html(f" <strong>{page.html(question.answer)}</strong>")
    note = tag("div", f"{question.family}, {share if needed.any() else 'nothing'}", cls="soft")
    return page.figure(
        small, Html(f"{page.html(question.question)}{answer}{note}"), alt=question.question
    )


def _deciding_mask(item: SceneItem, question: SceneQuestion) -> torch.Tensor:
    return torch.isin(item.instances, torch.tensor(question.deciding, dtype=torch.uint8))


def _one_per_family(item: SceneItem) -> list[SceneQuestion]:
    first = {question.family: question for question in reversed(item.questions)}
    return [first[family] for family in FAMILIES if family in first]


def _contact_sheet(items: list[SceneItem]) -> Image.Image:
    rows, captions = [], []
    for item in items:
        question = next((a for a in _one_per_family(item) if a.family == _SHEET_FAMILY), None)
        question = question or item.questions[0]
        image = pictures.rgb_picture(item.rgb)
        needed = pictures.highlight(image, _deciding_mask(item, question))
        labels = pictures.label_picture(item.labels, _PALETTE)
        rows.append([image, _depth(item), labels, needed])
        captions.append(f"{item.captions[0]}\n{question.question} {question.answer}")
    return pictures.contact_sheet(
        rows,
        columns=("image", "depth", "labels", "objects that decide the question"),
        captions=captions,
        title="eligo: generated scenes",
    )
