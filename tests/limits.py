"""How long a test waits before it calls something hung.

Never a measure of speed: both are far above what a busy machine needs.
"""

PROCESS_SECONDS = 600  # a child process, which imports or compiles
REPLY_SECONDS = 60  # a thread, a socket or a browser, for one small thing
