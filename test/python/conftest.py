"""Settings of all tests."""

import signal

# What a shell starts in the background ignores Ctrl-C, and then Python raises no KeyboardInterrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
