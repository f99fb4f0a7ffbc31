"""Draws what a command prints on a terminal, as an SVG: the picture of the README.

    python3 scripts/picture.py docs/demo.svg -- keyfall demo --seconds 6
    python3 scripts/picture.py docs/demo.svg --from captured.txt --title 'keyfall demo'

The command runs in a pseudo-terminal, so it prints as it would for a person, with its colours.
`--without` leaves lines out, and the title says how many are left. It needs nothing but Python.
"""

import argparse
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from html import escape
from itertools import groupby
from typing import NamedTuple

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SIZE, ADVANCE, LEADING, MARGIN, BAR = 13, 7.8, 18, 16, 34
PAPER, INK, FAINT = "#11151c", "#d5dae3", "#7d8797"
# The sixteen colours of a terminal, the bright ones last.
COLOURS = (
    "#3b4252 #e06c75 #98c379 #e5c07b #61afef #c678dd #56b6c2 #d5dae3 "
    "#7d8797 #ef8891 #b2d99a #f0d399 #83c2f5 #d79be8 #7fd0da #ffffff"
).split()

SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


class Style(NamedTuple):
    ink: str | None = None
    paper: str | None = None
    is_bold: bool = False
    is_faint: bool = False
    is_inverse: bool = False


def main() -> None:
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    command = sys.argv[end + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="The command to run follows `--`."
    )
    parser.add_argument("svg", help="the file to write")
    parser.add_argument("--from", dest="capture", metavar="FILE", help="draw this instead of running a command")
    parser.add_argument("--without", metavar="REGEX", help="leave out the lines that match")
    parser.add_argument("--title", help="stands behind the prompt; defaults to the command")
    parser.add_argument("--columns", type=int, default=140, help="width of the terminal; longer lines are wrapped")
    options = parser.parse_args(sys.argv[1:end])
    if bool(options.capture) == bool(command):
        parser.error("give either --from FILE or a command")

    if options.capture:
        with open(options.capture, "rb") as file:
            printed = file.read()
    else:
        printed = run(command, options.columns)
    lines = list(screen(printed.decode(errors="replace")))
    kept = [line for line in lines if not (options.without and re.search(options.without, text(line)))]
    rows = [row for line in trimmed(kept) for row in wrapped(line, options.columns)]

    shown = [os.path.basename(command[0]), *command[1:]] if command else [f"cat {options.capture}"]
    title = options.title or " ".join(shown)
    left_out = len(lines) - len(kept)
    with open(options.svg, "w", encoding="utf-8") as file:
        file.write(drawing(rows, title, f"{left_out} lines are left out" if left_out else ""))


def run(command: list[str], columns: int) -> bytes:
    """Everything that it prints in a terminal of its own."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    )
    os.close(its)
    printed = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed.
            part = b""
        if not part:
            break
        printed += part
    os.close(ours)
    if status := process.wait():
        sys.exit(f"{shlex.join(command)} ended with {status}:\n{printed.decode(errors='replace')}")
    return printed


def screen(printed: str):
    """Lines of cells, each a character and its style. The cursor moves within a line only."""
    style = Style()
    for line in printed.replace("\r\n", "\n").removesuffix("\n").split("\n"):
        cells: list[tuple[str, Style]] = []
        column = place = 0
        while place < len(line):
            if sequence := SEQUENCE.match(line, place):
                place = sequence.end()
                if sequence[2] == "m":
                    style = styled(style, sequence[1])
                continue
            character = line[place]
            place += 1
            if character == "\r":
                column = 0
            elif character == "\t":
                column += 8 - column % 8
            elif character >= " ":
                cells += [(" ", Style())] * (column + 1 - len(cells))
                cells[column] = (character, style)
                column += 1
        yield cells


def styled(style: Style, codes: str) -> Style:
    """The style after `ESC [ codes m`."""
    rest = iter([int(code or 0) for code in codes.split(";")] if "?" not in codes else [])
    for code in rest:
        if code == 0:
            style = Style()
        elif code in (1, 2, 7):
            style = style._replace(**{{1: "is_bold", 2: "is_faint", 7: "is_inverse"}[code]: True})
        elif code == 22:
            style = style._replace(is_bold=False, is_faint=False)
        elif code == 27:
            style = style._replace(is_inverse=False)
        elif code in (38, 48):
            colour = chosen(rest)
            style = style._replace(ink=colour) if code == 38 else style._replace(paper=colour)
        elif code in (39, 49):
            style = style._replace(ink=None) if code == 39 else style._replace(paper=None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = style._replace(ink=COLOURS[code % 10 + 8 * (code >= 90)])
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style = style._replace(paper=COLOURS[code % 10 + 8 * (code >= 100)])
    return style


def chosen(codes) -> str | None:
    """The colour that `5;n` or `2;r;g;b` names."""
    if next(codes, None) == 2:
        return "#" + "".join(f"{next(codes, 0):02x}" for _ in range(3))
    number = next(codes, 0)
    if number < 16:
        return COLOURS[number]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return "#" + "".join(f"{levels[level]:02x}" for level in (number // 36, number // 6 % 6, number % 6))


def text(cells) -> str:
    return "".join(character for character, _ in cells)


def trimmed(lines):
    """Without empty lines at both ends."""
    filled = [place for place, line in enumerate(lines) if text(line).strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def wrapped(line, columns: int):
    return [line[start : start + columns] for start in range(0, len(line), columns)] or [[]]


def drawing(rows, title: str, note: str) -> str:
    width = round(2 * MARGIN + ADVANCE * max([len(row) for row in rows] + [len(title) + len(note) + 4]))
    height = BAR + LEADING * len(rows) + MARGIN
    prompt = f"$ {title}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="{FONT}" font-size="{SIZE}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
        run_of(prompt, MARGIN, 22, INK, is_bold=True),
        run_of(note, width - MARGIN - ADVANCE * len(note), 22, FAINT),
    ]
    for number, row in enumerate(rows):
        baseline = BAR + LEADING * number + SIZE
        column = 0
        for style, cells in groupby(row, key=lambda cell: cell[1]):
            piece = text(cells)
            parts += piece_of(piece, style, MARGIN + ADVANCE * column, baseline)
            column += len(piece)
    return "\n".join(part for part in parts if part) + "\n</svg>\n"


def piece_of(piece: str, style: Style, x: float, baseline: int):
    ink, paper = style.ink or (FAINT if style.is_faint else INK), style.paper
    if style.is_inverse:
        ink, paper = paper or PAPER, ink
    if paper:
        top = baseline - SIZE - 1
        yield (
            f'<rect x="{x:.1f}" y="{top}" width="{ADVANCE * len(piece):.1f}" height="{LEADING}" fill="{paper}"/>'
        )
    # Columns keep their place in any font: each word begins at its own position.
    for word in re.finditer(r"\S+(?: \S+)*", piece):
        yield run_of(word[0], x + ADVANCE * word.start(), baseline, ink, style.is_bold)


def run_of(words: str, x: float, y: int, ink: str, is_bold: bool = False) -> str:
    if not words:
        return ""
    weight = ' font-weight="bold"' if is_bold else ""
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{ink}"{weight} textLength="{ADVANCE * len(words):.1f}"'
        f' lengthAdjust="spacingAndGlyphs">{escape(words)}</text>'
    )


if __name__ == "__main__":
    main()
