"""Questions made from captions, as COCO-QA was from those of COCO (Ren et al., 2015).

    exist   "is there a dog in the picture?"     yes: two captions name it; no: none implies it
    colour  "what colour is the shirt?"          one colour in front of the noun, and no other
    count   "how many dogs are in the picture?"  two captions agree; one: named, never in plural

Captions are incomplete: a thing that none of five people mentions may still be there, so "no" is
asked only of nouns whose whole group (a puppy is a dog is an animal) is absent. Every noun is asked
with "yes" as often as with "no", so that the question alone does not tell the answer.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eligo.captions import CaptionedImage
from eligo.vqa import fit_usual_answers

FAMILIES = ("exist", "colour", "count")
COLOURS = (
    "red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white", "gray",
)  # fmt: skip
NUMBERS = ("two", "three", "four", "five", "six")
_SAME = {"grey": "gray", "tan": "brown", "golden": "yellow", "blond": "yellow", "blonde": "yellow"}
# Nouns that may be asked about. After a colon: words that imply the noun, or may mean it.
_NOUNS = """
dog: puppy puppies poodle greyhound terrier retriever shepherd collie hound animal canine pet
cat: kitten animal pet
horse: pony animal
bird: duck seagull pigeon eagle goose geese chicken parrot animal
cow: bull calf cattle animal
sheep: lamb goat animal
fish: shark dolphin whale
man: guy male gentleman person people adult player boy crowd cowboy biker rider surfer skier climber
woman: lady ladies female girl person people adult bride mother crowd player
boy: child children kid kids toddler baby person people male man
girl: child children kid kids toddler baby person people female woman lady
child: children boy boys girl girls kid kids toddler baby babies
baby: infant toddler child
bike: bicycle motorcycle biker cyclist bmx motorbike bikes bicyclist
motorcycle: motorbike motorcyclist motocross bike dirtbike
car: vehicle truck jeep taxi van traffic automobile suv racecar
truck: vehicle pickup van jeep
bus: vehicle
train: subway
boat: canoe kayak raft ship sailboat
ball: football baseball basketball soccer tennis volleyball softball rugby cricket golf bowling
frisbee: disc disk
skateboard: skateboarder skateboarding skate
snowboard: snowboarder snowboarding
surfboard: surfer surfing surf surfs board
guitar: instrument band
camera: photographer photo picture
hat: cap helmet beanie headgear hood
helmet: biker cyclist football hockey rider motorcyclist headgear
sunglasses: glasses goggles shades
shirt: t-shirt tshirt top jersey sweater sweatshirt blouse uniform tank clothing dressed outfit
jacket: coat vest hoodie sweater sweatshirt suit clothing
dress: dresses gown skirt dressed costume clothing
jeans: pants trousers
umbrella: parasol
backpack: bag pack rucksack
bench: seat
table: desk
chair: seat stool
bed: blanket mattress
book: reading reads magazine
fence: railing gate rail fenced
tree: trees woods forest wooded branch leaves log bush bushes park
grass: grassy lawn field yard park backyard meadow
snow: snowy ice winter ski skier skiing snowboarder snowboard sled slope
beach: sand sandy shore ocean coast sea surf
water: ocean lake river pool sea wave beach stream pond puddle waterfall fountain swimming surf
mountain: mountains hill cliff peak rocky hills slope
rock: rocks rocky cliff stone boulder mountain
building: buildings house store city shop urban
street: road sidewalk city traffic pavement
bridge: overpass
swing: swings swinging playground
slide: playground
fountain: water
flag: flags banner
fire: campfire flames bonfire
bottle: drink beer water
flower: flowers garden
window: windows glass
stick: branch twig
rope: leash cord harness tug
toy: ball doll stuffed
sign: signs banner
"""
_IRREGULAR = {"men": "man", "women": "woman", "children": "child", "people": "person"}
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)?")
_MASS = {"grass", "snow", "water", "fire"}
_COUNTED = {"dog", "man", "woman", "boy", "girl", "child", "horse", "bird", "bike", "car", "boat"}


@dataclass(frozen=True)
class Question:
    """A question on an image."""

    image: CaptionedImage
    family: str
    text: str
    answer: str


def _tables() -> tuple[dict[str, set[str]], dict[str, str]]:
    implied: dict[str, set[str]] = {}
    for line in _NOUNS.strip().splitlines():
        noun, _, others = line.partition(":")
        implied[noun] = {noun, *others.split()}
    singular = dict(_IRREGULAR)
    for noun in implied:
        ends = noun.endswith(("s", "sh", "ch", "x"))
        singular[f"{noun}es" if ends and noun != "jeans" else f"{noun}s"] = noun
    return implied, singular


_IMPLIED, _SINGULAR = _tables()


def _words(caption: str) -> list[str]:
    words: list[str] = _WORD.findall(caption.lower())
    return [_SAME.get(word, word) for word in words]


def _singular(word: str) -> str:
    return _SINGULAR.get(word, word)


def make_questions(images: Sequence[CaptionedImage], *, seed: int = 0) -> list[Question]:
    """Return the questions of all images, in their order; a pure function of images and seed."""
    rng = random.Random(seed)
    exist = _existence(images, rng)
    questions = [
        question
        for index, image in enumerate(images)
        for question in [*exist[index], *_colours(image), *_counts(image)]
    ]
    return _balanced_counts(questions, rng)


def _existence(images: Sequence[CaptionedImage], rng: random.Random) -> dict[int, list[Question]]:
    named = [_named(image) for image in images]
    absent = [_absent(image) for image in images]
    asked: dict[int, list[Question]] = defaultdict(list)
    places: dict[str, list[int]] = defaultdict(list)
    for index, nouns in enumerate(absent):
        for noun in nouns:
            places[noun].append(index)
    for noun in _IMPLIED:
        yes = [index for index, nouns in enumerate(named) if noun in nouns]
        count = min(len(yes), len(places[noun]))
        chosen = [(index, "yes") for index in rng.sample(yes, count)]
        chosen += [(index, "no") for index in rng.sample(places[noun], count)]
        article = "any" if noun in _MASS or noun == "jeans" else _article(noun)
        for index, answer in chosen:
            text = f"is there {article} {noun} in the picture?"
            text = text.replace("is there any jeans", "are there any jeans")
            asked[index].append(Question(images[index], "exist", text, answer))
    return asked


def _named(image: CaptionedImage) -> set[str]:
    """Return the nouns that at least two captions name."""
    counts = Counter(
        noun
        for caption in image.captions
        for noun in {_singular(word) for word in _words(caption)} & _IMPLIED.keys()
    )
    return {noun for noun, count in counts.items() if count >= 2}


def _absent(image: CaptionedImage) -> list[str]:
    """Return the nouns that no caption names or implies."""
    words = {word for caption in image.captions for word in _words(caption)}
    words |= {_singular(word) for word in words} | {word.removesuffix("s") for word in words}
    return [noun for noun, others in _IMPLIED.items() if not others & words]


def _plurals(image: CaptionedImage) -> set[str]:
    """Return the nouns that a caption has in plural."""
    words = {word for caption in image.captions for word in _words(caption)}
    return {_SINGULAR[word] for word in words & _SINGULAR.keys()}


def _colours(image: CaptionedImage) -> list[Question]:
    """Return a question for each noun with one colour in front of it, in singular only."""
    found: dict[str, set[str]] = defaultdict(set)
    for caption in image.captions:
        words = _words(caption)
        for before, colour, word in zip(["", *words], words, words[1:], strict=False):
            if colour in COLOURS and word in _IMPLIED:
                # "black and white dog" has two colours.
                found[word] |= {colour, "several"} if before == "and" else {colour}
    unclear = _plurals(image) | {noun for noun, colours in found.items() if len(colours) != 1}
    return [
        Question(image, "colour", f"what colour is the {noun}?", colour)
        for noun, colours in sorted(found.items())
        if noun not in unclear
        for colour in colours
    ]


def _counts(image: CaptionedImage) -> list[Question]:
    """Return a question for each noun with one number, in two captions at least."""
    numbers: dict[str, Counter[str]] = defaultdict(Counter)
    plural = _plurals(image)
    for caption in image.captions:
        words = _words(caption)
        for place, word in enumerate(words):
            if word not in NUMBERS:
                continue
            for later in words[place + 1 : place + 4]:  # "two small brown dogs"
                if later in _SINGULAR:
                    numbers[_singular(later)][word] += 1
                    break
    questions = []
    for noun in sorted(_COUNTED):
        if len(numbers[noun]) == 1 and numbers[noun].total() >= 2:
            answer = next(iter(numbers[noun]))
        elif not numbers[noun] and noun in _named(image) and noun not in plural:
            answer = "one"
        else:
            continue
        text = f"how many {_plural(noun)} are in the picture?"
        questions.append(Question(image, "count", text, answer))
    return questions


def _balanced_counts(questions: list[Question], rng: random.Random) -> list[Question]:
    """Keep as many questions with the answer "one" as with "two", for each noun."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for index, question in enumerate(questions):
        if question.family == "count" and question.answer == "one":
            by_text[question.text].append(index)
    dropped: set[int] = set()
    for text, ones in by_text.items():
        twos = sum(q.text == text and q.answer == "two" for q in questions if q.family == "count")
        if len(ones) > twos:
            dropped |= set(rng.sample(ones, len(ones) - twos))
    return [question for index, question in enumerate(questions) if index not in dropped]


def blind_accuracy(train: Iterable[Question], test: Iterable[Question]) -> dict[str, float]:
    """Return, by family, how often the usual answer to the question in `train` is right.

    For a question that `train` lacks, the usual answer of its family.
    """
    usual = fit_usual_answers((q.text, q.family, q.answer) for q in train)
    hits: dict[str, list[bool]] = defaultdict(list)
    for question in test:
        guess = usual(question.text, question.family)
        hits[question.family].append(guess == question.answer)
    return {family: sum(right) / len(right) for family, right in hits.items()}


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _plural(noun: str) -> str:
    plurals = {"man": "men", "woman": "women", "child": "children"}
    return plurals.get(noun, f"{noun}s")
