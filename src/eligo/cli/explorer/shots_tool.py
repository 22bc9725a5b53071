"""Try examples: a question with made-up words, the examples that selectors pick, and the answers.

The examples are those of one lexicon that the learner never met, so only they tell what its words
mean. Every selector that comes with eligo picks; likeness and chance pick beside them.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from eligo.cli.demo.shots import NEAREST, NONE, on_pool, shipped_selectors
from eligo.cli.explorer.questions import check_question
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.explorer.tools import (
    LiveBudget,
    LiveExample,
    LiveImage,
    LiveRequest,
    LiveText,
    LiveTool,
)
from eligo.pretrained.chat import place_image, plain_text, tokenize
from eligo.pretrained.load import shipped_model, shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.scenes.vlm import load_vlm
from eligo.shots.baselines import KNN, Random
from eligo.shots.config import SamplerConfig
from eligo.shots.data.query import Query
from eligo.shots.hosts.prompt import Turn, write_prompt
from eligo.shots.hosts.scorer import in_prompt_order
from eligo.shots.inference.record import record
from eligo.shots.learner.config import ExamConfig
from eligo.shots.learner.lessons import EXAMPLES, Lessons, draw_lessons
from eligo.shots.learner.stages import LEARNER, MADE_BY
from eligo.shots.learner.world import FIRST_LEXICON, PER_LEXICON, ExamWorld, make_world
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import PoolSelector

_EXAMPLES = 8
_SHOTS = (1, 4, 2)  # fewest, most, as trained
_SPLIT = "validation"
_LONGEST = 4  # tokens of an answer


def shots_tool(device: str) -> LiveTool | None:
    """The tool, if the learner and a selector are here."""
    selectors = shipped_selectors()
    if LEARNER not in shipped_models() or not selectors:
        return None
    folder = shipped_model(LEARNER, made_by=MADE_BY)
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = about["vision_config"]["image_size"]
    scenes = ExamConfig().scenes.replace({"height": size, "width": size})
    lessons = _lessons(scenes)
    examples, known = [], {}
    for number in range(_EXAMPLES):
        # The question that is hardest to guess, so that examples matter.
        place = int(lessons.guess[number].masked_fill(~lessons.valid[number], 2).argmin())
        question = to_text(lessons.text[number, place].tolist())
        picture = _picture(lessons, (EXAMPLES + 1) * number + EXAMPLES)
        example = LiveExample(f"lesson {number}", question, picture, question)
        known[example.image, question] = VOCABULARY[int(lessons.answer[number, place])]
        examples.append(example)
    fewest, most, usual = _SHOTS
    return LiveTool(
        name="shots",
        title="Choose examples",
        text=LiveText("Question", "what texture is the dax wug?", examples[0].text),
        budget=LiveBudget("Examples in the prompt", fewest, most, 1, usual),
        examples=examples,
        run=_Chooser(device, folder, scenes, lessons, selectors, known).run,
    )


def _lessons(scenes: SceneConfig) -> Lessons:
    first = FIRST_LEXICON * PER_LEXICON
    return draw_lessons(
        scenes, _SPLIT, torch.arange(first, first + PER_LEXICON), torch.device("cpu"),
        unclear=ExamConfig().unclear, per_lexicon=PER_LEXICON,
    )  # fmt: skip


def _picture(lessons: Lessons, scene: int) -> Image.Image:
    return rgb_picture(lessons.rendered.rgb[scene])


class _Chooser:
    """The learner and the selectors, once they are wanted."""

    def __init__(
        self,
        device: str,
        folder: Path,
        scenes: SceneConfig,
        lessons: Lessons,
        selectors: list[str],
        known: dict[tuple[LiveImage, str], str],
    ) -> None:
        self.device, self.folder, self.scenes = device, folder, scenes
        self.lessons, self.names, self.known = lessons, selectors, known

    @cached_property
    def learner(self) -> tuple[Any, Any]:
        return load_vlm(self.folder, device=self.device)

    @cached_property
    def world(self) -> ExamWorld:
        return make_world(self.learner[0], self.scenes, _SPLIT, 1, unclear=ExamConfig().unclear)

    @cached_property
    def selectors(self) -> dict[str, PoolSelector]:
        pool = self.world.pool
        learned = {
            f"pointer {name.removeprefix('demos_')}": on_pool(name, pool) for name in self.names
        }
        return {**learned, NEAREST: KNN().fit([], pool), "random": Random().fit([], pool)}

    @cached_property
    def pictures(self) -> dict[str, Image.Image]:
        """Of every example; the number of its scene is its group."""
        pool = self.world.pool
        assert pool.groups is not None
        return {
            name: _picture(self.lessons, int(str(group).removeprefix("scene ")))
            for name, group in zip(pool.ids, pool.groups, strict=True)
        }

    def run(self, request: LiveRequest) -> ExplorerRecord:
        """What each selector picks, and what the learner answers behind it."""
        note = check_question(self.learner[1].tokenizer, request.text)
        assert request.image is not None
        assert request.budget is not None
        query = self.query(request.image, request.text)
        pool = self.world.pool
        names = Sampler(pool, SamplerConfig()).names(query)
        shots = int(request.budget)
        chosen = {
            who: selector.select(query, shots, candidates=names)
            for who, selector in self.selectors.items()
        }
        picks = {NONE: [], **{who: pool.picked(found) for who, found in chosen.items()}}
        right = self.known.get((request.image, request.text))
        answers = []
        for who, told in picks.items():
            said = self.answer(request.image.picture, request.text, told)
            answers.append(Answer(who, said, None if right is None else said == right))
        return record(
            request.text, pool, names, chosen, picture=request.image.picture,
            pictures=self.pictures, answers=answers,
            cost={"examples": f"{len(pool)} > {len(names)} candidates > {shots} in the prompt"},
            note=note,
        )  # fmt: skip

    @torch.no_grad()
    def query(self, image: LiveImage, question: str) -> Query:
        """Embedded as the exam's queries are: mean patch, mean word."""
        model, processor = self.learner
        pixels = processor.image_processor(image.picture, return_tensors="pt")["pixel_values"]
        seen = model.model.vision_tower(pixels.to(model.device), output_hidden_states=True)
        patches = model.model.multi_modal_projector(seen.hidden_states[-2][:, 1:])
        text = plain_text(processor, place_image(question, "text"))
        ids = tokenize(processor.tokenizer, text, add_special_tokens=False)["input_ids"]
        words = model.model.language_model.embed_tokens.weight[ids]
        views = {"image": patches[0].mean(0).cpu(), "text": words.mean(0).cpu()}
        domains = self.world.pool.domains
        assert domains is not None
        return Query(f"{image.key}: {question}", views, domain=domains[0], text=question)

    @torch.no_grad()
    def answer(self, picture: Image.Image, question: str, picks: list[str]) -> str:
        """What the learner says behind these examples (in order of choice)."""
        model, processor = self.learner
        told = in_prompt_order(picks, "prepend")
        payload = dict(zip(self.world.pool.ids, self.world.pool.payload or (), strict=True))
        shots = [Turn(payload[name]["question"], payload[name]["answer"], name) for name in told]
        prompt = write_prompt(processor, shots, Turn(question, "", "asked"))
        pictures = [*(self.pictures[name] for name in told), picture]
        inputs = tokenize(processor, images=[pictures], text=[prompt], return_tensors="pt").to(
            model.device
        )
        made = model.generate(**inputs, do_sample=False, max_new_tokens=_LONGEST)
        new = made[:, inputs["input_ids"].shape[1] :]
        return processor.batch_decode(new, skip_special_tokens=True)[0].strip()
