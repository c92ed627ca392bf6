#!/usr/bin/env python3
"""Colours of kinds of work stay apart for every kind of sight: palette_test.py palette.js

Sight without one kind of cone after Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB; differences are
distances in CIE L*a*b* (CIE76).
"""

import itertools
import math
import re
import sys

LEAST = 18
SIGHT = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour):
    values = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def lab(rgb):
    r, g, b = (min(1, max(0, v)) for v in rgb)
    xyz = ((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b,
           (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read().split("/// In the order of timeline::Cause.")[0]
    work = [m for m in re.findall(r'id: "(\w+)", name: "[^"]*", light: "(#\w{6})", dark: "(#\w{6})"', text)
            if m[0] not in ("host", "synchronisation")]
    assert len(work) == 12, work
    bad = 0
    for theme, column in (("light", 1), ("dark", 2)):
        for sight, matrix in SIGHT.items():
            seen = {w[0]: lab([sum(a * b for a, b in zip(row, linear(w[column]))) for row in matrix]) for w in work}
            least = min((math.dist(seen[a], seen[b]), a, b) for a, b in itertools.combinations(seen, 2))
            print(f"{theme}, {sight}: {least[1]} and {least[2]} differ by {least[0]:.1f}")
            bad += least[0] < LEAST
    sys.exit(1 if bad else 0)


main()
