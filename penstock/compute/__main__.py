"""`python -m penstock.compute`: the process of a runner."""

import sys

from .runner_process import main

sys.exit(main())
