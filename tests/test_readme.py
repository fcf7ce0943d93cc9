"""README.md says what the committed results say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_benchmark_table_is_current() -> None:
    command = [sys.executable, "benchmarks/readme.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        links = [part.split(")", 1)[0] for part in text.split("](")[1:]]
        missing = [link for link in links if "://" not in link and not (ROOT / link.split("#")[0]).exists()]
        assert not missing, f"{name}: {missing}"
