"""What is written around a name before a language model reads it. Section 5 of the specification.

Departure from the original: the mean over the templates is normalised again, so that all words have
the same length however much their templates agree.
"""

TEMPLATES = ("a photo of {}", "an image of {}", "a photo of {} in a room")
"""`{}` is the name with its article. Sentences are read as they are."""


def readable(name: str) -> str:
    """A class name as one says it: `night_stand` is a night stand."""
    return " ".join(name.replace("_", " ").split())


def with_article(name: str) -> str:
    """`a desk`, `an umbrella`; by the first letter.

    >>> with_article("night_stand"), with_article("umbrella")
    ('a night stand', 'an umbrella')
    """
    said = readable(name)
    return f"{'an' if said[:1].lower() in tuple('aeiou') else 'a'} {said}"
