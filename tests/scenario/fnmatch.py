#!/usr/bin/env python3
"""Draws patterns and names and writes data/fnmatch.txt: what Python's fnmatch says of them (1: it matches)."""
import fnmatch
import pathlib
import random

draw = random.Random(7)
lines = []
for _ in range(600):
    pattern = "".join(draw.choice("aab.**?[[]]!-c") for _ in range(draw.randint(1, 7)))
    near = pattern.replace("*", draw.choice(("", "a", "b."))).replace("?", "a").replace("[", "").replace("]", "")
    name = near if draw.random() < 0.6 else "".join(draw.choice("aab.c") for _ in range(draw.randint(0, 5)))
    lines.append(f"{int(fnmatch.fnmatchcase(name, pattern))} {pattern} {name}".rstrip() + "\n")
for name in ("decoder.layers.3.mlp.fc1_latent_proj", "decoder.layers.3.mlp.fc2_latent_proj", "mtp.layers.0.eh_proj",
             "decoder.layers.0.mixer.out_proj", "decoder.layers.0.self_attention.linear_proj"):
    for pattern in ("*.linear_proj", "*mlp.fc[12]_latent_proj", "mtp.*", "*mixer.out_proj", "*.layers.[!0].*", "*proj"):
        lines.append(f"{int(fnmatch.fnmatchcase(name, pattern))} {pattern} {name}\n")
(pathlib.Path(__file__).resolve().parent / "data/fnmatch.txt").write_text("".join(lines))
