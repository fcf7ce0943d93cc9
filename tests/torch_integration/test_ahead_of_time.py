"""Programs that were compiled or exported, run by a process that has imported torch and scanops and no more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import scanops
from tests.scripts import ran
from tests.torch_integration.compilers import QUICKLY

LOADS = """
import sys
import torch, scanops
folder, package, exported, traced = sys.argv[1:]
x, keep, expected = torch.load(f"{folder}/data.pt")
aot, graph = torch._inductor.aoti_load_package(package), torch.export.load(exported).module()
for program in (aot, graph, torch.jit.load(traced)):
    torch.testing.assert_close(tuple(program(x, keep)), expected)
    with scanops.emulate(), scanops.policy("never"):
        try:
            program(x, keep)
        except RuntimeError as problem:  # the operation asks for kernels, like any call; AOTInductor may print why
            print(problem, file=sys.stderr)
        else:
            raise AssertionError("who has computed this?")
print("right")
"""


class Model(torch.nn.Module):
    """A scan with one result and one with two, between what a compiler fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.scan = scanops.nn.LinearRecurrence(dim=1)
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.0, 6))

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Results, indices and what goes on from lines."""
        h = self.scan(torch.sigmoid(x), x * self.weight)
        (values, indices), final = scanops.cummax(h * 2, 1, mask=keep, initial=0.5, return_final=True)
        return values + 1, indices, final


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_packages_run_where_scanops_is_imported(tmp_path: Path) -> None:
    """AOTInductor's, torch.export's and torch.jit's, with more lines than they were made with."""
    model, rows = Model().eval(), torch.export.Dim("rows", min=2)
    generator = torch.Generator().manual_seed(0)
    x, other = torch.rand(3, 6, generator=generator), torch.rand(5, 6, generator=generator)
    with torch.no_grad():
        program = torch.export.export(model, (x, x > 0.3), dynamic_shapes=({0: rows}, {0: rows}))
        package = str(tmp_path / "model.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=QUICKLY)
        torch.export.save(program, tmp_path / "exported.pt2")
        torch.jit.trace(model, (x, x > 0.3)).save(tmp_path / "traced.pt")
        torch.save((other, other > 0.3, model(other, other > 0.3)), tmp_path / "data.pt")
    told = (tmp_path, package, tmp_path / "exported.pt2", tmp_path / "traced.pt")
    done = ran(sys.executable, "-c", LOADS, *told, SCANOPS_STORE=str(tmp_path / "store"))
    assert done.stdout.strip() == "right"
    assert done.stderr.count("under the policy never") >= 3
