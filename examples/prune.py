"""Ask a vision-language model about a photo, with a fraction of its vision tokens.

    python examples/prune.py MODEL photo.jpg "what is on the table?" [PLAN]

MODEL: folder or hub name of a LLaVA, Qwen2.5-VL, SmolVLM, InternVL or PaliGemma of `transformers`.
PLAN: a trained plan (a folder or a name); without one, two methods that need no training.
"""

import sys

from eligo.errors import exit_on_error
from eligo.images import open_image
from eligo.pretrained.devices import resolve_device
from eligo.tokens import Cut, Plan, Stage1, load_host, pruning
from eligo.tokens.config import HostConfig
from eligo.tokens.data.prompts import build_prompt
from eligo.tokens.methods import build


@exit_on_error()
def main(name: str, photo: str, question: str, trained: str | None = None) -> None:
    device, image = resolve_device("auto"), open_image(photo)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    model, processor = load_host(HostConfig(model=name, dtype=dtype), device=device)  # stock ones
    prompt = build_prompt(processor, question)
    inputs = processor(images=image, text=prompt, return_tensors="pt").to(device, model.dtype)

    # Half of the tokens enter the language model; from a quarter of its depth on, an eighth stays.
    halved, eighth = Stage1(build("divprune"), ratio=1 / 2), Cut(1 / 4, build("fastv"), ratio=1 / 8)
    plan = Plan.from_pretrained(trained) if trained else Plan(halved, [eighth])
    with pruning(model, plan) as trace:
        output = model.generate(**inputs, max_new_tokens=64, do_sample=False)

    print(processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"{trace.num_columns} tokens in the prompt; in the layers: {trace.lengths}")


main(*sys.argv[1:]) if len(sys.argv) in (4, 5) else sys.exit(__doc__)
