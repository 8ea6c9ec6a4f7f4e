#!/usr/bin/env python3
"""Small files: warns above 600 lines, fails above 800 (tests: 1200), and above 4 MB for any file but those listed.

Aim at 400. A file that grows past the limit is split by noun. Usage: check_sizes.py [REPOSITORY]
"""
import pathlib
import sys

from checklib import CODE, finish, is_test, repository_files

WARN, STOP, STOP_TEST = 600, 800, 1200
STOP_BYTES = 4 << 20
EXEMPT_BYTES = {"tokenizer.json": "a published model's vocabulary is as large as it is",
                "tests/small-ernie4_5-moe/model.safetensors": "a mixture of experts that was trained: its loss means something"}


def check(root, warn=lambda row: print(row, file=sys.stderr)):
    root = pathlib.Path(root)
    findings = []
    for path in repository_files(root):
        size = (root / path).stat().st_size
        if size > STOP_BYTES and path.name not in EXEMPT_BYTES and str(path) not in EXEMPT_BYTES:
            findings.append(f"{path}:1: {size / 1e6:.1f} MB; at most {STOP_BYTES / 1e6:.1f} MB belongs in the repository")
        if path.suffix not in CODE and path.name not in ("dev", "CMakeLists.txt"):
            continue
        lines = len((root / path).read_bytes().splitlines())
        stop = STOP_TEST if is_test(path) else STOP
        if lines > stop:
            findings.append(f"{path}:{lines}: {lines} lines, at most {stop}: split it by noun")
        elif lines > WARN and not is_test(path):
            warn(f"{path}:{lines}: warning: {lines} lines, above {WARN}; the limit is {stop}")
    return findings


if __name__ == "__main__":
    finish("check_sizes", check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent))
