"""``scanops explain``: why a request finds its kernel or does not."""

from __future__ import annotations

from dataclasses import asdict

import click

from scanops import environment
from scanops.cli.build import usual_target
from scanops.cli.output import Command, print_json
from scanops.cli.specs import spec_options, specs_of
from scanops.diagnosis.explain import Explanation, Search, explain
from scanops.store.trust import refusal

__all__ = ["command"]


@click.command("explain", cls=Command, example="scanops explain sum-f32-n32768 --target sm_90")
@click.argument("slugs", metavar="[SPEC]...", nargs=-1)
@click.option("--target", help="Architecture, or cpu for the emulator. By default what `scanops build` builds for.")
@spec_options
def command(slugs: tuple[str, ...], target: str | None, as_json: bool, **options: str | int | bool | None) -> None:
    """Say why a request hits or misses: place by place, and field by field where another kernel is near.

    Exits with 0 when every kernel is found, with 1 when one is not. Builds nothing.
    """
    found = [explain(spec, target or usual_target()) for spec in specs_of(slugs, options)]
    if as_json:
        print_json({"ok": all(each.found for each in found), "requests": [_fields(each) for each in found]})
    else:
        click.echo("\n\n".join(_text(each) for each in found))
    click.get_current_context().exit(0 if all(each.found for each in found) else 1)


def _fields(each: Explanation) -> dict[str, object]:
    return {
        "slug": each.spec.slug,
        "target": each.target,
        "identity": each.identity,
        "key": each.key,
        "found": str(each.found.entry) if each.found else None,
        "searches": [
            {
                "kind": search.place.kind,
                "root": str(search.place.root),
                "hit": search.hit,
                "indexed": search.indexed,
                "entry": str(search.entry) if search.entry else None,
                "problem": search.problem,
                "nearest": [{**asdict(near), "directory": str(near.directory)} for near in search.nearest],
            }
            for search in each.searches
        ],
    }


def _text(each: Explanation) -> str:
    lines = [f"{each.spec.slug} for {each.target}", f"  identity     {each.identity}"]
    fingerprint = each.key.split()[2][:16] if each.key else "none: the operator is not in the table"
    lines.append(f"  fingerprint  {fingerprint}")
    for search in each.searches:
        lines += _search(search)
    if each.found:
        return "\n".join([*lines, f"found: {each.found.entry}"])
    if environment.require_signed():  # what is built here would not be found either
        return "\n".join([*lines, f"not found; to have it, {refusal(each.spec.slug, each.target, ()).hint}"])
    return "\n".join([*lines, f"not found; to have it: scanops build {each.spec.slug} --target {each.target}"])


def _search(search: Search) -> list[str]:
    name = f"  {search.place.kind} {search.place.root}:"
    if search.hit:
        how = "through its index" if search.indexed else "by its text: the index has no such fingerprint"
        return [f"{name} has it, {how}"]
    if search.problem:
        return [f"{name} not used: {search.problem}"]
    lines = [f"{name} does not have it" + ("; the nearest:" if search.nearest else ", it is empty")]
    for near in search.nearest:
        lines.append(f"    {near.slug} for {near.target}")
        lines += [f"      {one.field}: asked {one.asked}, there {one.there}" for one in near.differences]
    return lines
