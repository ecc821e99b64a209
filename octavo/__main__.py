"""`python -m octavo`: the command line."""

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
