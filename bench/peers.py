#!/usr/bin/env python3
"""Compare inflight with other CPU engines on this machine: same checkpoint shapes, same prompt, same threads, turn by turn.

Installs or builds the peers into build/peers/ (once; later runs reuse them), converts the checkpoint for each, runs ours and
the peer alternately, prints the ratios (above 1: inflight is faster) and writes bench/results/peers-DATE-CPU.json.
A peer that is absent or fails is left out by name, with the reason. Ctrl-C keeps what was measured. See bench/README.md.

peers:
  llama.cpp    built here from the sdist of llama-cpp-python
  openvino     openvino-genai, reading the GGUF that llama.cpp made
  mistral.rs   mistralrs, quantizing the Hugging Face folder while it loads
  ik           ik_llama.cpp programs that you built yourself: --ik DIR, the folder with its llama-bench
               (and --avx2 DIR, the same for a build without AVX-512, for the row avx2)
rows:
  4bit  8bit  bf16   prefill and decode, batch 1
  load               checkpoint folder to the first token, start of the process to its exit, conversion included
  avx2               4 bit with INFLIGHT_ISA=avx2
"""
import argparse
import datetime
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PINS = {"llama.cpp": ("llama-cpp-python", "0.3.36"), "openvino": ("openvino-genai", "2026.4.1"), "mistral.rs": ("mistralrs", "0.9.5")}
PEERS = ["llama.cpp", "ik", "openvino", "mistral.rs"]
ROWS = ["4bit", "8bit", "bf16", "load", "avx2"]
OURS = {"4bit": "wint4-g128", "8bit": "wint8", "bf16": "bf16", "avx2": "wint4-g128"}
# Formats of a peer in a row. GGUF names are llama-quantize's; those of mistral.rs are in-situ names, "" for as stored.
FORMATS = {
    "4bit": {"llama.cpp": ["Q4_0", "Q4_K_M"], "ik": ["Q4_0", "Q4_K_M"], "openvino": ["Q4_0"], "mistral.rs": ["Q4K"]},
    "8bit": {"llama.cpp": ["Q8_0"], "ik": ["Q8_0"], "openvino": ["Q8_0"], "mistral.rs": ["Q8_0"]},
    "bf16": {"llama.cpp": ["BF16"], "ik": ["BF16"], "openvino": ["F16"], "mistral.rs": [""]},
    "avx2": {"ik": ["Q4_0", "Q4_K_M"]},
}
CONVERTER_PACKAGES = ["torch", "transformers", "sentencepiece", "protobuf", "numpy"]

OPENVINO = r"""
import json, sys, numpy, openvino, openvino_genai as og
gguf, threads, prompt, decode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
pipe = og.LLMPipeline(gguf, "CPU", INFERENCE_NUM_THREADS=threads)
def run(tokens, answer):
    ids = numpy.random.default_rng(tokens).integers(1000, 100000, (1, tokens)).astype(numpy.int64)
    inputs = og.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    config = og.GenerationConfig(max_new_tokens=answer, ignore_eos=True, do_sample=False)
    metrics = pipe.generate(inputs, config).perf_metrics
    assert metrics.get_num_generated_tokens() == answer, metrics.get_num_generated_tokens()
    return metrics
if prompt == 0:   # only the first token, for the time to load
    run(1, 1)
    sys.exit(0)
run(8, 2)
first, rest = run(prompt, 1), run(1, decode + 1)
print(json.dumps({"prefill": prompt / first.get_ttft().mean * 1e3, "decode": 1e3 / rest.get_tpot().mean}))
"""

MISTRAL = r"""
import json, sys
from mistralrs import Architecture, CompletionRequest, Runner, Which
folder, isq, prompt, decode = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
runner = Runner(which=Which.Plain(model_id=folder, arch=Architecture.Qwen3), in_situ_quant=isq or None, prefix_cache_n=0)
def run(tokens, answer, word):
    request = CompletionRequest(model="default", prompt=(" " + word) * tokens, max_tokens=answer, temperature=0.0, ignore_eos=True)
    return runner.send_completion_request(request).usage
if prompt == 0:
    run(1, 1, "the")
    sys.exit(0)
run(8, 2, "and")
first, rest = run(prompt, 1, "the"), run(1, decode + 1, "of")
assert first.prompt_tokens == prompt and rest.completion_tokens == decode + 1, (first.prompt_tokens, rest.completion_tokens)
print(json.dumps({"prefill": prompt / first.total_prompt_time_sec, "decode": decode / rest.total_completion_time_sec}))
"""


class Failed(Exception):
    """A peer cannot do this; the text says why."""


child = None     # the process that Ctrl-C ends


def say(text):
    print(text, file=sys.stderr, flush=True)


def busy_ticks():
    """Clock ticks that all CPUs spent on anything but idling, stolen time included."""
    with open("/proc/stat") as f:
        user, nice, system, _idle, _wait, irq, soft, steal = map(int, f.readline().split()[1:9])
    return user + nice + system + irq + soft + steal


def run(command, env=None, cwd=None, log=None, timeout=3600):
    """Standard output, seconds, and the CPU time of others meanwhile as a share of all CPUs. Raises Failed with the last words."""
    global child
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before, start = busy_ticks(), time.monotonic()
        try:
            child = subprocess.Popen(command, env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=err, start_new_session=True)
        except OSError as e:
            raise Failed(f"{command[0]}: {e.strerror}") from None
        timer = threading_kill(child.pid, timeout)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode, child = os.waitstatus_to_exitcode(status), None
        timer.cancel()
        seconds = time.monotonic() - start
        ticks = busy_ticks() - before
        others = max(0.0, ticks / os.sysconf("SC_CLK_TCK") - usage.ru_utime - usage.ru_stime) / (seconds * os.cpu_count())
        out.seek(0)
        err.seek(0)
        text, words = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if log:
        with open(log, "w") as f:
            f.write(" ".join(command) + "\n" + text + words)
    if status != 0:
        last = [re.sub(r"(?:/[\w.+-]+)+/", "", line) for line in (words if words.strip() else text).splitlines() if line.strip()][-2:]   # no folders of this machine
        raise Failed(f"{os.path.basename(command[0])} ended with {os.waitstatus_to_exitcode(status)}: {' / '.join(last)[:400]}"
                     + (f" (all of it: {os.path.basename(log)})" if log else ""))
    return text, seconds, others


def threading_kill(pid, timeout):
    import threading
    timer = threading.Timer(timeout, lambda: os.killpg(pid, signal.SIGKILL))
    timer.daemon = True
    timer.start()
    return timer


def venv_python(folder):
    return os.path.join(folder, "bin", "python")


class Bench:
    def __init__(self, options):
        self.o = options
        self.work = os.path.abspath(options.work)
        self.out = {"date": datetime.date.today().isoformat(), **machine(), "threads": options.threads, "prompt_tokens": options.prompt_tokens,
                    "decode_tokens": options.decode_tokens, "repeat": options.repeat, "inflight": {}, "peers": {}, "skipped": {}, "rows": [], "load": []}
        os.makedirs(self.work, exist_ok=True)
        self.path = options.output or os.path.join(ROOT, "bench", "results", f"peers-{self.out['date']}-{self.out['cpu_slug']}.json")
        if os.path.exists(self.path):      # a partial run adds to what is there
            with open(self.path) as f:
                old = json.load(f)
            for key in ("cpu", "threads", "prompt_tokens", "decode_tokens"):
                if old.get(key) != self.out[key]:
                    sys.exit(f"peers: {self.path} was measured with {key} {old.get(key)}, this run has {self.out[key]}: give another --output")
            for key in ("inflight", "peers", "rows", "load", "note"):
                self.out[key] = old.get(key, self.out.get(key))

    # --- making the peers ---------------------------------------------------------------------------------------------

    def pip(self, python, *arguments):
        log = os.path.join(self.work, "pip.log")
        run(["nice", "-n", "19", python, "-m", "pip", *arguments], log=log)

    def installed(self, python, package):
        code = f"import importlib.metadata as m; print(m.version({package!r}))"
        try:
            return run([python, "-c", code])[0].strip()
        except Failed:
            return None

    def install(self, name):
        """A virtual environment with the pinned package; the newest that is, when the pinned one is not to be had."""
        package, version = PINS[name]
        folder = os.path.join(self.work, name)
        if not os.path.exists(venv_python(folder)):
            run([sys.executable, "-m", "venv", folder])
        python = venv_python(folder)
        have = self.installed(python, package)
        if not have:
            say(f"== installing {package} {version}")
            try:
                self.pip(python, "install", "--only-binary", ":all:", f"{package}=={version}")
            except Failed:
                self.pip(python, "install", "--only-binary", ":all:", package)
            have = self.installed(python, package)
        note = "" if have.startswith(version) else f" (pinned {version} was not to be had)"
        self.out["peers"][name] = {"package": package, "version": have + note}
        return python

    def build_llama(self):
        """llama-bench, llama-quantize and the converter from the sdist. Returns the folder of the programs."""
        package, version = PINS["llama.cpp"]
        programs = os.path.join(self.work, "llama.cpp", "bin")
        sources = glob.glob(os.path.join(self.work, "src", "llama_cpp_python-*", "vendor", "llama.cpp"))
        if not sources:
            say(f"== fetching {package} {version}")
            downloads = os.path.join(self.work, "downloads")
            try:
                self.pip(sys.executable, "download", "--no-deps", "--no-binary", ":all:", "-d", downloads, f"{package}=={version}")
            except Failed:
                self.pip(sys.executable, "download", "--no-deps", "--no-binary", ":all:", "-d", downloads, package)
            shutil.unpack_archive(glob.glob(os.path.join(downloads, "llama_cpp_python-*.tar.gz"))[0], os.path.join(self.work, "src"))
            sources = glob.glob(os.path.join(self.work, "src", "llama_cpp_python-*", "vendor", "llama.cpp"))
        self.llama_source = sources[0]
        have = re.search(r"llama_cpp_python-([^/]+)/", self.llama_source).group(1)
        compiler = [f"-DCMAKE_{l}_COMPILER={c}" for l, c in (("C", "clang-19"), ("CXX", "clang++-19")) if shutil.which(c)]
        if not all(os.path.exists(os.path.join(programs, p)) for p in ("llama-bench", "llama-quantize")):
            say("== building llama.cpp (niced; some minutes)")
            run(["nice", "-n", "19", "cmake", "-S", self.llama_source, "-B", os.path.dirname(programs), "-DCMAKE_BUILD_TYPE=Release", *compiler,
                 *(["-G", "Ninja"] if shutil.which("ninja") else []), "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON", "-DLLAMA_OPENSSL=OFF",
                 "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"], log=os.path.join(self.work, "llama-cmake.log"))
            run(["nice", "-n", "19", "cmake", "--build", os.path.dirname(programs), "-j2", "--target", "llama-bench", "llama-quantize"],
                log=os.path.join(self.work, "llama-build.log"))
        self.out["peers"]["llama.cpp"] = {"package": package, "version": have + ("" if have == version else f" (pinned {version} was not to be had)"),
                                          "build": "native, " + ("clang-19" if compiler else "the default compiler")}
        return programs

    def converter(self):
        """A python with what convert_hf_to_gguf.py imports."""
        if self.o.convert_python:
            return self.o.convert_python
        python = venv_python(os.path.join(self.work, "converter"))
        if not os.path.exists(python):
            run([sys.executable, "-m", "venv", os.path.dirname(os.path.dirname(python))])
        if not self.installed(python, "protobuf") or not self.installed(python, "torch"):
            say("== installing what convert_hf_to_gguf.py imports (torch: some GB)")
            self.pip(python, "install", "--only-binary", ":all:", *CONVERTER_PACKAGES)
        return python

    def prepare(self, name):
        """What running the peer takes: programs or a python. Raises Failed."""
        if name == "ik":
            if not self.o.ik:
                raise Failed("no --ik DIR given")
            self.out["peers"]["ik"] = {"version": self.o.ik_version or "as built in --ik"}
            return self.o.ik
        return self.build_llama() if name == "llama.cpp" else self.install(name)

    # --- making the models --------------------------------------------------------------------------------------------

    def gguf(self, model, kind, folder=None):
        """The GGUF of a checkpoint in a format, made by llama.cpp; and the seconds of making it (0 when it was there)."""
        folder = folder or os.path.join(self.work, "models")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{os.path.basename(os.path.normpath(model))}-{kind.lower()}.gguf")
        if os.path.exists(path):
            return path, 0.0
        programs = self.have["llama.cpp"]
        seconds, part = 0.0, path + ".part"
        if kind in ("BF16", "F16", "Q8_0"):        # what the converter writes by itself
            _, seconds, _ = run([self.converter(), os.path.join(self.llama_source, "convert_hf_to_gguf.py"), model, "--outtype", kind.lower(), "--outfile", part],
                                log=os.path.join(self.work, "convert.log"))
        else:
            full, seconds = self.gguf(model, "BF16", folder)
            _, more, _ = run([os.path.join(programs, "llama-quantize"), "--output-tensor-type", "q8_0", "--token-embedding-type", "q8_0", full, part, kind,
                              str(self.o.threads)], log=os.path.join(self.work, "quantize.log"))
            seconds += more
        os.rename(part, path)
        return path, seconds

    def folder_for_mistral(self, model):
        """The checkpoint by links, with the fields that mistral.rs insists on and published configs have."""
        folder = os.path.join(self.work, "models", os.path.basename(os.path.normpath(model)) + "-mistral.rs")
        os.makedirs(folder, exist_ok=True)
        for path in glob.glob(os.path.join(os.path.abspath(model), "*")):
            link = os.path.join(folder, os.path.basename(path))
            if os.path.lexists(link):
                os.remove(link)
            if os.path.basename(path) != "config.json":
                os.symlink(path, link)
        with open(os.path.join(model, "config.json")) as f:
            config = json.load(f)
        config = {"max_window_layers": config["num_hidden_layers"], "sliding_window": None, "use_sliding_window": False, "attention_dropout": 0.0,
                  "initializer_range": 0.02, "use_cache": True, **config}
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        return folder

    # --- one measurement ----------------------------------------------------------------------------------------------

    def ours(self, model, row):
        text, _, others = run([self.o.inflight, "bench", model, "--quantization", OURS[row], "--threads", str(self.o.threads), "--repeat", "1", "--json",
                               "--prompt-tokens", str(self.o.prompt_tokens), "--decode-tokens", str(self.o.decode_tokens)],
                              env={"INFLIGHT_ISA": "avx2"} if row == "avx2" else None)
        j = json.loads(text)
        self.out["inflight"]["isa" if row != "avx2" else "isa_of_avx2_row"] = j["isa"]
        return {"prefill": j["prefill"]["tokens_per_s"], "decode": j["decode"]["tokens_per_s"], "others": round(others, 3)}

    def peer(self, name, model, row, kind):
        prompt, decode, threads = str(self.o.prompt_tokens), str(self.o.decode_tokens), str(self.o.threads)
        if name in ("llama.cpp", "ik"):
            programs = self.o.avx2 if row == "avx2" else self.have[name]
            command = [os.path.join(programs, "llama-bench"), "-m", self.gguf(model, kind)[0], "-p", prompt, "-n", decode, "-t", threads, "-r", "1", "-o", "json"]
            if name == "ik":
                command += ["-fa", "1", "-rtr", "1"]     # its fast road: flash attention, weights repacked while loading
            text, _, others = run(command)
            tests = json.loads(text[text.index("["):])
            found = {"prefill" if t["n_gen"] == 0 else "decode": t["avg_ts"] for t in tests}
        elif name == "openvino":
            text, _, others = run([self.have[name], "-c", OPENVINO, self.gguf(model, kind)[0], threads, prompt, decode])
            found = json.loads(text.splitlines()[-1])
        else:
            text, _, others = run([self.have[name], "-c", MISTRAL, self.folder_for_mistral(model), kind, prompt, decode], env=mistral_env(threads))
            found = json.loads(text.splitlines()[-1])
        return {**found, "others": round(others, 3)}

    # --- rows ---------------------------------------------------------------------------------------------------------

    def wait_for_quiet(self):
        """Up to --quiet seconds, until the CPUs were 90% idle for 2 seconds."""
        end = time.monotonic() + self.o.quiet
        while time.monotonic() < end:
            before = busy_ticks()
            time.sleep(2)
            if busy_ticks() - before < 0.1 * 2 * os.cpu_count() * os.sysconf("SC_CLK_TCK"):
                return

    def alternate(self, key, ours, peer):
        """Ours, peer, ours, peer...: the runs, and per quantity the median of ours / peer in a pair, with the extremes."""
        a, b = [], []
        for _ in range(self.o.repeat):
            self.wait_for_quiet()
            a.append(ours())
            b.append(peer())
        result = {**key, "commit": self.out["inflight"]["commit"], "ours": a, "peer_runs": b, "ratio": {}}
        for what in a[0]:
            if what != "others":
                ratios = [x[what] / y[what] if what != "seconds" else y[what] / x[what] for x, y in zip(a, b)]
                result["ratio"][what] = {"median": round(statistics.median(ratios), 3), "min": round(min(ratios), 3), "max": round(max(ratios), 3)}
        result["others_max"] = max(x["others"] for x in a + b)
        return result

    def put(self, table, result, key):
        self.out[table] = [r for r in self.out[table] if any(r.get(k) != v for k, v in key.items())] + [result]
        self.save()
        say(line_of(result))

    def speed_row(self, model, row):
        for name, kinds in FORMATS[row].items():
            for kind in kinds:
                if not self.usable(name) or (row == "avx2" and not self.o.avx2):
                    continue
                key = {"model": os.path.basename(os.path.normpath(model)), "row": row, "format": OURS[row], "peer": name, "peer_format": kind or "as stored"}
                self.attempt(f"{name} {kind or 'as stored'} {key['model']} {row}", lambda: self.put(
                    "rows", self.alternate(key, lambda: self.ours(model, row), lambda: self.peer(name, model, row, kind)), key))

    def load_row(self, model):
        """Folder to the first token, in seconds from the start of the first process to the end of the last."""
        def ours(kind):
            _, seconds, others = run([self.o.inflight, "generate", model, "-p", "Hi", "--quantization", kind, "--max-tokens", "1", "--threads", str(self.o.threads)])
            return {"seconds": seconds, "others": round(others, 3)}

        def llama(kind):
            with tempfile.TemporaryDirectory(dir=self.work) as folder:
                path, made = self.gguf(model, kind, folder)
                _, seconds, others = run([os.path.join(self.have["llama.cpp"], "llama-bench"), "-m", path, "-p", "0", "-n", "1", "-r", "1", "--no-warmup",
                                          "-t", str(self.o.threads)])
            return {"seconds": made + seconds, "load_seconds": round(seconds, 3), "others": round(others, 3)}

        def mistral(kind):
            folder = self.folder_for_mistral(model)
            _, seconds, others = run([self.have["mistral.rs"], "-c", MISTRAL, folder, kind, "0", "0"], env=mistral_env(self.o.threads))
            return {"seconds": seconds, "others": round(others, 3)}

        for name, make, kinds in (("llama.cpp", llama, (("wint4-g128", "Q4_K_M"), ("wint8", "Q8_0"))), ("mistral.rs", mistral, (("wint4-g128", "Q4K"), ("wint8", "Q8_0")))):
            for our_kind, kind in kinds:
                if not self.usable(name):
                    continue
                key = {"model": os.path.basename(os.path.normpath(model)), "row": "load", "format": our_kind, "peer": name, "peer_format": kind}
                self.attempt(f"{name} {kind} {key['model']} load", lambda: self.put("load", self.alternate(key, lambda: ours(our_kind), lambda: make(kind)), key))

    def usable(self, name):
        return name in self.have and (not self.o.only or name in self.o.only)

    def attempt(self, what, work):
        try:
            work()
        except (Failed, ValueError, KeyError, IndexError) as e:
            self.skip(what, f"{type(e).__name__}: {e}" if not isinstance(e, Failed) else str(e))

    def skip(self, what, why):
        self.out["skipped"][what] = why
        say(f"skipped: {what}: {why}")

    def save(self):
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path + ".part", "w") as f:
            json.dump(self.out, f, indent=1)
            f.write("\n")
        os.replace(self.path + ".part", self.path)

    def models(self):
        if self.o.models:
            return self.o.models
        made = []
        for preset in ("qwen3-0.6b", "qwen3-1.7b"):
            folder = os.path.join(self.work, "checkpoints", preset)
            if not os.path.exists(folder):
                say(f"== making {folder}")
                run([sys.executable, os.path.join(ROOT, "tools", "make_checkpoint.py"), preset, folder])
            made.append(folder)
        return made

    def main(self):
        o = self.o
        version, _, _ = run([o.inflight, "--version"])
        folder = os.path.dirname(os.path.realpath(o.inflight))
        commit = subprocess.run(["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        self.out["inflight"] |= {"version": version.strip().splitlines()[0], "commit": commit}
        self.have = {}
        wanted = [p for p in PEERS if not o.only or p in o.only]
        for name in wanted + (["llama.cpp"] if "llama.cpp" not in wanted and {"ik", "openvino"} & set(wanted) else []):   # it makes their GGUF
            try:
                self.have[name] = self.prepare(name)
            except Failed as e:
                self.skip(name, str(e))
        for model in self.models():
            if o.setup:
                kinds = {k for row in o.rows for name, ks in FORMATS.get(row, {}).items() if name != "mistral.rs" and self.usable(name) for k in ks}
                for kind in sorted(kinds):
                    self.attempt(f"{kind} of {model}", lambda: say(f"== {self.gguf(model, kind)[0]}"))
                continue
            for row in o.rows:
                self.load_row(model) if row == "load" else self.speed_row(model, row)


def mistral_env(threads):
    return {"RAYON_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "RUST_LOG": "error"}


def machine():
    with open("/proc/cpuinfo") as f:
        info = {}
        for line in f:
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())
    flags = info.get("flags", "").split()
    return {"cpu": info.get("model name", "unknown"), "cpu_family_model": [int(info.get("cpu family", 0)), int(info.get("model", 0))],
            "cpu_slug": re.sub(r"[^a-z0-9]+", "-", info.get("model name", "unknown").lower()).strip("-") + f"-f{info.get('cpu family', 0)}m{info.get('model', 0)}",
            "cpus": os.cpu_count(), "cpu_flags": [f for f in flags if f in ("avx2", "fma", "avx_vnni") or f.startswith(("avx512", "amx"))]}


def line_of(r):
    """One line of the table."""
    cells = []
    for what, q in r["ratio"].items():
        ours, peer = (statistics.median(x[what] for x in r[side]) for side in ("ours", "peer_runs"))
        cells.append(f"{what} {ours:8.1f} {peer:8.1f}  x{q['median']:.2f} ({q['min']:.2f}-{q['max']:.2f})")
    return f"{r['model']:12} {r['format']:10} {r['peer']:10} {r['peer_format']:9} {'  '.join(cells)}  others {100 * r['others_max']:.0f}%"


def table(out):
    print(f"{out['cpu']}, {out['cpus']} CPUs, {out['threads']} thread(s), prompt {out['prompt_tokens']}, answer {out['decode_tokens']}; "
          f"inflight {out['inflight'].get('commit', '')} {out['inflight'].get('isa', '')}; tokens per second (load: seconds): ours, theirs, "
          "xRATIO above 1 means inflight is faster (least and largest of the pairs); others: most CPU time that other processes took in a run")
    for r in out["rows"] + out["load"]:
        print(line_of(r))
    if out.get("note"):
        print(f"note: {out['note']}")
    for what, why in out["skipped"].items():
        print(f"skipped: {what}: {why}")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", nargs="+", metavar="DIR", help="checkpoint folders (default: shapes of Qwen3-0.6B and 1.7B, made with random weights)")
    p.add_argument("--inflight", default=os.path.join(ROOT, "build", "release", "inflight"), metavar="PROGRAM", help="default: build/release/inflight")
    p.add_argument("--only", action="append", choices=PEERS, metavar="PEER", help="only this peer (repeatable)")
    p.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="ROW", help="only these rows")
    p.add_argument("--repeat", type=int, default=5, help="pairs of runs (default 5; the median counts)")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompt-tokens", type=int, default=512)
    p.add_argument("--decode-tokens", type=int, default=128)
    p.add_argument("--ik", metavar="DIR", help="programs of ik_llama.cpp, built for this CPU")
    p.add_argument("--ik-version", metavar="TEXT", help="what to write down as its version")
    p.add_argument("--avx2", metavar="DIR", help="the same built with AVX2 at most")
    p.add_argument("--convert-python", metavar="PYTHON", help="a python with torch, transformers and numpy (default: installs them, some GB)")
    p.add_argument("--quiet", type=float, default=0, metavar="SECONDS", help="wait at most so long before each pair for 90%% idle CPUs (default 0)")
    p.add_argument("--setup", action="store_true", help="only install and build the peers and convert the models")
    p.add_argument("--table", metavar="JSON", help="only print the table of a results file")
    p.add_argument("--work", default=os.path.join(ROOT, "build", "peers"), metavar="DIR", help="where peers and models go (default build/peers)")
    p.add_argument("--output", metavar="JSON", help="default: bench/results/peers-DATE-CPU.json; rows that are there and not measured again stay")
    return p.parse_args()


def main():
    o = parse()
    if o.table:
        with open(o.table) as f:
            table(json.load(f))
        return 0
    bench = Bench(o)
    status = 0
    signal.signal(signal.SIGINT, signal.default_int_handler)      # shells start background jobs with it ignored
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))     # as Ctrl-C: the child ends too
    try:
        bench.main()
    except KeyboardInterrupt:
        status = 130
        if child is not None:
            os.killpg(child.pid, signal.SIGKILL)
        say("interrupted; what was measured is kept")
    except Failed as e:
        say(f"peers: {e}")
        status = 1
    if not o.setup and (bench.out["rows"] or bench.out["load"]):
        bench.save()
        table(bench.out)
        say(f"written: {bench.path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
