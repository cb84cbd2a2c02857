"""Whether the tests search long and at random, as `make soak` wants."""

import os

SOAK = bool(os.environ.get("TAMIS_SOAK"))
