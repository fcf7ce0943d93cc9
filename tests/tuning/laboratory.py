"""A laboratory without a GPU: times come from a function, with a noise that repeats; and the entry of a plan."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from scanops.codegen.plan import Plan
from scanops.tuning import Entry, Measured

GPU = "a GPU"


def entry(plan: Plan) -> Entry:
    """A tuning entry for this plan, measured on ``GPU`` at 1.2 times the planner's speed."""
    return Entry.of(plan, GPU, Measured(lines=10, default_us=12.0, tuned_us=10.0, rounds=45))


class FakeLaboratory:
    """Plans that take ``microseconds(plan)``, give or take ``noise``."""

    def __init__(
        self,
        microseconds: Callable[[Plan], float],
        *,
        noise: float = 0.0,
        broken: Callable[[Plan], bool] = lambda plan: False,
        wrong: Callable[[Plan], bool] = lambda plan: False,
        lines: int = 10,
    ) -> None:
        self.lines = lines
        self.microseconds, self.noise, self.broken, self.wrong = microseconds, noise, broken, wrong
        self.asked: list[tuple[int, int]] = []  # (plans, rounds) of each comparison
        self._random = random.Random(7)

    def build(self, plans: Sequence[Plan], said: Callable[[int, int], object]) -> Mapping[Plan, str]:
        said(len(plans), len(plans))
        return {plan: "spills" for plan in plans if self.broken(plan)}

    def agrees(self, plan: Plan) -> bool:
        return not self.wrong(plan)

    def times(self, plans: Sequence[Plan], rounds: int) -> Mapping[Plan, list[float]]:
        self.asked.append((len(plans), rounds))

        def once(plan: Plan) -> float:
            return self.microseconds(plan) * (1 + self._random.uniform(-1, 1) * self.noise)

        return {plan: [once(plan) for _ in range(rounds)] for plan in plans}
