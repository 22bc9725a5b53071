"""The tools of the live explorer, one for each family whose model comes with eligo."""

from eligo.report.explorer.live import LiveTool


def live_tools(device: str) -> list[LiveTool]:
    """What can be tried; scenes are drawn now, each model is read when it is first asked."""
    from eligo.cli.live.demos import demos_tool
    from eligo.cli.live.patches import patches_tool
    from eligo.cli.live.pixels import pixels_tool
    from eligo.cli.live.tokens import tokens_tool

    made = (make(device) for make in (tokens_tool, patches_tool, pixels_tool, demos_tool))
    return [tool for tool in made if tool is not None]
