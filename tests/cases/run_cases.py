#!/usr/bin/env python3
"""Runs the program as a user does and checks what comes out: standard output, standard error, exit code, files.

Cases are data: every tests/cases/*.json is a list of them. INFLIGHT_BINARY names the program (default: build/release/inflight).
Arguments on the command line select cases by a part of their name. Needs Python's standard library alone.

A case is an object:
  name        what it claims
  args        list of arguments. {tiny} is tests/tiny, {gguf} tests/gguf, {text} tests/text, {tmp} a fresh folder of this case
  stdin       text; or stdin_hex, bytes. Without either, standard input is empty
  env         environment variables on top of the caller's
  files       {"{tmp}/x": "content"} written before the run
  models      {"name": {...}}: a copy of a tiny model at {tmp}/name, changed:
                from: its name; remove: [files]; truncate: {file: bytes to cut off the end}; append: {file: text};
                config: {key: value} set in config.json (null removes the key); write: {file: text}
  run         "once" (default); "twice at once": two processes, both must pass; {"interrupt_after": bytes}: SIGINT once so many bytes of
              standard output came; {"interrupt_once": file}: SIGINT once that file is there; {"interrupt_stderr": text}: SIGINT once that is on standard error; {"close_after": bytes}: the reader goes away then
  exit        expected code (default 0)
  stdout, stderr   what must hold: {"empty": true, "equals": "..", "contains": [..], "lacks": [..], "matches": "regex", "lines": n,
              "json": {path: expectation}, "json_lines": [{path: expectation}, ...]}
              A path is dotted ("usage.prompt_tokens"); an expectation is a value, or {"type": "number"}, {"above": x}, {"below": x}, {"length": n}
  creates     files that must exist afterwards;  absent: files that must not
  then        more steps {args, exit, stdout, ...} run afterwards in the same folder
  same        [a, b]: steps (0 is the case itself) whose standard output must be equal
  golden      {"model": .., "prompts": [..], "format": "" or "wint8", "args": [..]}: `logits` of every prompt against golden.safetensors,
              largest difference at most 2e-4 of the largest logit, hidden states likewise; no other key then
  amax        {"model": .., "args": [..]}: maxima that `calibrate` finds over the golden prompts against fp8_amax.json, at most 1e-3 of each apart
  compared    {"model": .., "args": [..], "reference": [..]}: what `eval --reference` says of digits, of the model with these flags and of itself with those, against the
              same numbers computed here from the logits and hidden states that `logits` writes
  greedy      {"model": .., "args": [..]}: greedy ids against golden.safetensors, up to the first step whose margin is under 0.01
"""
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BINARY = os.environ.get("INFLIGHT_BINARY", os.path.join(ROOT, "build", "release", "inflight"))
TINY = os.path.join(ROOT, "tests", "tiny")
TEXT = os.path.join(ROOT, "tests", "text")
GGUF = os.path.join(ROOT, "tests", "gguf")
TIMEOUT = 120


class Failed(Exception):
    pass


def fill(value, tmp):
    if isinstance(value, str):
        return value.replace("{tiny}", TINY).replace("{gguf}", GGUF).replace("{text}", TEXT).replace("{tmp}", tmp)
    if isinstance(value, list):
        return [fill(v, tmp) for v in value]
    if isinstance(value, dict):
        return {fill(k, tmp): fill(v, tmp) for k, v in value.items()}
    return value


def make_model(tmp, name, change):
    target = os.path.join(tmp, name)
    shutil.copytree(os.path.join(TINY, change["from"]), target, ignore=shutil.ignore_patterns("golden*"))
    for file in change.get("remove", []):
        os.remove(os.path.join(target, file))
    for file, cut in change.get("truncate", {}).items():
        path = os.path.join(target, file)
        os.truncate(path, os.path.getsize(path) - cut)
    for file, text in change.get("append", {}).items():
        with open(os.path.join(target, file), "a", encoding="utf-8") as out:
            out.write(text)
    for file, text in change.get("write", {}).items():
        with open(os.path.join(target, file), "w", encoding="utf-8") as out:
            out.write(text)
    if "config" in change:
        path = os.path.join(target, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        for key, value in change["config"].items():
            if value is None:
                config.pop(key, None)
            else:
                config[key] = value
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)


def start(step):
    def default_signals():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    env = dict(os.environ, **step.get("env", {}))
    return subprocess.Popen([BINARY] + step["args"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=ROOT, preexec_fn=default_signals)


def run(step):
    """Returns [(exit code, stdout, stderr), ...], bytes."""
    stdin = bytes.fromhex(step["stdin_hex"]) if "stdin_hex" in step else step.get("stdin", "").encode()
    how = step.get("run", "once")
    if how in ("once", "twice at once"):
        processes = [start(step) for _ in range(2 if how != "once" else 1)]
        results = []
        for process in processes:
            try:
                out, err = process.communicate(stdin, timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Failed(f"still running after {TIMEOUT} s")
            results.append((process.returncode, out, err))
        return results
    process = start(step)
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    if "interrupt_once" in how:
        while process.poll() is None and not os.path.exists(how["interrupt_once"]):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
    err = b""
    while "interrupt_stderr" in how and how["interrupt_stderr"].encode() not in err:
        piece = os.read(process.stderr.fileno(), 4096)
        if not piece:
            break
        err += piece
    if "interrupt_stderr" in how:
        process.send_signal(signal.SIGINT)
    wanted = how.get("interrupt_after", how.get("close_after", 0))
    out = b""
    while len(out) < wanted:
        piece = os.read(process.stdout.fileno(), wanted - len(out))
        if not piece:
            break
        out += piece
    if "interrupt_after" in how:
        process.send_signal(signal.SIGINT)
    if "close_after" not in how:
        out += process.stdout.read()
    process.stdout.close()
    err += process.stderr.read()
    process.wait(timeout=TIMEOUT)
    return [(process.returncode, out, err)]


def look_up(value, path):
    for part in path.split(".") if path else []:
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            raise Failed(f"JSON has no \"{path}\"")
    return value


def check_json(value, expectations, where):
    for path, expected in expectations.items():
        got = look_up(value, path)
        if isinstance(expected, dict):
            kinds = {"number": (int, float), "string": str, "list": list, "object": dict}
            ok = all((isinstance(got, kinds[v]) and not isinstance(got, bool)) if k == "type" else got > v if k == "above" else got < v if k == "below" else len(got) == v
                     for k, v in expected.items())
        else:
            ok = got == expected
        if not ok:
            raise Failed(f"{where}: \"{path}\" is {json.dumps(got, ensure_ascii=False)[:200]}, expected {json.dumps(expected, ensure_ascii=False)}")


def check_stream(data, expected, where):
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Failed(f"{where} is not UTF-8: {error}")
    shown = f"\n--- {where}:\n{text[:2000]}"
    if expected.get("empty") and text:
        raise Failed(f"{where} is not empty{shown}")
    if "equals" in expected and text != expected["equals"]:
        raise Failed(f"{where} differs from {json.dumps(expected['equals'])}{shown}")
    for part in expected.get("contains", []):
        if part not in text:
            raise Failed(f"{where} lacks {json.dumps(part)}{shown}")
    for part in expected.get("lacks", []):
        if part in text:
            raise Failed(f"{where} has {json.dumps(part)}{shown}")
    if "matches" in expected and not re.search(expected["matches"], text, re.S):
        raise Failed(f"{where} does not match {expected['matches']}{shown}")
    if "lines" in expected and len(text.splitlines()) != expected["lines"]:
        raise Failed(f"{where} has {len(text.splitlines())} lines, expected {expected['lines']}{shown}")
    if "json" in expected:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Failed(f"{where} is not one JSON object: {error}{shown}")
        check_json(value, expected["json"], where)
    if "json_lines" in expected:
        lines = text.splitlines()
        if len(lines) != len(expected["json_lines"]):
            raise Failed(f"{where} has {len(lines)} lines, expected {len(expected['json_lines'])}{shown}")
        for i, (line, expectations) in enumerate(zip(lines, expected["json_lines"])):
            check_json(json.loads(line), expectations, f"{where} line {i + 1}")


def check_step(step):
    outputs = []
    for code, out, err in run(step):
        if code != step.get("exit", 0):
            raise Failed(f"exit code {code}, expected {step.get('exit', 0)}\n--- stdout:\n{out.decode(errors='replace')[:1000]}\n--- stderr:\n{err.decode(errors='replace')[:2000]}")
        check_stream(out, step.get("stdout", {}), "stdout")
        check_stream(err, step.get("stderr", {}), "stderr")
        outputs.append(out)
    if any(out != outputs[0] for out in outputs):
        raise Failed("two runs printed different text")
    for path in step.get("creates", []):
        if not os.path.exists(path):
            raise Failed(f"{path} was not written")
    for path in step.get("absent", []):
        if os.path.exists(path):
            raise Failed(f"{path} was written")
    return outputs[0]


def read_safetensors(path):
    """{name: (shape, [numbers])} of F32 and I64 tensors."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        kind, width = {"F32": ("f", 4), "I32": ("i", 4), "I64": ("q", 8)}[info["dtype"]]
        tensors[name] = (info["shape"], struct.unpack(f"<{(end - begin) // width}{kind}", data[8 + size + begin:8 + size + end]))
    return tensors


def compare(name, got, expected):
    if got[0] != expected[0]:
        raise Failed(f"{name}: shape {got[0]}, expected {expected[0]}")
    largest = max(abs(x) for x in expected[1])
    worst, at = max((abs(a - b), i) for i, (a, b) in enumerate(zip(got[1], expected[1])))
    if not worst <= 2e-4 * largest:
        raise Failed(f"{name}: largest difference {worst:.3g} at {at} (got {got[1][at]:.6g}, expected {expected[1][at]:.6g}), allowed {2e-4 * largest:.3g}")


def check_golden(golden, tmp):
    model = os.path.join(TINY, golden["model"])
    reference = read_safetensors(os.path.join(model, "golden.safetensors"))
    for prompt in golden["prompts"]:
        ids = ",".join(str(i) for i in reference[f"prompt.{prompt}"][1])
        output = os.path.join(tmp, f"logits.{prompt}.safetensors")
        args = ["logits", model, "--tokens", ids, "--output", output, "--compute", "fp32", "--lm-head", "bf16"] + golden.get("args", [])
        quantization = golden.get("format", "")
        args += ["--quantization", quantization] if quantization else ["--hidden"]
        check_step({"args": args, "stdout": {"empty": True}})
        got = read_safetensors(output)
        key = f"logits_{quantization}.{prompt}" if quantization else f"logits.{prompt}"
        compare(key, got["logits"], reference[key])
        if not quantization:
            compare(f"hidden.{prompt}", got["hidden"], reference[f"hidden.{prompt}"])


def check_greedy(greedy, tmp):
    model = os.path.join(TINY, greedy["model"])
    reference = read_safetensors(os.path.join(model, "golden.safetensors"))
    prompts = sorted(name.split(".")[1] for name in reference if name.startswith("prompt."))
    steps = len(reference[f"greedy.{prompts[0]}"][1])
    path = os.path.join(tmp, "prompts.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for prompt in prompts:
            file.write(json.dumps({"ids": reference[f"prompt.{prompt}"][1], "temperature": 0, "ignore_eos": True, "max_tokens": steps}) + "\n")
    out = check_step({"args": ["generate", model, "--prompts", path, "--compute", "fp32", "--lm-head", "bf16"] + greedy.get("args", []), "stdout": {"lines": len(prompts)}})
    for prompt, line in zip(prompts, out.decode().splitlines()):
        ids, expected = json.loads(line)["ids"], list(reference[f"greedy.{prompt}"][1])
        margins = reference[f"greedy_margin.{prompt}"][1]
        sure = next((i for i, margin in enumerate(margins) if margin < 0.01), steps)
        if len(ids) != steps or ids[:sure] != expected[:sure]:
            raise Failed(f"greedy.{prompt}: got {ids}, expected {expected} (sure of the first {sure})")


def check_amax(amax, tmp):
    model = os.path.join(TINY, amax["model"])
    reference = read_safetensors(os.path.join(model, "golden.safetensors"))
    data, output, text = (os.path.join(tmp, name) for name in ("prompts.jsonl", "scales.safetensors", "scales.txt"))
    with open(data, "w", encoding="utf-8") as file:
        for i in range(3):
            file.write(json.dumps({"ids": reference[f"prompt.{i}"][1]}) + "\n")
    check_step({"args": ["calibrate", model, "--data", data, "--output", output, "--text", text, "--compute", "fp32", "--unseen", "max"] + amax.get("args", [])})
    with open(os.path.join(model, "fp8_amax.json"), encoding="utf-8") as file:
        expected = json.load(file)
    with open(text, encoding="utf-8") as file:
        got = {name: float(value) for name, value in (line.rstrip("\n").split("\t") for line in file)}
    own = read_safetensors(output)
    for point, value in expected.items():
        if not abs(got[point + ".activation_scale"] - value) <= 1e-3 * value:
            raise Failed(f"{point}: {got[point + '.activation_scale']}, expected {value}")
        if abs(own[point + ".activation_amax"][1][0] - got[point + ".activation_scale"]) > 1e-6 * value:
            raise Failed(f"{point}: {own[point + '.activation_amax'][1][0]} in one form, {got[point + '.activation_scale']} in the other")


def check_compared(compared, tmp):
    """KL, perplexities, first choices, worst tokens and signal to noise of two windows, in plain Python."""
    model, window, digits = os.path.join(TINY, compared["model"]), 40, "3141592653589793238462643383279502884197169399375105820974944592307816406286208998"
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["model"]["vocab"]
    data, page = os.path.join(tmp, "digits.txt"), os.path.join(tmp, "page.html")
    with open(data, "w", encoding="utf-8") as file:
        file.write(digits)
    ids = [vocabulary[digit] for digit in digits]  # no two digits are one token there
    nats, kl, same, noise = ([], []), [], 0, {}
    for w in range(2):
        part, got = ids[w * window:(w + 1) * window], []
        for i, flags in enumerate((compared["args"], ["--compute", "fp32", "--fp8-activations", "none"] + compared["reference"])):
            output = os.path.join(tmp, f"{w}.{i}.safetensors")
            check_step({"args": ["logits", model, "--tokens", ",".join(map(str, part)), "--hidden", "--output", output] + flags})
            got.append(read_safetensors(output))
        size = got[0]["logits"][0][1]
        for t in range(window - 1):
            logs = []
            for i in range(2):
                row = got[i]["logits"][1][t * size:(t + 1) * size]
                total = max(row) + math.log(math.fsum(math.exp(x - max(row)) for x in row))
                logs.append([x - total for x in row])
                nats[i].append(-logs[i][part[t + 1]])
            kl.append((math.fsum(math.exp(r) * (r - x) for x, r in zip(*logs)), w, t + 1, part[t + 1], *(log.index(max(log)) for log in logs)))
            same += kl[-1][4] == kl[-1][5]
        layers, tokens, width = got[0]["hidden"][0]
        for layer in range(layers):
            signal, error = noise.get(layer, (0, 0))
            span = slice(layer * tokens * width, (layer + 1) * tokens * width)
            pairs = list(zip(got[0]["hidden"][1][span], got[1]["hidden"][1][span]))
            noise[layer] = (signal + math.fsum(r * r for _, r in pairs), error + math.fsum((r - x) ** 2 for x, r in pairs))
    out = check_step({"args": ["eval", model, "--data", data, "--window", str(window), "--json", "--reference", model, "--report", page] + compared["args"] +
                      [f"--reference-{compared['reference'][i][2:]}" if i % 2 == 0 else compared["reference"][i] for i in range(len(compared["reference"]))], "creates": [page], "absent": [page + ".part"]})
    said = json.loads(out)
    values = sorted(value[0] for value in kl)
    at = 0.99 * (len(values) - 1)
    p99 = values[int(at)] + (values[min(int(at) + 1, len(values) - 1)] - values[int(at)]) * (at - int(at))
    expected = {"nats_per_token": math.fsum(nats[0]) / len(kl), "reference_nats_per_token": math.fsum(nats[1]) / len(kl), "kl_mean": math.fsum(values) / len(kl), "kl_p99": p99, "kl_max": values[-1],
                "top1": same / len(kl), "tokens": len(kl), "windows": 2}
    expected["perplexity"], expected["reference_perplexity"] = math.exp(expected["nats_per_token"]), math.exp(expected["reference_nats_per_token"])
    for layer, (signal, error) in noise.items():
        expected[f"layer_sqnr_db.{layer}"] = 10 * math.log10(signal / error) if error else None
    for path, value in expected.items():
        got = look_up(said, path)
        if (got is None) != (value is None) or value is not None and not abs(got - value) <= 1e-6 * max(abs(value), 1e-3):
            raise Failed(f"{path}: eval says {got}, the logits and hidden states say {value}")
    worst = sorted(kl, reverse=True)[:20]
    named = [(token["window"], token["position"], token["id"], token["expected"]["id"], token["reference_expected"]["id"]) for token in said["worst"]]
    if named != [tuple(token[1:]) for token in worst] or any(token["text"] != digits[token["window"] * window + token["position"]] for token in said["worst"]):
        raise Failed(f"worst tokens: eval says {named}, the logits say {worst}")


def check_case(case):
    tmp = tempfile.mkdtemp(prefix="inflight-case-")
    try:
        if "golden" in case:
            return check_golden(case["golden"], tmp)
        if "amax" in case:
            return check_amax(case["amax"], tmp)
        if "compared" in case:
            return check_compared(fill(case["compared"], tmp), tmp)
        if "greedy" in case:
            return check_greedy(case["greedy"], tmp)
        case = fill(case, tmp)
        for path, content in case.get("files", {}).items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        for name, change in case.get("models", {}).items():
            make_model(tmp, name, change)
        outputs = [check_step(step) for step in [case] + case.get("then", [])]
        if "same" in case and len({outputs[i] for i in case["same"]}) != 1:
            raise Failed("outputs that must be equal differ:\n" + "\n".join(outputs[i].decode(errors="replace")[:500] for i in case["same"]))
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def main():
    if not os.access(BINARY, os.X_OK):
        sys.exit(f"{BINARY} is not there; build it, or name the program in INFLIGHT_BINARY")
    cases = []
    for file in sorted(os.listdir(HERE)):
        if file.endswith(".json"):
            with open(os.path.join(HERE, file), encoding="utf-8") as data:
                cases += [(f"{file[:-5]}: {case['name']}", case) for case in json.load(data)]
    wanted = sys.argv[1:]
    cases = [(name, case) for name, case in cases if not wanted or any(part in name for part in wanted)]
    failed = 0
    for name, case in cases:
        try:
            check_case(case)
        except Failed as failure:
            failed += 1
            print(f"FAILED {name}\n  " + str(failure).replace("\n", "\n  "), flush=True)
        else:
            print(f"ok {name}", flush=True)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
