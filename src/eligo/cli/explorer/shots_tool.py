"""Live selection of examples: a question with nonce words, the picks, and the answers with them.

The examples belong to a lexicon that the learner was not trained on, so that only they define its
words. All shipped selectors are compared with kNN and random choice.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from eligo.cli.demo.shots import (
    NEAREST,
    NONE,
    draw_pool_lessons,
    on_pool,
    scene_of,
    selector_label,
    shipped_selectors,
)
from eligo.cli.explorer.questions import check_question
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.explorer.tools import LiveBudget, LiveExample, LiveImage, LiveRequest, LiveText, LiveTool
from eligo.pretrained.chat import place_image, plain_text, tokenize
from eligo.pretrained.load import shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.scenes.vlm import load_vlm
from eligo.shots.baselines import KNN, Random
from eligo.shots.config import SamplerConfig
from eligo.shots.data.query import Query
from eligo.shots.hosts.prompt import Turn, in_prompt_order, write_prompt
from eligo.shots.inference.record import record
from eligo.shots.learner.lessons import EXAMPLES, Lessons
from eligo.shots.learner.load import LEARNER, find_learner, scenes_for
from eligo.shots.learner.world import PER_LEXICON, LearnerWorld, make_world, project_images
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import PoolSelector

_EXAMPLES = 8
_SHOTS = (1, 4, 2)  # minimum, maximum, default (as trained)
_SPLIT = "validation"
_MAX_TOKENS = 4  # of an answer


def shots_tool(device: str) -> LiveTool | None:
    """Return the tool, or None without a shipped learner and selector."""
    selectors = shipped_selectors()
    if LEARNER not in shipped_models() or not selectors:
        return None
    folder = find_learner()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    scenes = scenes_for(config["vision_config"]["image_size"])
    lessons = draw_pool_lessons(scenes, _SPLIT, torch.arange(PER_LEXICON))
    examples, known = [], {}
    for number in range(_EXAMPLES):
        # The question that is hardest to guess, so that examples matter.
        place = int(lessons.guess[number].masked_fill(~lessons.valid[number], 2).argmin())
        question = to_text(lessons.text[number, place].tolist())
        picture = _picture(lessons, (EXAMPLES + 1) * number + EXAMPLES)
        example = LiveExample(f"lesson {number}", question, picture, question)
        known[example.image, question] = VOCABULARY[int(lessons.answer[number, place])]
        examples.append(example)
    minimum, maximum, default = _SHOTS
    return LiveTool(
        name="shots",
        title="Choose examples",
        text=LiveText("Question", "what texture is the dax wug?", examples[0].text),
        budget=LiveBudget("Examples in the prompt", minimum, maximum, 1, default),
        examples=examples,
        run=_Chooser(device, folder, scenes, lessons, selectors, known).run,
    )


def _picture(lessons: Lessons, scene: int) -> Image.Image:
    return rgb_picture(lessons.rendered.rgb[scene])


class _Chooser:
    """Answers requests; loads the learner and the selectors at the first one."""

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
    def world(self) -> LearnerWorld:
        return make_world(self.learner[0], self.scenes, _SPLIT, 1)

    @cached_property
    def selectors(self) -> dict[str, PoolSelector]:
        pool = self.world.pool
        learned = {selector_label(name): on_pool(name, pool) for name in self.names}
        return {**learned, NEAREST: KNN().fit([], pool), "random": Random().fit([], pool)}

    @cached_property
    def pictures(self) -> dict[str, Image.Image]:
        """Pictures of all examples, by id."""
        pool = self.world.pool
        assert pool.groups is not None
        return {
            name: _picture(self.lessons, scene_of(group))
            for name, group in zip(pool.ids, pool.groups, strict=True)
        }

    def run(self, request: LiveRequest) -> ExplorerRecord:
        """Return the picks of each selector and the learner's answers with them."""
        note = check_question(self.learner[1].tokenizer, request.text)
        assert request.image is not None
        assert request.budget is not None
        query = self.query(request.image, request.text)
        pool = self.world.pool
        names = Sampler(pool, SamplerConfig(kind="random")).names(query)
        shots = int(request.budget)
        chosen = {
            name: selector.select(query, shots, candidates=names)
            for name, selector in self.selectors.items()
        }
        picks = {NONE: [], **{name: pool.picked(selection) for name, selection in chosen.items()}}
        correct = self.known.get((request.image, request.text))
        answers = []
        for name, examples in picks.items():
            answer = self.answer(request.image.picture, request.text, examples)
            answers.append(Answer(name, answer, None if correct is None else answer == correct))
        return record(
            request.text, pool, names, chosen, picture=request.image.picture,
            pictures=self.pictures, answers=answers,
            cost={"examples": f"{len(pool)} > {len(names)} candidates > {shots} in the prompt"},
            note=note,
        )  # fmt: skip

    @torch.no_grad()
    def query(self, image: LiveImage, question: str) -> Query:
        """Embed a question as `make_world` does: mean patch, mean word."""
        model, processor = self.learner
        pixels = processor.image_processor(image.picture, return_tensors="pt")["pixel_values"]
        patches = project_images(model, pixels.to(model.device))
        text = plain_text(processor, place_image(question, "text"))
        ids = tokenize(processor.tokenizer, text, add_special_tokens=False)["input_ids"]
        words = model.model.language_model.embed_tokens.weight[ids]
        views = {"image": patches[0].mean(0).cpu(), "text": words.mean(0).cpu()}
        domains = self.world.pool.domains
        assert domains is not None
        return Query(f"{image.key}: {question}", views, domain=domains[0], text=question)

    @torch.no_grad()
    def answer(self, picture: Image.Image, question: str, picks: list[str]) -> str:
        """Return the learner's answer after these examples (in order of choice)."""
        model, processor = self.learner
        ordered = in_prompt_order(picks, "prepend")
        payload = dict(zip(self.world.pool.ids, self.world.pool.payload or (), strict=True))
        shots = [Turn(payload[name]["question"], payload[name]["answer"], name) for name in ordered]
        prompt = write_prompt(processor, shots, Turn(question, "", "image"))
        pictures = [*(self.pictures[name] for name in ordered), picture]
        inputs = tokenize(processor, images=[pictures], text=[prompt], return_tensors="pt").to(
            model.device
        )
        output = model.generate(**inputs, do_sample=False, max_new_tokens=_MAX_TOKENS)
        new = output[:, inputs["input_ids"].shape[1] :]
        return processor.batch_decode(new, skip_special_tokens=True)[0].strip()
