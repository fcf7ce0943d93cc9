"""The documentation site as a reader gets it: search, a page for each public name, and pages without raw Markdown."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import pytest

import scanops
from tests.scripts import ROOT, ran

pytest.importorskip("mkdocs")
SOURCE = pytest.importorskip("tools.site", exc_type=ImportError).REPOSITORY  # which needs griffe
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    typed = ROOT / "build" / "typed"
    if not (typed / "scanops" / "api.py").exists():
        ran("make", "linked", folder=ROOT)
    folder = tmp_path_factory.mktemp("site")
    path = os.pathsep.join((str(typed), os.environ.get("PYTHONPATH", "")))
    ran(sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", folder, folder=ROOT, PYTHONPATH=path)
    return folder


WORDS = {  # what people type: the page that comes first
    "GAE": "uses/advantages.html",
    "mamba": "uses/mamba-models.html",
    "selective_scan_fn": "reference/compat.selective_scan_fn.html",
    "exponential moving average": "uses/moving-average.html",
    "top-p": "uses/top-p.html",
    "mixture of experts": "uses/expert-positions.html",
    "cu_seqlens": "uses/cu-seqlens.html",
    "NeRF": "uses/transmittance.html",
    "integral image": "uses/integral-images.html",
    "biquad": "uses/audio-filters.html",
    "cumsum": "reference/cumsum.html",
    "patch_torch": "reference/patch_torch.html",
    "glossary": "glossary.html",
    "bfloat16 training": "recurrences.html",
    "deploy without compiler": "deployment.html",
    "custom operator": "own-operators.html",
    "replace torch.cumsum": "quickstart.html",
    "decoding": "uses/mamba-models.html",
    "why is it slow": "troubleshooting.html",
    "report a bug": "troubleshooting.html",
    "shard sequence": "distributed.html",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_search(site: Path) -> None:
    script = Path(__file__).with_name("search.mjs")
    found = json.loads(ran("node", script, site, *WORDS, "reverse").stdout)
    first = {word: pages[0].partition("#")[0] if pages else "" for word, pages in found.items()}
    assert {word: first[word] for word in WORDS} == WORDS
    assert not any(page.startswith("repository/generated") for pages in found.values() for page in pages)


def test_a_page_for_each_public_name(site: Path) -> None:
    modules = {name: getattr(scanops, name) for name in ("compat", "distributed", "errors", "nn")}
    names = {*scanops.__all__} - {"__version__"}
    names |= {f"{name}.{each}" for name, module in modules.items() for each in module.__all__}
    for name in names:
        text = (site / f"reference/{name}.html").read_text(encoding="utf-8")
        assert f"<title>scanops.{name} - scanops</title>" in text, name
        assert f'<a class="source" href="{SOURCE}/blob/main/' in text, name
    text = (site / "reference/cumprod.html").read_text(encoding="utf-8")
    assert all(f'href="#{each}"' in text for each in ("parameters", "returns", "raises", "example"))  # in the contents
    rows = re.findall(r"<tr[^>]*>\s*<td[^>]*>\s*<code>(\w+)</code>", text)
    assert rows[:5] == ["x", "dim", "mask", "reverse", "exclusive"] and "options" not in rows
    text = (site / "reference/linear_scan.html").read_text(encoding="utf-8")
    assert 'href="./errors.UnsupportedRequest.html"><code>UnsupportedRequest</code></a>' in text
    fields = (site / "reference/ScanSpec.html").read_text(encoding="utf-8")
    assert "items in a line" in fields and "the scanned dimension" in fields


def test_no_page_shows_raw_markdown(site: Path) -> None:
    """Rows of tables, headings and links that a blank line or an indent has broken."""
    for page in sorted(site.rglob("*.html")):
        text = re.sub(r"<(pre|code|script|style|svg)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        lines = [line.strip() for line in unescape(re.sub(r"<[^>]+>", "\n", text)).splitlines()]
        raw = [line for line in lines if re.match(r"\|.*\||#{1,4} \w|.*\]\([\w./#-]+\)", line)]
        assert not raw, (page.relative_to(site), raw)


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    """Pages open from a folder without a network; links to other hosts are for readers to follow."""
    for page in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href|srcset)=\"(https?:[^\"]+)", text)
        assert not loaded and "url(http" not in text, page
        assert 'data-md-component="source"' not in text, page  # asks GitHub for stars
    text = (site / "index.html").read_text(encoding="utf-8")
    assert scanops.__version__ in text and text.count('class="md-button') == 2
    assert "unpkg.com" not in text and (site / "javascripts/worker.js").exists()
