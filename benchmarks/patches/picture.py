"""`python -m benchmarks.patches.picture`: the patches of a photo that texts keep."""

from pathlib import Path

from PIL import Image

from eligo import patches
from eligo.cli import run_script
from eligo.cli.console import print_text
from eligo.images import open_image
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.report.tokens_picture import stages_picture

_SIDE = 448  # pixels of a panel


def run(*, image: Path, texts: tuple[str, ...], model: str, out: Path) -> None:
    """Draw a photo, cut to its middle square, and what each text keeps of it.

    Args:
        image: The photo.
        texts: One panel for each.
        model: Folder of a trained model.
        out: The picture to write.
    """
    photo = open_image(image)
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    photo = photo.crop((left, top, left + side, top + side)).resize((_SIDE, _SIDE))
    loaded = RetrievalModel.from_pretrained(model)
    stages = []
    for text in texts:
        kept = patches.predict(photo, text, model=loaded).selection.kept_mask
        stages.append((text, [kept.view(loaded.grid_hw)]))
    sheet: Image.Image = stages_picture([photo], stages)
    sheet.save(out, quality=80)
    print_text(f"written: {out}")


if __name__ == "__main__":
    raise SystemExit(run_script(run))
