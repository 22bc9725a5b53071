"""`eligo tokens build`: a vision-language model from a vision tower and a language model."""

from pathlib import Path

from eligo.cli.console import print_result
from eligo.cli.flags import Count


def run(
    tower: str,
    language: str,
    *,
    out: Path,
    image_size: Count | None = None,
    feature_layer: tuple[int, ...] = (-2,),
    parts: Path | None = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Join a vision tower and a language model to a LLaVA, with a new projector.

    Train it with `eligo tokens finetune`; without that it cannot see.

    Args:
        tower: Folder or hub name of a CLIP, SigLIP or DINOv2 model.
        language: Folder or hub name of a causal language model.
        out: The folder to write to.
        image_size: Image side in pixels, a multiple of the patch size; by default the tower's own.
        feature_layer: Hidden state of the tower that gives the vision tokens, -1 is the last; of
            several, the features are concatenated.
        parts: Folder `parts` of a run of `eligo tokens finetune`: its trained projector and LoRA.
        seed: Seed of a new projector.
        json: Print one JSON document.
    """
    from eligo.tokens.model.assemble import assemble, save_host
    from eligo.tokens.training.finetune import load_parts

    model, processor = assemble(
        tower, language, image_size=image_size, feature_layer=feature_layer, seed=seed
    )
    if parts is not None:
        load_parts(model, parts)
    save_host(model, processor, out)
    summary = {
        "model": out,
        "vision_tokens": model.config.image_seq_length,
        "parameters": sum(part.numel() for part in model.parameters()),
        "trained": parts is not None,
    }
    print_result(summary, json)
