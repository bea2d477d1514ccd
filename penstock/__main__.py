"""`python -m penstock`."""

from .cli import main

raise SystemExit(main())
