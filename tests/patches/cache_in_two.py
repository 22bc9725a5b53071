"""Started by `test_patches_cache` in two processes: trains with the settings of a JSON file."""

import json
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from eligo.patches.config import PatchesTrainConfig
from eligo.patches.data import cache
from eligo.train.processes import end


def main(settings: str) -> None:
    from eligo.patches.training.task import train_model

    cache._IMAGES_PER_SHARD, cache._TEXTS_PER_SHARD = 4, 4
    cache._IMAGES_AT_ONCE, cache._TEXTS_AT_ONCE = 2, 2
    train_model(PatchesTrainConfig().replace(json.loads(Path(settings).read_text())))


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert PartialState(cpu=True).num_processes == 2
    main(*sys.argv[1:])
    end()
