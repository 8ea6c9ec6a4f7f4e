#!/usr/bin/env python3
"""House rules that a regular expression can see, over every text file of the repository.

Below src/cli/, nothing prints, throws, aborts or exits: errors are values. Parameter names of checkpoints stand in models/, nn/ and quant/ only.
Source is ASCII. No file names a machine, a package registry's host or the way this project is made.
A line is excused by `check_sources: allow RULE: reason` in a comment on it. Usage: check_sources.py [REPOSITORY]
"""
import pathlib
import re
import sys

from checklib import CODE, finish, is_test, repository_files, text_of

# Rule, pattern, why. Over C++ outside tests, comments and string contents taken out, except under src/cli/.
BELOW_CLI = [
    ("print", re.compile(r"\b(?:v?f?printf|puts|putchar|perror)\s*\(|\bstd::c(?:out|err|log)\b|\b(?:std|fmt)::print(?:ln)?\s*\("), "only cli/ prints; return the text or an error"),
    ("throw", re.compile(r"\bthrow\b(?!\s*\()"), "errors are values: return fail(...)"),
    ("end", re.compile(r"(?<![\w.>])(?:std::)?(?:abort|exit|_exit|quick_exit|terminate)\s*\("), "only cli/ ends the program; return fail(...)"),
    ("assert", re.compile(r"(?<!static_)\bassert\s*\("), "an assertion is no check of input; return fail(...), or static_assert"),
    ("regex", re.compile(r"\bstd::w?s?regex\b|#\s*include\s*<regex>"), "std::regex is slow and overflows the stack on long input"),
]
# In string literals of the same files, but for models/, nn/ and quant/.
CHECKPOINT_NAME = re.compile(
    r"\b(?:(?:q|k|v|o|qkv|gate|up|down|up_gate|gate_up)_proj|embed_tokens|lm_head\.\w+|input_layernorm|post_attention_layernorm|[qk]_norm)\b")
NAMES_ALLOWED = ("src/models/", "src/nn/", "src/quant/", "src/checkpoint/gguf_names.")

# Words are assembled, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.$~-])/(?:%s)(?=/|\b)(?![\w-])" % "|".join(("wo" "rk", "ro" "ot", "fa" "rm")) + r"|\.\./sha" r"red\b|/ho" r"me/\w")
HOST = re.compile(r"\b(?:%s)\b" % "|".join(h.replace(".", r"\.") for h in (
    "py" "pi.org", "files.python" "hosted.org", "cra" "tes.io", "registry.np" "mjs.org", "proxy.go" "lang.org", "repo1.ma" "ven.org", "deb.deb" "ian.org",
    "down" "load.pytorch.org")))
MAKING = re.compile(r"\b(?:%s)\b" % "|".join(("cla" "ude", "anth" "ropic", "chat" "gpt", "co" "pilot", "l" "lm agent", "ai ass" "istant", "this ses" "sion",
                                               "sub" "agent", "as an a" "i", "work" "place", r"iss" r"ue #?\d+", "the br" "ief")), re.I)
LOCK_FILES = {"Cargo.lock", "package-lock.json"}


def blank(match):
    """Same length and lines, no content."""
    return re.sub(r"[^\n]", " ", match.group(0))


CPP_TOKEN = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"(?P<tag>[^()\\ \n]{0,16})\(.*?\)(?P=tag)")|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<char>(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\')', re.S)


def without_comments_and_strings(text):
    return CPP_TOKEN.sub(blank, text)


def strings(text):
    """(line number, content) of each string literal."""
    for m in CPP_TOKEN.finditer(text):
        if m["string"] or m["raw"]:
            yield text.count("\n", 0, m.start()) + 1, m[0]


def excused(line, rule):
    return f"check_sources: allow {rule}:" in line


def check_cpp(path, text, lines):
    name = path.as_posix()
    if is_test(path) or not name.startswith("src/"):
        return
    if not name.startswith("src/cli/"):
        for number, line in enumerate(without_comments_and_strings(text).split("\n"), 1):
            for rule, pattern, why in BELOW_CLI:
                if pattern.search(line) and not excused(lines[number - 1], rule):
                    yield f"{path}:{number}: {rule}: {lines[number - 1].strip()[:80]!r}: {why}"
    if not name.startswith(NAMES_ALLOWED):
        for number, content in strings(text):
            if (m := CHECKPOINT_NAME.search(content)) and not excused(lines[number - 1], "name"):
                yield f"{path}:{number}: name: {m[0]!r} is a checkpoint's parameter name; it belongs in models/, nn/ or quant/"


def check_text(path, lines):
    """Rules for every text file."""
    ascii_only = path.suffix in CODE and not is_test(path)
    for number, line in enumerate(lines, 1):
        if path.suffix == ".rs" and "#[cfg(test)]" in line:
            ascii_only = False
        if ascii_only and not line.isascii() and not excused(line, "ascii"):
            at = next(c for c in line if not c.isascii())
            yield f"{path}:{number}: ascii: {at!r} in a source file"
        if (m := MACHINE_PATH.search(line)) and not excused(line, "path"):
            yield f"{path}:{number}: path: {m[0]!r} exists on one machine only"
        if path.name not in LOCK_FILES and (m := HOST.search(line)) and not excused(line, "host"):
            yield f"{path}:{number}: host: {m[0]!r}: name the package, not the host it comes from"
        if (m := MAKING.search(line)) and not excused(line, "making"):
            yield f"{path}:{number}: making: {m[0]!r}: the text speaks of the product, not of how it is made"


def is_data(path):
    """Checkpoints' own files and text to tokenize: not ours to word."""
    return path.parts[0] == "tests" and path.suffix in (".json", ".jsonl", ".jinja", ".txt", ".bin", ".safetensors")


def check(root):
    root = pathlib.Path(root)
    findings = []
    for path in repository_files(root):
        if is_data(path) or path.name in ("LICENSE",):
            continue
        text = text_of(root / path)
        if text is None:
            continue
        lines = text.split("\n")
        if path.suffix in (".h", ".cc", ".inl"):
            findings.extend(check_cpp(path, text, lines))
        findings.extend(check_text(path, lines))
    return findings


if __name__ == "__main__":
    finish("check_sources", check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent))
