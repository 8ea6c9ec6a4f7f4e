#!/usr/bin/env python3
"""Measures this machine with `inflight bench` and keeps the numbers.

    python3 bench/record.py [--models DIR ...] [--formats wint8,wint4-g128,bf16] [--binary build/release/inflight] [--long] [--output FILE] [--readme]

Every row is one `bench --json`; all rows go to bench/results/<date>-<cpu>.json with CPU, ISA, threads and commit. --readme writes the two
tables between the `measured` markers of README.md. A folder that does not exist is made by tools/make_checkpoint.py when its name is a preset
under build/models. Run it on a quiet machine: shares of the limits are medians of samples taken beside the measured runs, absolute rates are not.
"""
import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def run(*args):
    return subprocess.run([str(a) for a in args], check=True, capture_output=True, text=True).stdout


def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*:\s*(.*)", text)[1].strip()
    family, model = re.search(r"cpu family\s*:\s*(\d+)", text)[1], re.search(r"model\s*:\s*(\d+)", text)[1]
    return f"{name} (family {family}, model {model})"


def bench(binary, model, quantization, *more):
    args = [binary, "bench", model, "--json", *more]
    if quantization != "bf16":
        args += ["--quantization", quantization]
    row = json.loads(run(*args))
    row["model"] = pathlib.Path(model).name
    print(f"{row['model']} {quantization} {' '.join(map(str, more))}: load {row['load']['source_gb_per_s']:.1f} GB/s, prefill "
          f"{row['prefill']['fraction_of_peak']:.0%} of peak, decode {row['decode']['fraction_of_bandwidth']:.0%} of bandwidth", file=sys.stderr)
    return row


def speed_table(rows):
    lines = ["| model | weights | load | peak memory | prefill 512 | decode |", "|---|---|---|---|---|---|"]
    for r in rows:
        load, pre, dec = r["load"], r["prefill"], r["decode"]
        lines.append(f"| {r['model']} | {r['quantization']} | {load['seconds']:.2f} s, {load['source_gb_per_s']:.1f} GB/s of source ({load['source_gb_per_s'] / load['plain_gb_per_s']:.2f}x a plain read) "
                     f"| weights {load['weight_bytes'] / 1e6:,.0f} MB + {(load['peak_anon_bytes'] - load['weight_bytes']) / 1e6:.0f} MB "
                     f"| {pre['tokens_per_s']:.0f} t/s, {pre['fraction_of_peak']:.0%} of {pre['peak']} peak | {dec['tokens_per_s']:.0f} t/s, {dec['fraction_of_bandwidth']:.0%} of read bandwidth |")
    return "\n".join(lines)


LONG = {"prefill 2048": ("--prompt-tokens", "2048", "--decode-tokens", "0"), "prefill 8192": ("--prompt-tokens", "8192", "--decode-tokens", "0"),
        "decode at 8192": ("--prompt-tokens", "0", "--context", "8192", "--decode-tokens", "32"), "decode of 16": ("--prompt-tokens", "0", "--batch", "16", "--decode-tokens", "32")}


def long_table(rows, longer):
    """Long prompts, long contexts and batches; a batch is compared with one sequence of the same model in `rows`."""
    lines = ["| model | weights | " + " | ".join(LONG) + " |", "|---|---|---|---|---|---|"]
    for r in rows:
        cells = []
        for name in LONG:
            found = next((l for l in longer if (l["model"], l["quantization"], l["row"]) == (r["model"], r["quantization"], name)), None)
            if not found:
                cells.append("")
            elif name.startswith("prefill"):
                cells.append(f"{found['prefill']['tokens_per_s']:.0f} t/s, {found['prefill']['fraction_of_peak']:.0%} of peak")
            elif name == "decode of 16":
                cells.append(f"{found['decode']['tokens_per_s']:.0f} t/s, {found['decode']['tokens_per_s'] / r['decode']['tokens_per_s']:.1f}x one")
            else:
                cells.append(f"{found['decode']['tokens_per_s']:.0f} t/s, {found['decode']['fraction_of_bandwidth']:.0%} of read bandwidth")
        lines.append(f"| {r['model']} | {r['quantization']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def loader_table(pairs):
    lines = ["| weights | `--load-choices default` | `default_v1` |", "|---|---|---|"]
    for plain, streamed in pairs:
        cell = lambda r: f"{r['load']['seconds']:.2f} s, peak {r['load']['peak_anon_bytes'] / 1e6:,.0f} MB"
        lines.append(f"| {streamed['model']}, {streamed['quantization']} (final {streamed['load']['weight_bytes'] / 1e6:,.0f} MB) | {cell(plain)} | {cell(streamed)} |")
    return "\n".join(lines)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--models", nargs="+", default=[ROOT / "build/models/qwen3-0.6b", ROOT / "build/models/qwen3-1.7b"], type=pathlib.Path)
    a.add_argument("--formats", default="wint8,wint4-g128,bf16")
    a.add_argument("--binary", default=ROOT / "build/release/inflight")
    a.add_argument("--long", action="store_true", help="also long prompts, a context of 8192 tokens and batches of 16 (minutes a row)")
    a.add_argument("--output", type=pathlib.Path, help="default: bench/results/<date>-<cpu>.json")
    a.add_argument("--readme", action="store_true")
    o = a.parse_args()
    for model in o.models:
        if not model.exists():
            print(f"making {model}", file=sys.stderr)
            run(sys.executable, ROOT / "tools/make_checkpoint.py", model.name, model)
    rows = [bench(o.binary, m, q) for m in o.models for q in o.formats.split(",")]
    longer = [bench(o.binary, m, q, *LONG[name], "--repeat", "1") | {"row": name} for m in (o.models if o.long else []) for q in o.formats.split(",") for name in LONG
              if name != "prefill 8192" or (m == o.models[0] and q == o.formats.split(",")[0])]  # a minute, and minutes in a larger model
    small = ("--prompt-tokens", "16", "--decode-tokens", "4")
    pairs = [(bench(o.binary, o.models[-1], q, "--load-choices", "default", *small, "--repeat", "1"), bench(o.binary, o.models[-1], q, "--load-choices", "default_v1", *small))
             for q in ("wint8", "wint4-g128")]

    cpu, date = cpu_name(), datetime.date.today().isoformat()
    commit = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    results = o.output or ROOT / "bench/results" / f"{date}-{re.sub('[^a-z0-9]+', '-', cpu.lower()).strip('-')}.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps({"date": date, "cpu": cpu, "isa": rows[0]["isa"], "threads": rows[0]["threads"], "commit": commit,
                                   "rows": rows, "long": longer, "loaders": [r for pair in pairs for r in pair]}, indent=1) + "\n")
    roof = rows[-1]["roofline"]
    text = (f"{cpu}, {rows[0]['threads']} threads, {rows[0]['isa']}, {date}, commit {commit}; two threads read {roof['read_gb_per_s']:.0f} GB/s, int8 peak "
            f"{roof['int8_tops']:.2f} TOP/s, BF16 peak {roof['bf16_tflops']:.2f} TFLOP/s. Random weights of the published shapes, page cache warm.\n\n"
            f"{speed_table(rows)}\n\n" + (f"{long_table(rows, longer)}\n\n" if longer else "") + f"Both loaders, same folder, same answers token by token:\n\n{loader_table(pairs)}\n")
    print(text)
    if o.readme:
        readme = ROOT / "README.md"
        old = readme.read_text()
        new = re.sub(r"(<!-- measured -->\n).*?(<!-- /measured -->)", lambda m: m[1] + text + m[2], old, flags=re.S)
        readme.write_text(new)


if __name__ == "__main__":
    main()
