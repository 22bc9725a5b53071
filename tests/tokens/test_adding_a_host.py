"""The adapter of docs/adding_a_host.md is exact, and as short as the page says."""

import re
from pathlib import Path
from typing import Any

import torch
from hosts import IMAGE, TinyHost, _enliven
from test_integration import NEW, assert_same, generate, make_plan
from tiny_models import IMAGE_ID, PAD, TEXT
from token_truth import truth
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    VipLlavaConfig,
    VipLlavaForConditionalGeneration,
)

from eligo.tokens.hooks.pruning import pruning

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_host.md"


def test_adapter_of_the_page_is_exact() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = next(block for block in blocks if "class VipLlava" in block)
    lines = code[code.index("class ") :].rstrip().splitlines()
    assert f"adapter has {len(lines)} lines" in PAGE.read_text()
    names: dict[str, Any] = {}
    exec(code, names)
    torch.manual_seed(0)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    config = VipLlavaConfig(
        vision_config=CLIPVisionConfig(**tower, num_attention_heads=2, image_size=16, patch_size=4),
        text_config=LlamaConfig(**TEXT),
        image_token_index=IMAGE_ID,
        vision_feature_layers=[-1, -2, 1],
        tie_word_embeddings=False,
    )
    model = VipLlavaForConditionalGeneration(config).eval()
    _enliven(model)
    model.generation_config.pad_token_id = PAD
    host = TinyHost("vipllava", model, 4, 16)
    rows: list[list[Any]] = [[3, IMAGE, 2, IMAGE, 3], [2, IMAGE, 9], [4, IMAGE, 2]]
    plan = make_plan("both", folds=True)
    with pruning(model, plan, host=names["VipLlava"]):
        tokens, logits = generate(host, host.batch(rows))
    for number in range(len(rows)):
        expected = truth(host, plan, host.alone(rows, number), tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])
