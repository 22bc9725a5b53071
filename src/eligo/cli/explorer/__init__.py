"""`eligo explore`: the page of a run, and the live tools, one for each family."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eligo.explorer.tools import LiveTool


def live_tools(device: str) -> "list[LiveTool]":
    """Return the live tools of the shipped models; models are loaded on first use."""
    from eligo.cli.explorer.patches_tool import patches_tool
    from eligo.cli.explorer.pixels_tool import pixels_tool
    from eligo.cli.explorer.shots_tool import shots_tool
    from eligo.cli.explorer.tokens_tool import tokens_tool

    tools = (make(device) for make in (tokens_tool, patches_tool, pixels_tool, shots_tool))
    return [tool for tool in tools if tool is not None]
