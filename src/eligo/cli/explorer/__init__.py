"""`eligo explore`: the page of a run, and the live tools, one for each family."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eligo.cli.explorer.own_tool import DType
    from eligo.explorer.tools import LiveTool


def live_tools(
    device: str, model: str | None = None, dtype: "DType" = "float32"
) -> "list[LiveTool]":
    """Return the live tools of the shipped models, loaded on first use; or that of a `model`."""
    if model is not None:
        from eligo.cli.explorer.own_tool import own_tool

        return [own_tool(model, device, dtype)]
    from eligo.cli.explorer.patches_tool import patches_tool
    from eligo.cli.explorer.pixels_tool import pixels_tool
    from eligo.cli.explorer.shots_tool import shots_tool
    from eligo.cli.explorer.tokens_tool import tokens_tool

    tools = (make(device) for make in (tokens_tool, patches_tool, pixels_tool, shots_tool))
    return [tool for tool in tools if tool is not None]
