"""README.md says what the committed results say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_benchmark_table_is_current() -> None:
    command = [sys.executable, "-m", "benchmarks", "readme", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_link_of_the_documents_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]
    pages += sorted(ROOT.glob("docs/**/*.md"))
    for name in pages:
        text = re.sub(r"^```.*?^```", "", name.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        links = [part.split(")", 1)[0] for part in text.split("](")[1:]]
        missing = [link for link in links if "://" not in link and not (name.parent / link.split("#")[0]).exists()]
        assert not missing, f"{name}: {missing}"
