"""Runs the command line from source: `python -m ssdlm`."""

import sys

from ssdlm.cli import main

if __name__ == "__main__":
    sys.exit(main())
