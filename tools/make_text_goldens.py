#!/usr/bin/env python3
"""Makes what the text room's tests compare with, from the reference libraries:

    python3 -m venv VENV && VENV/bin/pip install transformers==5.24.0 tokenizers==0.23.3 jinja2==3.1.6
    VENV/bin/python tools/make_text_goldens.py

Reads tests/tokenizers/{qwen3,smollm2}/tokenizer*.json, chat templates and tests/text/*.txt. Writes
    tests/tokenizers/unicode-mix.txt             600 kB of seeded text in many scripts (seed 20; no library involved)
    tests/tokenizers/{qwen3,smollm2}/text-goldens.json   digests of the ids of a megabyte, ids of edge cases, decodings of random ids
    tests/tokenizers/{qwen3,smollm2}/chat-goldens.json   rendered chats
    tests/tokenizers/jinja-goldens.json          template snippets and what transformers' jinja2 makes of them
    tests/tokenizers/toy-goldens.json            small tokenizers (every decoder, both merge spellings, ...) with ids and texts
The megabyte is tests/text/heldout.txt + tests/text/train_200k.txt + unicode-mix.txt.
"""
import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import jinja2
import tokenizers
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _cached_compile_jinja_template

import text_golden_cases as cases

ROOT = Path(__file__).resolve().parent.parent / "tests"
TOKENIZERS = ROOT / "tokenizers"
VERSIONS = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__, "jinja2": jinja2.__version__}
assert VERSIONS == {"transformers": "5.24.0", "tokenizers": "0.23.3", "jinja2": "3.1.6"}, VERSIONS


def write(path, value):
    value = {"made_by": "tools/make_text_goldens.py", "versions": VERSIONS, **value}
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(path.relative_to(ROOT.parent), path.stat().st_size)


def digest(ids):
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def unicode_mix(size):
    rng = random.Random(20)
    ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x10A0, 0x11FF),
              (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFEF),
              (0x10000, 0x103FF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01EF)]
    spaces = [" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\x0b", "\x85", ""]
    words = ["the", "I'VE", "don't", "WE'LL", "she's", "'tis", "return", "int", "x", "foo_bar", "camelCase", "HTML", "naïve", "Größe", "ﬁn", "ǅ", "ſ's"]
    signs = ["->", "==", "!=", "::", "();", "{}", "[0]", "//", "#", "...", "—", "“", "”", "«", "€", "%", "\\n", "&amp;", "<b>", "@", "^", "~", "`"]
    specials = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</tool_call>", "<|im_start", "|im_end|>", "<repo_name>"]

    def piece():
        kind = rng.random()
        if kind < 0.25:
            return rng.choice(words)
        if kind < 0.4:
            low, high = rng.choice(ranges)
            return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 9)))
        if kind < 0.5:
            return rng.choice(["{}", "{}.{}", "0x{:x}{:x}", "{},{}", "{}e-{}", "¾{}", "{}²", "٣{}", "{}½"]).format(rng.randint(0, 99999), rng.randint(0, 999))
        if kind < 0.6:
            return rng.choice(signs)
        if kind < 0.63:
            return rng.choice(specials)
        if kind < 0.67:
            return "e" + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(1, 4)))
        if kind < 0.70:
            return "👨\u200d👩\u200d👧" + rng.choice(["🏽", "\ufe0f", "🇩🇪", ""])
        if kind < 0.72:
            return rng.choice("aZ 1\n.é中") * rng.randint(2, 40)
        if kind < 0.74:  # any scalar value at all, assigned or not
            return "".join(chr(c) for c in (rng.randint(0, 0x10FFFF) for _ in range(4)) if not 0xD800 <= c <= 0xDFFF)
        return rng.choice(["lorem", "Ipsum", "dolor", "Привет", "мир", "你好", "世界", "日本語", "한국어", "नमस्ते", "سلام", "ไทย", "ქართული", "Ελλάδα"])

    out, length = [], 0
    while length < size:
        text = piece() + rng.choice(spaces)
        out.append(text)
        length += len(text.encode("utf-8"))
    return "".join(out)


def text_goldens(name, corpus):
    raw = tokenizers.Tokenizer.from_file(str(TOKENIZERS / name / "tokenizer.json"))
    if name == "qwen3":
        full = AutoTokenizer.from_pretrained(TOKENIZERS / name)
    else:
        full = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZERS / name / "tokenizer.json"))

    def encode(text):
        ids = raw.encode(text, add_special_tokens=False).ids
        assert ids == full(text, add_special_tokens=False)["input_ids"], text[:100]
        return ids

    corpus_ids = encode(corpus)
    edges = cases.EDGE_TEXTS + ["a" * 200_000]
    rng = random.Random(46)
    limit = max(raw.get_vocab(True).values()) + 1
    decodings = []
    for i in range(60):
        pool = limit + 50 if i % 3 else 400  # ids below 400 are mostly single bytes; some ids have no token
        ids = [rng.randrange(pool) for _ in range(rng.randint(1, 60))]
        decodings.append({"ids": ids, "text": raw.decode(ids, skip_special_tokens=False), "skipped": raw.decode(ids, skip_special_tokens=True)})
    write(TOKENIZERS / name / "text-goldens.json", {
        "corpus": {"bytes": len(corpus.encode()), "count": len(corpus_ids), "sha256_of_comma_joined_ids": digest(corpus_ids)},
        "edges": [{"text": t if len(t) < 1000 else None, "letter": t[0] if len(t) >= 1000 else None, "repeat": len(t), "count": len(i),
                   "sha256_of_comma_joined_ids": digest(i)} for t, i in ((t, encode(t)) for t in edges)],
        "decodings": decodings,
        "vocab_size": limit,
        "added_special": [full.encode(t) for t in ("", "hello")],
    })
    return full


def chat_goldens(name, full):
    if full.chat_template is None:
        full.chat_template = (TOKENIZERS / name / "chat_template.jinja").read_text(encoding="utf-8")
    chats = []
    for case in cases.CHATS:
        if name == "smollm2" and case.get("only") == "qwen3":
            continue
        arguments = {"tools": case.get("tools"), "add_generation_prompt": case.get("add_generation_prompt", True), **case.get("variables", {})}
        text = full.apply_chat_template(case["messages"], tokenize=False, **arguments)
        chats.append({"name": case["name"], "messages": case["messages"], "tools": case.get("tools"), "variables": case.get("variables", {}),
                      "add_generation_prompt": arguments["add_generation_prompt"], "text": text,
                      "ids": full(text, add_special_tokens=False)["input_ids"]})
    write(TOKENIZERS / name / "chat-goldens.json", {"chats": chats})


def decoded(raw, ids, skip):
    try:
        return raw.decode(ids, skip_special_tokens=skip)
    except BaseException as error:  # some decoders of the reference panic on empty input: there is no right answer then
        if type(error).__name__ != "PanicException":
            raise
        return None


def jinja_goldens():
    rows = []
    for template, variables in cases.SNIPPETS:
        row = {"template": template, "variables": variables}
        try:
            row["text"] = _cached_compile_jinja_template(template).render(**variables)
        except jinja2.exceptions.TemplateSyntaxError as error:
            row["error"], row["line"] = "syntax", error.lineno
        except Exception as error:  # whatever jinja2 or Python raises: the render fails
            row["error"] = "render"
            row["message"] = str(error)
        rows.append(row)
    write(TOKENIZERS / "jinja-goldens.json", {"snippets": rows})


def toy_goldens():
    rows = []
    for toy in cases.toys():
        row = {"name": toy["name"], "tokenizer": toy["tokenizer"], "config": toy.get("config")}
        try:
            raw = tokenizers.Tokenizer.from_str(json.dumps(toy["tokenizer"], ensure_ascii=False))
        except Exception as error:
            rows.append({**row, "error": str(error)})
            continue
        with tempfile.TemporaryDirectory() as folder:
            if toy.get("config") is not None:
                Path(folder, "tokenizer.json").write_text(json.dumps(toy["tokenizer"], ensure_ascii=False), encoding="utf-8")
                config = {"tokenizer_class": "PreTrainedTokenizerFast", **toy["config"]}
                Path(folder, "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
                raw = AutoTokenizer.from_pretrained(folder)._tokenizer
        row["encode"] = [{"text": t, "ids": raw.encode(t, add_special_tokens=False).ids, "with_special": raw.encode(t, add_special_tokens=True).ids}
                         for t in toy.get("texts", [])]
        rng = random.Random(toy["name"])
        sequences = list(toy.get("sequences", []))
        size = raw.get_vocab_size()
        sequences += [[rng.randrange(size) for _ in range(rng.randint(1, 24))] for _ in range(toy.get("random_sequences", 0))]
        row["decode"] = [{"ids": s, "text": decoded(raw, s, False), "skipped": decoded(raw, s, True)} for s in sequences]
        rows.append(row)
    write(TOKENIZERS / "toy-goldens.json", {"toys": rows})


def main():
    mix = unicode_mix(600_000)
    (TOKENIZERS / "unicode-mix.txt").write_bytes(mix.encode("utf-8"))
    corpus = (ROOT / "text/heldout.txt").read_bytes().decode() + (ROOT / "text/train_200k.txt").read_bytes().decode() + mix
    for name in ("qwen3", "smollm2"):
        full = text_goldens(name, corpus)
        chat_goldens(name, full)
    jinja_goldens()
    toy_goldens()


if __name__ == "__main__":
    main()
