"""``python -m aiohttp_hardened`` is the command line."""

import sys

from aiohttp_hardened._cli import main

if __name__ == "__main__":
    sys.exit(main())
