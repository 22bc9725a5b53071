"""Idefics3: built like SmolVLM."""

from eligo.tokens.hosts.smolvlm import SmolVLM


class Idefics3(SmolVLM):
    """Has the same parts under the same names."""

    family = "Idefics3"
