"""One file a strategy: its numbers, and how they are chosen. ``scanops.codegen.planner`` picks among them."""
