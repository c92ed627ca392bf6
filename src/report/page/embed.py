#!/usr/bin/env python3
"""Makes page_sources.hpp: the page's HTML, styles and scripts as they stand in this folder, in the order given.

  embed.py OUTPUT page.html style.css a.js b.js ...
"""

import pathlib
import sys

CHUNK = 12000  # of a literal; compilers need not take longer ones than 64 KiB


def literal(text):
    """C++ raw strings side by side: the compiler joins them."""
    return "\n".join(f'R"PAGE({text[i:i + CHUNK]})PAGE"' for i in range(0, len(text), CHUNK)) or '""'


def main():
    output, *names = sys.argv[1:]
    by_kind = {"html": "", "css": "", "js": ""}
    for name in names:
        path = pathlib.Path(name)
        by_kind[path.suffix[1:]] += path.read_text(encoding="utf-8")
    assert ')PAGE"' not in "".join(by_kind.values())
    assert "</script" not in by_kind["js"] and "</style" not in by_kind["css"]
    script = '(() => {\n"use strict";\n' + by_kind["js"] + "})();\n"
    lines = ["// Made by src/report/page/embed.py.", "#pragma once", "", "#include <string_view>", ""]
    for name, text in (("html", by_kind["html"]), ("style", by_kind["css"]), ("script", script)):
        lines.append(f"inline constexpr std::string_view page_{name} =\n{literal(text)};\n")
    body = "\n".join(lines[5:])
    pathlib.Path(output).write_text(
        "\n".join(lines[:5]) + f"namespace pipewright::report {{\n\n{body}\n}}  // namespace pipewright::report\n",
        encoding="utf-8")


if __name__ == "__main__":
    main()
