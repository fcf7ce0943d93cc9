"""A pack as a wheel: a package with no code, its pack, and the entry point that scanops finds it by.

The format is that of the packaging standard "Binary distribution format", version 1.0; it is a zip file with four
files of facts. The tools that build wheels begin with a project, and date what they write.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path
from typing import Any

from scanops.errors import UnsupportedRequest
from scanops.packs.installed import GROUP, SUBFOLDER

__all__ = ["write_wheel"]

_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can say
_NAME = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_]*)-(?P<version>[0-9][A-Za-z0-9_.!+]*)(-[^-]+-[^-]+-[^-]+)?\.whl")


def write_wheel(draft: Path, file_name: str, members: list[tuple[str, Path]], contents: dict[str, Any]) -> None:
    """Write a wheel to ``draft``; its final name says distribution and version, the pack says the platform.

    Raises UnsupportedRequest for a name that pip would not install on the pack's platform.
    """
    found = _NAME.fullmatch(file_name)
    tag = f"py3-none-{contents['platform'].replace('-', '_')}"
    if found is None or found[3] != f"-{tag}":
        raise UnsupportedRequest(
            "a wheel",
            allowed=f"NAME-VERSION-{tag}.whl",
            value=file_name,
            hint=f"call it my_kernels-1.0-{tag}.whl, for example",
        )
    package, version = found["name"], found["version"]
    facts = f"{package}-{version}.dist-info"
    texts = {
        f"{package}/__init__.py": '"""Kernels for scanops, found through the entry point of this distribution."""\n',
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: {len(contents['entries'])} kernels for scanops\n",
        f"{facts}/WHEEL": f"Wheel-Version: 1.0\nGenerator: scanops\nRoot-Is-Purelib: false\nTag: {tag}\n",
        f"{facts}/entry_points.txt": f"[{GROUP}]\n{package} = {package}\n",
    }
    record = []
    with zipfile.ZipFile(draft, "w") as wheel:
        for name, content in (
            *((f"{package}/{SUBFOLDER}/{path}", source.read_bytes()) for path, source in members),
            *((name, text.encode()) for name, text in texts.items()),
        ):
            _add(wheel, name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        _add(wheel, f"{facts}/RECORD", ("".join(record) + f"{facts}/RECORD,,\n").encode())


def _add(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    item = zipfile.ZipInfo(name, date_time=_DATE)
    item.compress_type, item.create_system, item.external_attr = zipfile.ZIP_DEFLATED, 3, 0o100644 << 16
    wheel.writestr(item, content, compresslevel=9)
