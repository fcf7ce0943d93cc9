"""A laboratory without a GPU: times come from a table, with a noise that repeats."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from scanops.codegen.plan import Plan

__all__ = ["FakeLaboratory"]


class FakeLaboratory:
    """Plans that take ``microseconds(plan)``, give or take ``noise``."""

    def __init__(
        self,
        microseconds: Callable[[Plan], float],
        *,
        noise: float = 0.0,
        broken: Callable[[Plan], bool] = lambda plan: False,
        wrong: Callable[[Plan], bool] = lambda plan: False,
    ) -> None:
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
        found: dict[Plan, list[float]] = {plan: [] for plan in plans}
        for _ in range(rounds):
            for plan in plans:
                found[plan].append(self.microseconds(plan) * (1 + self._random.uniform(-1, 1) * self.noise))
        return found
