"""The pages of the site, in the tree of the repository, so that one link is right in both.

Each file of code that a page links to becomes a page, too. The text changes only where Zensical reads
Markdown in another way than the repository view does.
"""

import posixpath
import re
import shutil
import subprocess
import sys

LINK = re.compile(r"(!?\[[^]\n]*]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```\w*).*$")
ITEM = re.compile(r"^( *)(?:[-*]|\d+\.) ")
LANGUAGES = {"rs": "rust", "py": "python", "mjs": "js", "pml": "c", "conf": "ini"}
IMAGES = (".svg", ".png")


class Pages:
    def __init__(self, root, to):
        self.root, self.to = root, to
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.check_output(listed, cwd=root, text=True).splitlines()
        self.files = {file for file in listed if (root / file).is_file()}
        self.folders = {posixpath.dirname(file) for file in self.files}
        # Pages of code: path of the page by path of the file or folder.
        self.code = {}
        shutil.rmtree(to, ignore_errors=True)

    def write(self, path, text):
        path = self.to / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_all(self):
        for file in sorted(self.files):
            if file.endswith(".md"):
                self.write(file, self.markdown(file, (self.root / file).read_text()))
            elif file.startswith("docs/") and file.endswith(IMAGES):
                (self.to / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.root / file, self.to / file)
        for source, page in self.code.items():
            self.write(page, self.code_page(source))

    def page_of(self, page, target):
        """The path of the page that a link leads to."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target.split("#")[0]))
        return self.code.get(path, path)

    def markdown(self, file, text):
        lines, fenced, before = [], False, ""
        for line in text.replace("\n\n\n", "\n\n").splitlines():
            if fence := FENCE.match(line):
                fenced = not fenced
                line = fence[1]
            elif not fenced:
                line = self.line(file, line)
                item = ITEM.match(line)
                # Python-Markdown wants four spaces where two are enough elsewhere, and an empty
                # line before a list.
                if item:
                    line = item[1] + line
                    if before and not before.startswith(" ") and not ITEM.match(before):
                        lines.append("")
            lines.append(line)
            before = line
        return "\n".join(lines) + "\n"

    def line(self, file, line):
        if line.startswith("|"):
            line = re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)
        if line.startswith("<picture>"):
            dark, light, what = re.search(r'srcset="(.*?)".*src="(.*?)" alt="(.*?)"', line).groups()
            return f"![{what}]({dark}#only-dark)\n![{what}]({light}#only-light)"
        return LINK.sub(lambda link: link[1] + self.link(file, link[2]) + link[3], line)

    def link(self, file, target):
        if ":" in target or target.startswith("#"):
            return target
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target.split("#")[0]))
        if path in self.folders and f"{path}/README.md" in self.files:
            return target.rstrip("/") + "/README.md"
        if not path.endswith(".md") and path not in self.files | self.folders:
            sys.exit(f"{file} has a link to {path}, and there is no such file in the repository")
        if path.endswith((".md", *IMAGES)):
            return target
        self.code[path] = f"{path}.md"
        return target.rstrip("/") + ".md"

    def code_page(self, source):
        if source in self.folders:
            inside = sorted(file for file in self.files if file.startswith(source + "/"))
            texts = [self.fenced(file, f"## {file}") for file in inside]
            return "\n".join([f"# {source}\n", *texts])
        return self.fenced(source, f"# {source}")

    def fenced(self, file, heading):
        language = file.rsplit(".", 1)[-1]
        fence = f"````{LANGUAGES.get(language, language)}"
        return f"{heading}\n\n{fence}\n{(self.root / file).read_text().rstrip()}\n````\n"
