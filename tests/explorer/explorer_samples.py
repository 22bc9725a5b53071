"""Sample records of every kind, built without a model."""

from dataclasses import replace

import torch
from PIL import Image, ImageDraw

from eligo.explorer.record import Answer, ExplorerRecord, Grid, Item, Key, Stage
from eligo.selection import Selection

HOSTILE = "</script><script>document.title='owned'</script><!-- <img src=x onerror=alert(1)> &amp;"
SIDE = 12


def picture(number: int = 0, size: tuple[int, int] = (240, 240)) -> Image.Image:
    """A wall, a floor and a few objects; `number` shifts the colours."""
    wide, high = size
    image = Image.new("RGB", size, (196, 200, 208))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, high * 0.62, wide, high), fill=(150, 138, 128))
    colours = [(214, 69, 65), (58, 110, 201), (240, 180, 41), (61, 153, 102)]
    red, blue, yellow, green = (colours[(at + number) % 4] for at in range(4))
    draw.ellipse((wide * 0.12, high * 0.42, wide * 0.4, high * 0.72), fill=red)
    draw.rectangle((wide * 0.55, high * 0.25, wide * 0.85, high * 0.7), fill=blue)
    draw.polygon(
        [(wide * 0.4, high * 0.9), (wide * 0.6, high * 0.9), (wide * 0.5, high * 0.65)],
        fill=yellow,
    )
    draw.ellipse((wide * 0.7, high * 0.8, wide * 0.8, high * 0.9), fill=green)
    return image


def near(row: float, column: float, side: int = SIDE, width: float = 2.5) -> torch.Tensor:
    """Scores that fall off with the distance from a cell, plus a small ripple."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    square = (rows - row) ** 2 + (columns - column) ** 2
    ripple = torch.sin(rows * 1.7 + columns * 2.3) * 0.02
    return (torch.exp(-square / (2 * width**2)) + ripple).flatten().float()


def merged(scores: torch.Tensor, budget: int, side: int = SIDE) -> Selection:
    """Keeps the best; every other cell is folded into its two nearest kept cells."""
    kept = Selection.top_k(scores, budget).indices
    places = torch.stack([torch.arange(side * side) // side, torch.arange(side * side) % side], 1)
    away = torch.cdist(places[kept].float(), places.float())  # (kept, candidates)
    first, second = away.topk(2, dim=0, largest=False).indices
    weights = torch.zeros(budget, side * side)
    weights[second, torch.arange(side * side)] = 0.25
    weights[first, torch.arange(side * side)] = 0.75
    weights[:, kept] = torch.eye(budget)
    return Selection(kept, scores, torch.ones(side * side, dtype=torch.bool), weights)


def pruned(title: str = "What colour is the ball?") -> ExplorerRecord:
    """A merger and two cuts, as inside a language model."""
    grid = Grid("image", SIDE, SIDE)
    first = merged(near(6.5, 3) + 0.6 * near(5.5, 8.5), 64)
    reached = first.in_order().indices
    second = Selection.top_k(near(6.5, 3)[reached], 24)
    last = reached[second.in_order().indices]
    third = Selection.top_k(near(6.5, 3.2)[last], 9)
    return ExplorerRecord(
        title=title,
        kind="tokens",
        query=title,
        stages=(
            Stage("merger, before the language model", first, grid, layer=0),
            Stage("pruner", second, grid, layer=2, candidates=tuple(reached.tolist())),
            Stage("pruner", third, grid, layer=8, candidates=tuple(last.tolist())),
        ),
        pictures={"image": picture()},
        answers=(
            Answer("whole model", "red", True),
            Answer("pruned", "red", True),
            Answer("at random", "blue", False),
        ),
        cost={
            "vision tokens": "144 > 64 > 24 > 9",
            "language model": "1.9 > 0.42 GFLOPs",
            "key-value cache": "3.1 > 0.6 MiB",
            "time to the first token": "11 ms, median",
        },
        note="Nine tokens are left, all of them on the ball.",
    )


def matched() -> ExplorerRecord:
    """A caption: kept patches, patches matched by each word, and search results."""
    grid = Grid("image", SIDE, SIDE)
    words = ("a", "red", "ball", "beside", "a", "blue", "box")
    spots = [(3, 3), (6.5, 3), (7, 3), (8, 6), (3, 9), (5, 8), (6, 8.5)]
    scores = torch.stack([near(*spot, width=1.6) for spot in spots])
    pictures = {"image": picture()} | {f"result {n + 1}": picture(n) for n in range(5)}
    names = ("room 1", "room 7", "room 3", "room 12", "room 4")
    found = torch.tensor([0.83, 0.61, 0.42, 0.11, -0.2])
    return ExplorerRecord(
        title="A red ball beside a blue box",
        kind="patches",
        query="a red ball beside a blue box",
        stages=(
            Stage("patches kept for the text", Selection.top_k(near(6.5, 5.5, width=4), 72), grid),
            Stage(
                "what each word matched",
                Selection.top_k(scores, 9),
                grid,
                rows=words,
                note="Marked are the nine patches that add most.",
            ),
            Stage(
                "images found, best first",
                Selection.top_k(found, 1),
                tuple(Item(name, f"result {n + 1}") for n, name in enumerate(names)),
            ),
        ),
        pictures=pictures,
        cost={"patches": "144 > 72 kept", "matching": "0.4 ms"},
    )


def guided() -> ExplorerRecord:
    """Attention maps of tags, over an image and its depth."""
    maps = torch.stack([near(6.5, 3, 15), near(6, 9, 15), near(13, 7, 15)]) / 60
    first = maps.argmax(0) == torch.arange(3)[:, None]
    ranked = torch.where(first, maps, -torch.inf)
    strongest = Selection.top_k(ranked, first.sum(-1), first)
    selection = Selection(strongest.indices, maps, torch.ones_like(first))
    depth = picture().convert("L").convert("RGB")
    tags = ("ball", "box", "floor")
    return ExplorerRecord(
        title="ball, box, floor",
        kind="pixels",
        query="ball, box, floor",
        stages=(
            Stage("where each word is heard", selection, Grid("image", 15, 15), rows=tags),
            Stage("words by attention", Selection.top_k(maps.mean(-1), 3), tuple(map(Item, tags))),
        ),
        pictures={
            "image": picture(),
            "depth": depth,
            "labels": picture(2),
        },
        answers=(Answer("without words", "0.41 mIoU"), Answer("with words", "0.72 mIoU")),
        legends={"labels": (Key("#f0b429", "ball  61.5 %"), Key("#3d9966", "box  38.5 %"))},
    )


def prompted(count: int = 40) -> ExplorerRecord:
    """Four examples chosen for a prompt; they are not the four with the highest scores."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    scores = torch.linspace(0.95, -0.3, count)[shuffled]
    best = scores.argsort(descending=True)
    picks = best[torch.tensor([0, 2, 5, 1])]
    items = tuple(
        Item(f"What is a dax? Example {at}: a dax is a red ball.", f"demo {at % 4}", f"id {at}")
        for at in range(count)
    )
    return ExplorerRecord(
        title="Which dax is nearer?",
        kind="shots",
        query="Which dax is nearer to the wug?",
        stages=(
            Stage("pointer", Selection(picks, scores, torch.ones(count, dtype=torch.bool)), items),
            Stage("nearest", Selection.top_k(scores, 4), items),
        ),
        pictures={"question": picture(3)} | {f"demo {at}": picture(at) for at in range(4)},
        answers=(Answer("zero-shot", "left", False), Answer("pointer", "right", True)),
    )


def hostile() -> ExplorerRecord:
    """Texts with markup, right-to-left scripts and emoji."""
    items = (Item(HOSTILE), Item("مرحبا بالعالم", note="שלום"), Item("👩🏽‍🚀🧪"), Item(""))
    scores = torch.tensor([0.5, -torch.inf, 0.1, 0.0])
    mask = torch.tensor([True, True, True, False])
    return ExplorerRecord(
        title=HOSTILE,
        kind="<b>kind</b>",
        query="ما لون الكرة؟ 🎈",
        stages=(
            Stage(HOSTILE, Selection.top_k(scores, 2, mask), items, note=HOSTILE),
            Stage("one cell", Selection.top_k(torch.zeros(1), 1), Grid("image", 1, 1)),
            Stage(
                "nothing kept",
                Selection.top_k(torch.zeros(1, 4), 0),
                Grid("image", 2, 2),
                rows=("סגול",),
            ),
        ),
        pictures={"image": picture(size=(40, 20))},
        answers=(Answer(HOSTILE, HOSTILE, False), Answer("🤖", "", None)),
        cost={HOSTILE: HOSTILE},
        note=HOSTILE,
    )


def large(side: int = 100) -> ExplorerRecord:
    """Ten thousand cells."""
    stage = Stage("a great many", merged(near(40, 60, side, 20), 500, side), Grid("i", side, side))
    return ExplorerRecord("Ten thousand cells", "large", "many", (stage,), {"i": picture()})


def bare() -> ExplorerRecord:
    """No picture, no answer, no cost."""
    stage = Stage("words", Selection.top_k(torch.arange(3.0), 1), (Item("a"), Item("b"), Item("c")))
    return ExplorerRecord("Items only", "other", "nothing to see", (stage,))


def wordy() -> ExplorerRecord:
    """Stages without a layer, with names wider than a phone screen."""
    name = "a stage that nobody could name in fewer words than these"
    stages = tuple(replace(stage, name=name, layer=None) for stage in pruned().stages)
    return replace(pruned("Long names"), kind="long", stages=stages, answers=(), cost={}, note="")


def tiled() -> ExplorerRecord:
    """Two tiles, each pruned at two layers, and a baseline on one of them."""
    first = [merged(near(3 + 4 * tile, 4), 32) for tile in range(2)]
    reached = [choice.in_order().indices for choice in first]
    second = [Selection.top_k(near(6, 6)[left], 8) for left in reached]
    grids = [Grid(f"tile {tile + 1}", SIDE, SIDE) for tile in range(2)]
    places = [tuple(left.tolist()) for left in reached]
    stages = (
        *(Stage("merger", first[at], grids[at], layer=0) for at in range(2)),
        *(Stage("cut", second[at], grids[at], layer=4, candidates=places[at]) for at in range(2)),
        Stage("at random", Selection.top_k(near(1, 1), 8), grids[0]),
    )
    pictures = {f"tile {tile + 1}": picture(tile) for tile in range(2)}
    return ExplorerRecord("Two tiles", "tiles", "two tiles", stages, pictures)


def untouched() -> ExplorerRecord:
    """A stage that keeps all, a later layer that continues it, and baselines that do not."""
    grid, some = Grid("image", 4, 4), Selection.top_k(torch.arange(16.0), 4)
    whole = Selection.top_k(torch.zeros(16), 16)
    stages = (
        Stage("whole", whole, grid, layer=0),
        Stage("cut", some, grid, layer=4),
        Stage("all", whole, grid),
        Stage("baseline", some, grid),
        Stage("baseline inside", some, grid, layer=0),
    )
    return ExplorerRecord("Nothing dropped at first", "tokens", "?", stages, {"image": picture()})


def all_records() -> list[ExplorerRecord]:
    known = [pruned(), matched(), guided(), prompted(), hostile(), large(), bare()]
    return [*known, wordy(), tiled()]


def fate_of(record: ExplorerRecord, cell: int, step: int) -> str:
    """The tooltip expected for a cell, computed stage by stage from the selections."""
    home, folded = cell, False
    for stage in record.stages[: step + 1]:
        places = list(stage.candidates or range(len(stage.over)))
        if home not in places:
            return "dropped"
        at, choice = places.index(home), stage.selection
        if bool(choice.kept_mask[at]):
            continue
        if choice.assignment is None or not choice.assignment[:, at].any():
            return "folded, then dropped" if folded else "dropped"
        home = places[int(choice.indices[choice.assignment[:, at].argmax()])]
        folded = True
    return "folded" if folded else "kept"
