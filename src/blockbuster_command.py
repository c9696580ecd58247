"""The command `blockbuster`: a module of its own, so that Ctrl-C is quiet during imports too."""

import os
import signal
import sys


def main() -> int:
    """Imports the package and runs its command line; the exit code."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from blockbuster_fusion.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


if __name__ == "__main__":
    sys.exit(main())
