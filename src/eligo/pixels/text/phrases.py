"""Prompt templates around names for a language model.

Departure from the original: the mean over the templates is normalised again, so that all words have
unit length.
"""

TEMPLATES = ("a photo of {}", "an image of {}", "a photo of {} in a room")
"""`{}` is the name with its article. Sentences get no template."""


def readable(name: str) -> str:
    """Return a class name with spaces: `night_stand` becomes `night stand`."""
    return " ".join(name.replace("_", " ").split())


def with_article(name: str) -> str:
    """Return a name with its article, by the first letter.

    >>> with_article("night_stand"), with_article("umbrella")
    ('a night stand', 'an umbrella')
    """
    words = readable(name)
    return f"{'an' if words[:1].lower() in tuple('aeiou') else 'a'} {words}"
