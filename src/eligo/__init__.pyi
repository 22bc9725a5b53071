from . import config as config
from . import errors as errors
from . import losses as losses
from . import nn as nn
from . import ops as ops
from . import patches as patches
from . import pixels as pixels
from . import report as report
from . import scenes as scenes
from . import selection as selection
from . import shots as shots
from . import tokens as tokens
from . import train as train
from .selection import Selection as Selection

__version__: str
