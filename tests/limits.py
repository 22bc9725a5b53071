"""Time limits after which a test treats something as hung.

Not a measure of speed: both are far above what a busy machine needs.
"""

PROCESS_SECONDS = 600  # a child process that imports or compiles
REPLY_SECONDS = 60  # one reply of a thread, socket or browser
