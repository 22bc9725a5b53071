"""Ask a vision-language model about a photo, with a fraction of its vision tokens.

    python examples/prune.py MODEL photo.jpg "what is on the table?" [PLAN]

MODEL: folder or hub name of a LLaVA, Qwen2.5-VL, SmolVLM, InternVL or PaliGemma of `transformers`.
PLAN: a trained plan (a folder or a name); without one, two methods that need no training.
"""

import sys

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from eligo.tokens import Cut, Plan, Stage1, pruning
from eligo.tokens.methods import build

if len(sys.argv) not in (4, 5):
    sys.exit(__doc__)
name, photo, question, *trained = sys.argv[1:]

device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForImageTextToText.from_pretrained(name, dtype="auto").to(device).eval()
processor = AutoProcessor.from_pretrained(name)
content = [{"type": "image"}, {"type": "text", "text": question}]
message = {"role": "user", "content": content}
prompt = processor.apply_chat_template([message], add_generation_prompt=True)
image = Image.open(photo).convert("RGB")
inputs = processor(images=image, text=prompt, return_tensors="pt").to(device, model.dtype)

# Half of the tokens enter the language model; from a quarter of its depth on, an eighth is left.
halved, eighth = Stage1(build("divprune"), ratio=1 / 2), Cut(1 / 4, build("fastv"), ratio=1 / 8)
plan = Plan.from_pretrained(*trained) if trained else Plan(halved, [eighth])
with pruning(model, plan) as trace:
    output = model.generate(**inputs, max_new_tokens=64, do_sample=False)

print(processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print(f"{trace.num_columns} tokens in the prompt; in the layers: {trace.lengths}")
