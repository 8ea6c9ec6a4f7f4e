#!/usr/bin/env python3
"""Includes point down: fails when a file in src/ROOM/ includes a room that src/layers.txt does not allow, or when that table has a cycle.

Usage: check_layers.py [REPOSITORY]
"""
import pathlib
import re
import sys

from checklib import finish

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def read_table(path, shown):
    """{room: rooms it may include}, and what is wrong with the table. A row may only name rooms above it, so order proves there is no cycle."""
    allowed, wrong = {}, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        room, colon, rest = line.partition(":")
        room = room.strip()
        if not colon or room in allowed:
            wrong.append(f"{shown}:{number}: expected one row `room : rooms it may include` for each room")
            continue
        for dep in rest.split():
            if dep not in allowed:
                wrong.append(f"{shown}:{number}: '{room}' names '{dep}', which is not a row above it")
        allowed[room] = set(rest.split())
    return allowed, wrong


def check(root):
    root = pathlib.Path(root)
    src = root / "src"
    allowed, findings = read_table(src / "layers.txt", "src/layers.txt")
    for path in sorted(p for p in src.rglob("*") if p.suffix in (".h", ".cc", ".inl")):
        room, shown = path.relative_to(src).parts[0], path.relative_to(root)
        if room not in allowed:
            findings.append(f"{shown}:1: src/{room}/ has no row in src/layers.txt")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            kind, name = match.groups()
            target = name.split("/")[0]
            if "/" in name and target in allowed and kind == '"':
                if target != room and target not in allowed[room]:
                    findings.append(f"{shown}:{number}: {room}/ may not include {target}/ (allowed: {' '.join(sorted(allowed[room])) or 'nothing'})")
                elif not (src / name).is_file():
                    findings.append(f"{shown}:{number}: there is no src/{name}")
            elif kind == '"' and (".." in name or "/" not in name and (path.parent / name).is_file()):
                findings.append(f'{shown}:{number}: write #include "room/file.h", so that the room can be seen: "{name}"')
            elif kind == "<" and "/" in name and target in allowed and (src / name).is_file():
                findings.append(f'{shown}:{number}: own headers are included with quotes: "{name}"')
    return findings


if __name__ == "__main__":
    finish("check_layers", check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent))
