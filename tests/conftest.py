"""How hard the property tests look: as CI can afford, or as long as `make soak` wants."""

import os

from hypothesis import settings

SOAK = bool(os.environ.get("TAMIS_SOAK"))

settings.register_profile("ci", max_examples=60, deadline=None)
settings.register_profile("soak", max_examples=3000, deadline=None)
settings.load_profile("soak" if SOAK else "ci")
