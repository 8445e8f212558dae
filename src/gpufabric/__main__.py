"""`python -m gpufabric`: thin commands over the same calls that a program makes."""

import sys

from gpufabric.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
