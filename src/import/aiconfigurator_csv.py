#!/usr/bin/env python3
"""Measured tables of ai-dynamo/aiconfigurator (parquet) as plain CSV, which `pipewright import --aiconfigurator` reads.

    pip install pyarrow
    python3 src/import/aiconfigurator_csv.py CHECKOUT OUT

CHECKOUT is a clone with its large files (git lfs pull). OUT gets data/SYSTEM/OP/FRAMEWORK/VERSION/TABLE.csv, the
columns as they are, and commit.txt. Only the tables that the import reads are written: docs/public-tables.md.
"""
import csv
import pathlib
import subprocess
import sys

TABLES = ("gemm_perf", "nccl_perf", "context_attention_perf")
SYSTEMS = ("b200_sxm", "gb200", "gb300", "h100_sxm", "h200_sxm")
DATA = "aic-core/src/aiconfigurator_core/systems/data"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        from pyarrow import parquet
    except ImportError:
        sys.exit("pyarrow is missing: pip install pyarrow (needed to convert, not to import)")
    checkout, out = map(pathlib.Path, sys.argv[1:])
    root = checkout / DATA
    if not root.is_dir():
        sys.exit(f"{root}: no such folder; CHECKOUT must be a clone of ai-dynamo/aiconfigurator")
    written = 0
    for system in SYSTEMS:
        for source in sorted((root / system).glob("*/*/*/*.parquet")):
            if source.stem not in TABLES:
                continue
            if source.read_bytes()[:4] != b"PAR1":
                sys.exit(f"{source}: a pointer of Git LFS, not the table; run git lfs pull in the checkout")
            table = parquet.read_table(source)
            target = out / "data" / source.relative_to(root).with_suffix(".csv")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("w", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(table.column_names)
                writer.writerows(zip(*(column.to_pylist() for column in table.columns)))
            written += 1
    commit = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    (out / "commit.txt").write_text(commit.stdout)
    print(f"{written} tables of {commit.stdout[:12]}")


if __name__ == "__main__":
    main()
