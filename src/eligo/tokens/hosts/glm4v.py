"""GLM-4V (GLM-4.1V): images and positions as in Qwen2-VL, with a tower of its own."""

from eligo.tokens.hosts.qwen2_vl import Qwen2VL


class Glm4V(Qwen2VL):
    """Its tower ends with a convolution and a projector."""

    family = "GLM-4V"
    video_inputs = ()  # its frames are images between markers
