"""Answer a question about a photo with a fraction of the vision tokens.

    python examples/prune.py MODEL photo.jpg "what is on the table?" [PLAN]

MODEL: folder or hub name of a LLaVA, Qwen2.5-VL, SmolVLM, InternVL or PaliGemma of `transformers`.
PLAN: a trained plan (a folder or a name); by default two training-free methods.
"""

import sys

import torch

from eligo import tokens
from eligo.errors import exit_on_error
from eligo.images import open_image
from eligo.tokens import Cut, Plan, Stage1, build


@exit_on_error()
def main(name: str, photo: str, question: str, trained: str | None = None) -> None:
    image = open_image(photo)
    device, dtype = ("cuda", "bfloat16") if torch.cuda.is_available() else ("cpu", "float32")
    model, processor = tokens.load_host(tokens.HostConfig(model=name, dtype=dtype), device=device)
    prompt = tokens.build_prompt(processor, question)
    inputs = processor(images=image, text=prompt, return_tensors="pt").to(device, model.dtype)

    # Half of the tokens enter the language model; after a quarter of its layers, an eighth is left.
    half, eighth = Stage1(build("divprune"), ratio=1 / 2), Cut(1 / 4, build("fastv"), ratio=1 / 8)
    plan = tokens.load_plan(trained) if trained else Plan(half, [eighth])
    with tokens.pruning(model, plan) as trace:
        output = model.generate(**inputs, max_new_tokens=64, do_sample=False)

    print(processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"{trace.num_columns} tokens in the prompt; in the layers: {trace.lengths}")


main(*sys.argv[1:]) if len(sys.argv) in (4, 5) else sys.exit(__doc__)
