"""The parts of ``scanops.store``."""
