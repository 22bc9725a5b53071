"""A host's answer to one new question behind chosen examples."""

from collections.abc import Sequence

import torch

from eligo.config import load_config
from eligo.shots.hosts.config import ShotsHostConfig
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.load import load_reader
from eligo.shots.inference.predict import Deployed
from eligo.shots.pool.pool import Pool


def answer(
    deployed: Deployed,
    model: str,
    device: str,
    question: str,
    image: str | None,
    picks: Sequence[str],
) -> str:
    """What it says; the question needs no vector here."""
    payload = {"question": question, "answer": "", "image": image}
    asked = Pool(["asked"], torch.ones(1, 1), payload=[payload])
    told = {"model": model, "device": device, **deployed.prompt}
    host = load_config(ShotsHostConfig, None, told)
    generator = HostGenerator(
        load_reader(host), deployed.selector.pool, asked, placement=host.placement
    )
    return generator.answer("asked", picks)
