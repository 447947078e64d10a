"""``python -m npquant``: the command ``npquant``."""

import sys

from npquant.cli import main

sys.exit(main())
