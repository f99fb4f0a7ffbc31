"""Writes the pages of the site below target/site-pages, and its configuration beside them."""

import json
import re
import sys
from pathlib import Path

import api
import stage

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"
TO = ROOT / "target/site-pages"


def nav(index, pages):
    """The sections and rows of docs/README.md."""
    sections, seen = [{"Keyfall": "README.md"}, {"All pages": INDEX}], {"README.md", INDEX}
    for part in index.split("\n## ")[1:]:
        rows = []
        for line in filter(lambda line: line.startswith("| ["), part.splitlines()):
            for title, target in re.findall(r"\[([^]]+)]\(([^)]+)\)", line.split(" | ")[0]):
                page = pages.page_of(INDEX, target)
                if page not in seen:
                    seen.add(page)
                    rows.append({title: page})
                if page == "docs/daemon.md":
                    rows.append({"HTTP calls": api.PAGE})
        sections.append({part.splitlines()[0]: rows})
    if lost := {file for file in pages.files if re.match(r"docs/.*\.md$", file)} - seen:
        sys.exit(f"docs/README.md has no row for {', '.join(sorted(lost))}")
    return sections


def main():
    pages = stage.Pages(ROOT, TO)
    pages.write(api.PAGE, api.page((ROOT / "target/openapi.json").read_text()))
    pages.write_all()
    sections = nav((ROOT / INDEX).read_text(), pages)
    # JSON is YAML.
    config = (ROOT / "scripts/site/mkdocs.yml").read_text() + f"\nnav: {json.dumps(sections)}\n"
    TO.with_suffix(".yml").write_text(config)


main()
