"""Pages of the documentation site that no file of docs/ holds, and its links: a hook of mkdocs, see mkdocs.yml.

``docs/`` reads well without the site, so its pages link to files of the repository by relative paths. Such a link leads
to a copy below ``repository/``: Markdown as a page, text as a page with highlighting, anything else as it is. The
reference is made of docstrings and of the commands; a public name without a docstring is an error.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.toc import AnchorLink

import scanops
from scanops.keywords import ABSENT  # the module needs no torch

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/scanops/scanops"
PACKAGES = "build/typed"  # the packages in the folders of their import names
REFERENCE = {  # sections of the reference, and the public names that have a page of their own in it
    "Scans": "cumsum cumprod cummax cummin logcumsumexp linear_scan scan reduce_by_key patch_torch",
    "Operators": "operator check_operator",
    "Kernels": "ScanSpec make_plan Plan generate export compile prepare record calls policy Kernel emulate",
    "Modules": "nn distributed compat errors",  # a page for each of their own names, and one for the module
}
FIELDS = ("ScanSpec",)  # classes whose fields have comments in place of docstrings
COMMANDS = """# Commands

::: mkdocs-click
    :module: scanops.cli
    :command: main
    :prog_name: scanops
    :depth: 1
    :style: plain
"""
UNINDEXED = ("pages.md",)  # beside copies of sources: what only names other pages would bury them
BOOSTED = {"own-operators.md": 2}  # found before pages that name their subject in passing
FIRST = ("CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")  # pages of the navigation
LANGUAGES = {".j2": "cpp", ".cu": "cpp", ".cuh": "cpp", ".h": "cpp", ".cpp": "cpp", ".py": "python", ".toml": "toml"}
SHIM, SHIM_HERE = "https://unpkg.com/iframe-worker/shim", "javascripts/worker.js"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)")
DOCTEST = re.compile(r"(?:^ *>>> .*\n?(?: *\S.*\n?)*)+", re.MULTILINE)
CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
MATH = re.compile(r"^( *)```math\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
# Parts of a docstring that are none of those which Google's style knows.
PART = re.compile(r"^(Accuracy|Example|Gradient|Key|Shape|Source|When to use it):\s+", re.MULTILINE)
SECTION = '<p><span class="doc-section-title">{}:</span></p>'
EXCEPTION = r"(?<![\w>])<code>({})</code>(?!</a>)"
STACKED = ("from-torch.md",)  # pages whose tables have a column that a narrow screen would hide


class Doctests(griffe.Extension):
    """Examples of docstrings as blocks of code, since Markdown takes ``>>>`` for a quotation; fields callers pass."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Leave out fields that follow from others: nobody passes them."""
        for name, member in list(cls.members.items()):
            if not member.is_alias and member.is_attribute and str(getattr(member, "value", "")) == "late_field()":
                del cls.members[name]

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the keywords that functions pass on to another one, as ``help`` does, without importing any."""
        for module in (each for each in walk_modules(pkg) if "list_keywords_of" in each.members):
            for function in module.functions.values():
                for each in function.decorators:
                    if each.callable_path.endswith(".list_keywords_of") and isinstance(each.value, griffe.ExprCall):
                        other, *without = (str(argument) for argument in each.value.arguments)
                        absent = eval(f"({','.join(without)},)", {"ABSENT": ABSENT}) if without else ()
                        list_keywords(function, module[other], absent)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring:
            text = obj.docstring.value.replace("  # doctest: +SKIP", "")
            text = DOCTEST.sub(lambda found: f"```pycon\n{dedent(found[0])}\n```\n", text)
            text = MATH.sub(lambda found: formula(found[2]), text)
            obj.docstring.value = PART.sub(lambda found: f"{SECTION.format(found[1])}\n\n", text)


def walk_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """Yield a module and all below it."""
    yield module
    for each in module.modules.values():
        if not each.is_alias:
            yield from walk_modules(each)


def list_keywords(function: griffe.Function, other: Any, without: tuple[str, ...]) -> None:
    """Put the keywords of ``other``, ``without`` some, behind a function's own, as ``list_keywords_of`` does."""
    kinds = griffe.ParameterKind
    keywords = [each for each in other.parameters if each.kind is kinds.keyword_only and each.name not in without]
    own = [each for each in function.parameters if each.kind is not kinds.var_keyword]
    every = {each.name: each for each in (*own, *keywords)}
    function.parameters = griffe.Parameters(*sorted(every.values(), key=lambda each: each.name == "out"))


def on_config(config: Any) -> Any:
    """Put the pages of the reference into the navigation, behind its index, and the version into the header."""
    config.extra["version"] = scanops.__version__
    package = load_package()
    sections: list[Any] = ["reference/index.md"]
    for title, names in REFERENCE.items():
        pages: list[Any] = []
        for name in names.split():
            members = package[name].exports or () if package[name].is_module else ()
            paths = [f"reference/{name}.md", *(f"reference/{name}.{each}.md" for each in members)]
            pages += [{f"scanops.{name}": paths}] if members else paths
        sections.append({title: pages})
    (reference,) = (each["Reference"] for each in config.nav if "Reference" in each)
    reference[:] = [{"API": sections} if "API" in each else each for each in reference]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the reference, and every file of the repository that a page links to, and what that links to."""
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + list(FIRST)
    for path in waiting:  # grows
        shown = text_of(path)
        waiting += sorted({each for each in targets(path, shown or "") if outside(each)} - set(waiting))
        if outside(path):
            found: Any = {"abs_src_path": str(ROOT / path)} if shown is None else {"content": shown}
            files.append(File.generated(config, place(path), **found))
    for page, text in (*reference(), ("commands", COMMANDS)):
        files.append(File.generated(config, f"reference/{page}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point the links of a page that leave docs/ to the copies."""
    uri = page.file.src_uri
    origin = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"
    if uri in UNINDEXED or (outside(origin) and origin not in FIRST):
        page.meta["search"] = {"exclude": True}
    elif uri in BOOSTED:
        page.meta["search"] = {"boost": BOOSTED[uri]}

    def move_link(found: re.Match[str]) -> str:
        return posixpath.relpath(place(target(origin, found[1])), posixpath.dirname(uri) or ".")

    markdown = MATH.sub(lambda found: formula(found[2]), markdown)
    if uri == "README.md":  # whose links on a host of repositories have no reference to lead to
        page.meta["title"] = "scanops"
        markdown = first_screen(markdown.replace("[**API**](operators/README.md)", "[**API**](reference/index.md)"))
    markdown = re.sub(r"^(```\w+) .*$", r"\1", markdown, flags=re.M)  # what a block needs is for its test
    return "".join(part if CODE.match(part) else LINK.sub(move_link, part) for part in CODE.split(markdown))


def first_screen(markdown: str) -> str:
    """Make the claim, the numbers and the links that the first page begins with a heading, figures and buttons."""
    claim = re.search(r"^\*\*(.*)\*\*$", markdown, re.MULTILINE)
    table = re.search(r"^(\|.*\|)\n\|[-|]+\|\n(\|.*\|)$", markdown, re.MULTILINE)
    links = re.search(r"^(\[[^]]+\]\([^)]+\)) (\[[^]]+\]\([^)]+\))$", markdown, re.MULTILINE)
    if claim is None or table is None or links is None:
        raise PluginError("docs/README.md: a claim, a table of numbers and two links are missing")
    pairs = zip(*(row.strip("|").split("|") for row in table.groups()), strict=True)
    figures = [f'<div markdown="span">**{number.strip()}** {words.strip()}</div>' for number, words in pairs]
    numbers = '<div class="numbers" markdown="1">\n' + "\n".join(figures) + "\n</div>"
    markdown = markdown.replace(links[0], f"{links[1]}{{ .md-button .md-button--primary }} {links[2]}{{ .md-button }}")
    markdown = markdown.replace(table[0], numbers).replace(claim[0], "")
    markdown = re.sub(r"(?<=README.md -->\n).*?(?=```sh)", "", markdown, count=1, flags=re.DOTALL)  # says the same
    return markdown.replace("# scanops\n", f"# {claim[1]} {{ .claim }}\n", 1)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Complete a page: links of exceptions and to sources, and the sections of a docstring in the table of contents."""
    uri = page.file.src_uri
    name = uri.removeprefix("reference/").removesuffix(".md")
    errors = set(load_package()["errors"].exports or ()) - {name.removeprefix("errors.")}
    folder = posixpath.relpath("reference", posixpath.dirname(uri) or ".")
    linked = re.compile(EXCEPTION.format("|".join(map(str, sorted(errors)))))
    parts = re.split(r"(<h\d.*?</h\d>|<pre.*?</pre>|<a .*?</a>)", html, flags=re.DOTALL)
    parts[::2] = [linked.sub(rf'<a href="{folder}/errors.\1.html"><code>\1</code></a>', each) for each in parts[::2]]
    html = "".join(parts)
    if uri.startswith("reference/") and name not in ("index", "commands"):
        html = with_source(with_sections(html, page), name)
    return f'<div class="stacked">\n{html}\n</div>' if uri in STACKED else html


def with_sections(html: str, page: Any) -> str:
    """Turn the titles of a docstring's sections into headings, which the table of contents lists."""
    own, children, rest = html.partition('<div class="doc doc-children">')
    (root,) = page.toc.items[:1]

    def head(found: re.Match[str]) -> str:
        anchor = found[1].lower().replace(" ", "-")
        root.children.append(AnchorLink(found[1], anchor, 2))
        return (
            f'<h2 id="{anchor}">{found[1]}<a class="headerlink" href="#{anchor}" title="Permanent link">&para;</a></h2>'
        )

    members = list(root.children)
    root.children.clear()
    own = re.sub(SECTION.format("([^<:]+)"), head, own)
    root.children.extend(members)
    return own + children + rest


def with_source(html: str, name: str) -> str:
    """Put a link to the lines of the repository behind the heading of a public name."""
    found = load_package()[name]
    found = found.final_target if found.is_alias else found
    path = Path(str(found.filepath)).resolve().relative_to(ROOT)
    lines = "" if found.is_module else f"#L{found.lineno}-L{found.endlineno}"
    link = f'<a class="source" href="{REPOSITORY}/blob/main/{path}{lines}">source</a>'
    return html.replace("</h1>", f"</h1>\n<p>{link}</p>", 1)


def formula(text: str) -> str:
    """A formula in LaTeX as MathML, which browsers draw by themselves."""
    made: str = convert(" ".join(text.split()), display="block")
    return f"\n{made}\n"


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Take the theme's script for search without a server from the site itself: nothing comes from another host."""
    return output.replace(SHIM, posixpath.relpath(SHIM_HERE, posixpath.dirname(page.url) or "."))


def on_post_template(output: str, **_: Any) -> str:
    """Do the same for 404.html."""
    return output.replace(SHIM, f"/{SHIM_HERE}")


def outside(path: str) -> bool:
    """Whether a file of the repository is not in docs/."""
    return not path.startswith("docs/")


def targets(path: str, text: str) -> Iterator[str]:
    """The files of the repository that the text of one links to."""
    for part in CODE.split(text) if path.endswith(".md") else ():
        yield from (target(path, link) for link in ([] if CODE.match(part) else LINK.findall(part)))


def target(path: str, link: str) -> str:
    """The file or folder that a link of a file leads to; a folder's README, if it has one."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{found}/README.md" if (ROOT / found / "README.md").exists() else found


def place(path: str) -> str:
    """Where the site has a file of the repository."""
    if not outside(path):
        return path.removeprefix("docs/")
    folder, text = (ROOT / path).is_dir(), text_of(path)
    ending = "/README.md" if folder else "" if text is None or path.endswith(".md") else ".md"
    return f"repository/{path}{ending}"


def text_of(path: str) -> str | None:
    """The Markdown that shows a file or a folder; None for one that is copied as it is."""
    file = ROOT / path
    if file.is_dir():
        names = "\n".join(f"* `{each.name}`" for each in sorted(file.iterdir()) if each.name != "__pycache__")
        return f"# {path}\n\n{names}\n"
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    if file.suffix in LANGUAGES:
        return f"# {path}\n\n````{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````\n"
    return None


@functools.cache
def load_package() -> griffe.Object | griffe.Alias:
    """The package as its sources describe it."""
    return griffe.load("scanops", search_paths=[ROOT / PACKAGES], resolve_aliases=True, try_relative_path=False)


def reference() -> Iterator[tuple[str, str]]:
    """Name and text of each page made of docstrings. Raises PluginError where one is missing."""
    package = load_package()
    listed = {name for names in REFERENCE.values() for name in names.split()}
    bare = [path for name in listed for path in undocumented(package[name])]
    if bare or (missing := set(scanops.__all__) - listed - {"__version__"}):
        raise PluginError(f"without a docstring: {bare}; not in REFERENCE of tools/site.py: {sorted(missing)}")
    yield "index", index_of(package)
    for name in (name for names in REFERENCE.values() for name in names.split()):
        found = package[name]
        yield name, page_of(f"scanops.{name}", fields_of(found) if name in FIELDS else "", found.is_module)
        for member in found.exports or () if found.is_module else ():
            yield f"{name}.{member}", page_of(f"scanops.{name}.{member}")


def page_of(path: str, further: str = "", is_module: bool = False) -> str:
    """The page of one public name: its signature, and what its docstring says."""
    members = "      members: false\n" if is_module else ""
    return f"---\ntitle: {path}\n---\n\n::: {path}\n    options:\n      heading_level: 1\n{members}\n{further}"


def index_of(package: griffe.Object | griffe.Alias) -> str:
    """The list of all public names, with the first sentence of each."""
    parts = ["# API reference\n"]
    for title, names in REFERENCE.items():
        parts.append(f"## {title}\n\n| name | |\n|---|---|")
        for name in names.split():
            parts.append(row_of(name, package[name]))
            if package[name].is_module:
                parts += [row_of(f"{name}.{each}", package[name][each]) for each in package[name].exports or ()]
        parts.append("")
    return "\n".join(parts)


def row_of(name: str, found: griffe.Object | griffe.Alias) -> str:
    """A row of the list: a name with a link to its page, and the first sentence of its docstring."""
    text = " ".join(str(found.docstring.value if found.docstring else "").split("\n\n")[0].split())
    return f"| [`{name}`]({name}.md) | {text.replace('``', '`').replace('|', chr(92) + '|')} |"


def fields_of(found: griffe.Object | griffe.Alias) -> str:
    """A table of the fields of a class, from the comments beside and above them."""
    rows, above = ["## Fields\n", "| field | type | default | meaning |", "|---|---|---|---|"], ""
    for line in str(found.source).splitlines():
        field = re.match(r"    (\w+): ([^=#]+?)(?: = ([^#]+?))?(?:  # (.*))?$", line)
        if re.match(r"    # ----", line):
            break
        if comment := re.match(r"    # (.*)", line):
            above = f"{above} {comment[1]}".strip()
        elif field:
            cells = (f"`{field[1]}`", f"`{field[2]}`", f"`{field[3]}`" if field[3] else "", f"{above} {field[4] or ''}")
            rows.append("| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |")
            above = ""
    return "\n".join(rows)


def undocumented(found: griffe.Object | griffe.Alias) -> Iterator[str]:
    """Paths of public functions, classes and modules of one that have no docstring."""
    if found.is_attribute:
        return
    if not found.has_docstring:
        yield found.path
    if found.is_class or found.is_module:
        for name, member in found.members.items():
            if not name.startswith("_") and (found.is_class or name in (found.exports or ())):
                yield from undocumented(member)
