"""The seven ways to compare pixels and words that the temperature study puts side by side.

The SAM attention guide promises six presets and defines four (1-4); 5 and 6 complete the grid, 0
is without words. A preset is a set of changes of a config: over the YAML file, under the flags.
"""

from typing import Any

_COSINE, _DOT = 14.285714, 1.0


def _side(side: str, use_cosine: bool, learnable_temp: bool) -> dict[str, Any]:
    return {
        f"sam.{side}.use_cosine": use_cosine,
        f"sam.{side}.learnable_temp": learnable_temp,
        f"sam.{side}.logit_init": _COSINE if use_cosine else _DOT,
    }


PRESETS: dict[int, dict[str, Any]] = {
    0: {"sam.decoder.stages": (), "sam.encoder.stages": ()},
    1: _side("decoder", True, True) | _side("encoder", False, False),
    2: _side("decoder", True, True) | _side("encoder", True, True),
    3: _side("decoder", False, False) | _side("encoder", False, False),
    4: _side("decoder", False, False) | _side("encoder", True, True),
    5: _side("decoder", True, False) | _side("encoder", True, False),
    6: _side("decoder", False, True) | _side("encoder", False, True),
}
"""Changes of a config, by the number of the preset; 1 is the default."""
