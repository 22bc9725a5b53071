"""Screenshots of the explorer for the docs: `python -m benchmarks.explorer.pictures PAGE.html`.

PAGE is that of `eligo demo`, or another with records of tokens and of shots; the first of tokens
should have several stages over a picture.
Needs playwright and a Chromium on this machine.
"""

import shutil
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parents[2] / "docs" / "pictures"
QUALITY = 80  # of WebP: fifty kilobytes a picture


def open_first(page: Page, kind: str) -> None:
    """Open the first record of a kind; on a phone, the list is hidden."""
    page.locator(f"details:has(summary:has-text('{kind}')) a").first.dispatch_event("click")


def hover(page: Page) -> None:
    """Show the third stage and the tooltip of a folded cell."""
    open_first(page, "tokens")
    page.keyboard.press("]")
    page.keyboard.press("]")
    box = page.locator(".board").bounding_box()
    assert box is not None
    for place in range(30, 98, 4):  # until a folded cell is found
        page.mouse.move(box["x"] + box["width"] * place / 100, box["y"] + box["height"] * 0.06)
        if page.locator(".state[data-state=folded]").count():
            return


def scores(page: Page) -> None:
    """Show the scores of the second stage, by rank."""
    open_first(page, "tokens")
    page.keyboard.press("]")
    page.click("[data-name=scores]")
    page.check(".check:has-text('by rank') input")
    page.mouse.move(0, 0)


def examples(page: Page) -> None:
    """Show the examples that were chosen for the first question."""
    open_first(page, "shots")
    page.mouse.move(0, 0)


def phone(page: Page) -> None:
    """Show the second stage."""
    open_first(page, "tokens")
    page.keyboard.press("]")


SHOTS: dict[str, tuple[int, int, Literal["light", "dark"], Callable[[Page], None]]] = {
    "explorer": (1320, 900, "light", hover),
    "explorer_scores": (1320, 900, "dark", scores),
    "explorer_shots": (1320, 760, "light", examples),
    "explorer_phone": (390, 800, "light", phone),
}


def main(source: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        for name, (width, height, scheme, act) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.goto(Path(source).resolve().as_uri())
            page.wait_for_selector(".board[data-painted]")
            act(page)
            page.wait_for_timeout(300)
            shot = Image.open(BytesIO(page.screenshot())).convert("RGB")
            path = OUT / f"{name}.webp"
            shot.save(path, quality=QUALITY, method=6)
            print(path, path.stat().st_size)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
