#!/usr/bin/env python3
"""Commands on several ranks, through real mpirun: same numbers as on one rank and as the references, and what users see when something goes wrong.

Usage: run_commands.py INFLIGHT [part of a case's name...]. Needs Python's standard library and Open MPI's mpirun; without that it says so and ends with exit code 77.
"""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(TESTS, "cases"))
import run_cases  # noqa: E402
from run_cases import Failed  # noqa: E402

BINARY = os.path.abspath(sys.argv[1])
TINY = os.path.join(TESTS, "tiny")
FAULT = 10      # seconds from what happens to a rank until all have ended
PATIENCE = 120  # for anything else; the machine may be busy
MPIRUN = shutil.which("mpirun")
LAUNCH = ["--allow-run-as-root"] * (os.getuid() == 0) + ["--oversubscribe", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo", "--mca", "btl", "self,vader"]
CASES = []


def case(function):
    CASES.append(function)
    return function


def mpirun(ranks, *arguments):
    return [MPIRUN, *LAUNCH, "-n", str(ranks), BINARY, *arguments]


def model(name):
    return os.path.join(TINY, name)


class Run:
    """A command, with everything that it starts."""

    def __init__(self, command, stdin=subprocess.DEVNULL, **options):
        self.token = uuid.uuid4().hex
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        environment = dict(os.environ, INFLIGHT_TEST_RUN=self.token, ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0", **options.pop("env", {}))  # leaks are MPI's

        def default_signals():
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)

        self.shared = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(command, stdin=stdin, stdout=options.pop("stdout", self.out), stderr=self.err, env=environment, preexec_fn=default_signals, **options)

    def text(self, file):
        return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

    def stdout(self):
        return self.text(self.out)

    def stderr(self):
        return self.text(self.err)

    def alive(self):
        """{process: its environment} of what this run started and is still there."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    environment = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if environment.get(b"INFLIGHT_TEST_RUN") == self.token.encode() and state != "Z":
                found[int(entry)] = environment
        return found

    def rank(self, number):
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE:
            for process, environment in self.alive().items():
                if environment.get(b"OMPI_COMM_WORLD_RANK") == str(number).encode():
                    return process
            time.sleep(0.05)
        raise Failed(f"there is no rank {number}")

    def until(self, holds, what):
        began = time.monotonic()
        while not holds():
            if self.process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise Failed(f"{what} never came; stderr: {self.stderr()[-2000:]}")
            time.sleep(0.02)

    def end(self, seconds=PATIENCE):
        """The exit code, once nothing of the run is left."""
        began = time.monotonic()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"still there after {seconds} s; stderr: {self.stderr()[-2000:]}") from None
        while self.alive():
            if time.monotonic() - began > seconds:
                left = self.kill()
                raise Failed(f"processes {left} were left behind")
            time.sleep(0.02)
        if left := {name for name in os.listdir("/dev/shm") if "inflight" in name} - self.shared:
            raise Failed(f"/dev/shm holds {left}")
        return code

    def kill(self):
        left = list(self.alive())
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        return left


def done(command, code=0, stdin=None, **options):
    """Standard output and error of a command that must end with this code."""
    if stdin is not None:
        file = tempfile.TemporaryFile()
        file.write(stdin.encode())
        file.seek(0)
        options["stdin"] = file
    run = Run(command, **options)
    got = run.end()
    if got != code:
        raise Failed(f"exit code {got} instead of {code} of {' '.join(command)}\nstderr: {run.stderr()[-3000:]}")
    return run.stdout(), run.stderr()


def must(text, *parts):
    for part in parts:
        if part not in text:
            raise Failed(f"\"{part}\" is not in: {text[-2000:]}")


def must_not(text, *parts):
    for part in parts:
        if part in text:
            raise Failed(f"\"{part}\" is in: {text[-2000:]}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def parallel(ranks, *more):
    return ["--tensor-parallel-size", str(ranks), *more]


# --- numbers ---------------------------------------------------------------------------------------------------------

def check_logits(name, ranks, quantization, *more):
    """`logits` under mpirun against the reference; what inflight starts itself gives the same bytes, one rank the same up to rounding."""
    reference = run_cases.read_safetensors(os.path.join(model(name), "golden.safetensors"))
    prompt = next(key for key in reference if key.startswith("prompt."))[len("prompt."):]
    ids = ",".join(str(i) for i in reference[f"prompt.{prompt}"][1])
    with tempfile.TemporaryDirectory() as tmp:
        def arguments(file, *flags):
            words = ["logits", model(name), "--tokens", ids, "--output", os.path.join(tmp, file), "--compute", "fp32", "--lm-head", "bf16", *flags]
            return words + (["--quantization", quantization] if quantization else ["--hidden"])

        done(mpirun(ranks, *arguments("mpirun", *parallel(ranks, *more))))
        done([BINARY, *arguments("started", *parallel(ranks, *more))])
        done([BINARY, *arguments("one")])
        got, one = run_cases.read_safetensors(os.path.join(tmp, "mpirun")), run_cases.read_safetensors(os.path.join(tmp, "one"))
        key = f"logits_{quantization}.{prompt}" if quantization else f"logits.{prompt}"
        if key in reference:
            run_cases.compare(key, got["logits"], reference[key])
        run_cases.compare(f"{key} against one rank", got["logits"], one["logits"])
        if not quantization:
            run_cases.compare(f"hidden.{prompt}", got["hidden"], reference[f"hidden.{prompt}"])
        if read(os.path.join(tmp, "mpirun")) != read(os.path.join(tmp, "started")):
            raise Failed("under mpirun and started by inflight itself the files differ")


@case
def logits_of_dense_attention():
    check_logits("tiny-qwen3", 2, "")
    check_logits("tiny-qwen3", 2, "wint8")
    check_logits("tiny-qwen3", 4, "")


@case
def logits_of_experts():
    check_logits("tiny-ernie4_5-moe", 2, "", "--enable-expert-parallel")
    check_logits("tiny-ernie4_5-moe", 2, "wint8", "--enable-expert-parallel")
    check_logits("tiny-ernie4_5-moe", 2, "wint8")


@case
def logits_of_latent_attention():
    check_logits("tiny-deepseek-v3", 2, "")
    check_logits("tiny-deepseek-v3", 2, "wint8", "--enable-expert-parallel")


@case
def answers_are_those_of_one_rank():
    arguments = ["generate", model("tiny-qwen3"), "-p", "Hello there", "--json", "--max-tokens", "12", "--ignore-eos", "--compute", "fp32", "--seed", "5", "--temperature", "0.7"]
    one = json.loads(done([BINARY, *arguments])[0])["ids"]
    for command in (mpirun(2, *arguments, *parallel(2)), [BINARY, *arguments, *parallel(2)]):
        if (got := json.loads(done(command)[0])["ids"]) != one:
            raise Failed(f"ids {got} instead of {one}")


@case
def a_batch_from_a_file_and_from_a_pipe():
    lines = "".join(json.dumps({"prompt": f"number {i}", "max_tokens": 4, "ignore_eos": True}) + "\n" for i in range(5))
    one = done([BINARY, "generate", model("tiny-qwen3"), "--prompts", "-", "--compute", "fp32"], stdin=lines)[0]
    many = [BINARY, "generate", model("tiny-qwen3"), "--compute", "fp32", *parallel(2), "--prompts"]
    if done([*many, "-"], stdin=lines)[0] != one:
        raise Failed("standard input: other answers than one rank's")
    if done(["bash", "-c", 'lines=$1; shift; exec "$@" <(printf %s "$lines")', "bash", lines, *many])[0] != one:
        raise Failed("<(...): other answers than one rank's")
    if done(mpirun(2, *many[1:], "-"), stdin=lines)[0].replace("\r\n", "\n") != one:
        raise Failed("mpirun's standard input: other answers than one rank's")


@case
def groups_of_ranks_have_sequences_of_their_own():
    lines = "".join(json.dumps({"prompt": f"number {i}", "max_tokens": 8, "ignore_eos": True}) + "\n" for i in range(5))
    arguments = ["generate", model("tiny-ernie4_5-moe"), "--compute", "fp32", "--prompts", "-"]
    with tempfile.TemporaryDirectory() as tmp:
        loads = os.path.join(tmp, "loads")
        one = done([BINARY, *arguments, "--expert-load", loads], stdin=lines)[0]
        with open(loads, encoding="utf-8") as file:
            counted = json.load(file)
        for more in (["--data-parallel-size", "2"], [*parallel(2), "--data-parallel-size", "2"]):
            if done([BINARY, *arguments, *more, "--expert-load", loads], stdin=lines)[0] != one:
                raise Failed(f"{more}: other answers than one rank's")
            with open(loads, encoding="utf-8") as file:
                if json.load(file) != counted:
                    raise Failed(f"{more}: other loads of experts than on one rank")
    for more in (["--data-parallel-size", "2"], parallel(2, "--enable-expert-parallel")):
        eplb = [*more, "--enable-eplb", "--redundant-experts", "2", "--eplb-interval", "2"]
        out, err = done([BINARY, *arguments, *eplb], stdin=lines)
        if out != one:
            raise Failed(f"{more} with EPLB: other answers than one rank's")
        # Experts are loaded beside the work, and a few steps may be over before they are there: more steps, until they are.
        for tokens in (64, 128, 256, 400):
            if "experts were placed by their loads" in err:
                break
            _, err = done([BINARY, *arguments, *eplb], stdin=lines.replace('"max_tokens": 8', f'"max_tokens": {tokens}'))
        must(err, "experts were placed by their loads")


@case
def groups_with_sequences_of_their_own_give_the_same_answers():
    lines = "".join(json.dumps({"prompt": f"number {i}", "max_tokens": 6, "ignore_eos": True}) + "\n" for i in range(6))
    command = [BINARY, "generate", model("tiny-qwen3-moe"), "--prompts", "-", "--compute", "fp32"]
    one = done(command, stdin=lines)[0]
    for flags in (["--data-parallel-size", "2"], ["--data-parallel-size", "2", "--tensor-parallel-size", "2"], [*parallel(2), "--enable-expert-parallel", "--enable-eplb", "--redundant-experts", "2", "--eplb-interval", "4"]):
        if done([*command, *flags], stdin=lines)[0] != one:
            raise Failed(f"{' '.join(flags)}: other answers than one rank's")
    if done(mpirun(4, *command[1:], "--data-parallel-size", "4"), stdin=lines)[0].replace("\r\n", "\n") != one:
        raise Failed("four groups under mpirun: other answers than one rank's")


@case
def eval_and_its_reference():
    arguments = ["eval", model("tiny-qwen3"), "--data", os.path.join(TESTS, "text", "heldout.txt"), "--window", "32", "--windows", "2", "--json", "--compute", "fp32", "--reference", model("tiny-qwen3"),
                 "--quantization", "wint8"]
    one, two = (json.loads(done(command)[0]) for command in ([BINARY, *arguments], [BINARY, *arguments, *parallel(2)]))
    for key in ("nats_per_token", "reference_nats_per_token", "kl_mean"):
        if not abs(one[key] - two[key]) <= 1e-4 * abs(one["nats_per_token"]):
            raise Failed(f"{key}: {two[key]}, on one rank {one[key]}")


@case
def bench_counts_what_ranks_send():
    out, _ = done([BINARY, "bench", model("tiny-qwen3"), "--prompt-tokens", "8", "--decode-tokens", "8", "--repeat", "1", "--json", *parallel(2)])
    ranks = json.loads(out)["ranks"]
    if ranks["size"] != 2 or ranks["decode"]["bytes_per_token"] != ranks["decode"]["formula_bytes_per_token"]:
        raise Failed(f"not what the formula says: {ranks}")


@case
def calibration_sees_what_one_rank_sees():
    with tempfile.TemporaryDirectory() as tmp:
        for name, flags in (("tiny-qwen3", []), ("tiny-ernie4_5-moe", []), ("tiny-ernie4_5-moe", ["--enable-expert-parallel"])):
            texts = []
            for more in ([], parallel(2, *flags)):
                text = os.path.join(tmp, "maxima")
                done([BINARY, "calibrate", model(name), "--data", os.path.join(TESTS, "text", "heldout.txt"), "--windows", "2", "--window", "24", "--compute", "fp32", "--output",
                      os.path.join(tmp, "scales.safetensors"), "--text", text, *more])
                with open(text, encoding="utf-8") as file:
                    texts.append({line.split("\t")[0]: float(line.split("\t")[1]) for line in file if line.strip()})
            one, two = texts
            if one.keys() != two.keys() or not one:
                raise Failed(f"{name} {flags}: other points: {one.keys() ^ two.keys()}")
            for point, value in one.items():
                if not abs(two[point] - value) <= 1e-4 * abs(value):
                    raise Failed(f"{name} {flags}: {point} is {two[point]}, on one rank {value}")


def raw_tensors(folder):
    """{name: (dtype, shape, bytes)} of all a folder's weights, which every file named in the index must hold once."""
    found, files = {}, sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    for name in files:
        data = read(os.path.join(folder, name))
        size = int.from_bytes(data[:8], "little")
        for tensor, info in json.loads(data[8:8 + size]).items():
            if tensor == "__metadata__":
                continue
            if tensor in found:
                raise Failed(f"{tensor} is in two files of {folder}")
            begin, end = info["data_offsets"]
            found[tensor] = (info["dtype"], info["shape"], data[8 + size + begin:8 + size + end], name)
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            if json.load(file)["weight_map"] != {tensor: value[3] for tensor, value in found.items()}:
                raise Failed(f"the index of {folder} names other files")
    return {tensor: value[:3] for tensor, value in found.items()}, len(files)


def beside_weights(folder):
    return {name: read(os.path.join(folder, name)) for name in os.listdir(folder) if not name.endswith((".safetensors", ".index.json"))}


def check_conversion(source, ranks, *flags, writers=None):
    """The folder that several ranks write holds what one rank's holds; under mpirun, and started by inflight itself."""
    with tempfile.TemporaryDirectory() as tmp:
        one = os.path.join(tmp, "one")
        done([BINARY, "convert", source, *flags, "--output", one])
        want, _ = raw_tensors(one)
        for name, start in (("started", [BINARY]), ("mpirun", mpirun(ranks))):
            out = os.path.join(tmp, name)
            _, err = done([*start, "convert", source, *flags, "--output", out, *parallel(ranks)])
            must(err, "wrote ")
            got, files = raw_tensors(out)
            if files != (writers or ranks):
                raise Failed(f"{source} {flags}: {files} files of {ranks} ranks")
            if got != want:
                raise Failed(f"{source} {flags} on {ranks} ranks: other tensors: {[key for key in sorted(want.keys() | got.keys()) if want.get(key) != got.get(key)][:8]}")
            if beside_weights(out) != beside_weights(one):
                raise Failed(f"{source} {flags} on {ranks} ranks: other files beside the weights")
        if sorted(os.listdir(tmp)) != ["mpirun", "one", "started"]:
            raise Failed(f"it left {os.listdir(tmp)}")


@case
def conversion_writes_what_one_rank_writes():
    check_conversion(model("tiny-qwen3"), 2, "--quantization", "wint8")
    check_conversion(model("tiny-qwen3"), 3, "--quantization", "wint4-g32")
    check_conversion(model("tiny-ernie4_5-moe"), 3, "--quantization", "wint4-g32", "--lm-head", "wint8")
    check_conversion(model("tiny-deepseek-v3"), 2, "--quantization", "wint8")  # with parameters that follow from others


@case
def conversion_keeps_stored_forms():
    for form, ranks in (("forms/gptq-4bit-act-order", 2), ("forms/ct-w4a16-channel-zero", 3), ("forms/fp8-block-deepseek-v3", 2), ("forms/paddle-wint8", 2)):
        check_conversion(os.path.join(TESTS, form), ranks)


@case
def conversion_to_fp8_writes_what_one_rank_writes():
    check_conversion(model("tiny-qwen3"), 2, "--quantization", "block_wise_fp8")
    check_conversion(model("tiny-ernie4_5-moe"), 3, "--quantization", "tensor_wise_fp8")
    check_conversion(model("tiny-qwen3"), 2, "--quantization", "tensor_wise_fp8", "--scales", os.path.join(model("tiny-qwen3"), "fp8_amax.json"))


@case
def conversion_over_tokens_is_done_by_one_rank():
    with tempfile.TemporaryDirectory() as tmp:
        scales = os.path.join(tmp, "scales.safetensors")
        done([BINARY, "calibrate", model("tiny-qwen3"), "--data", os.path.join(TESTS, "text", "heldout.txt"), "--windows", "2", "--window", "24", "--output", scales])
        convert = ["convert", model("tiny-qwen3"), "--quantization", "tensor_wise_fp8", "--scales", scales]
        check_conversion(model("tiny-qwen3"), 2, *convert[2:], writers=1)
        check_conversion(model("tiny-qwen3"), 2, *convert[2:], "--rounding", "nearest")


@case
def a_conversion_that_fails_on_one_rank_leaves_nothing():
    with tempfile.TemporaryDirectory() as tmp:
        run_cases.make_model(tmp, "copy", {"from": "tiny-qwen3"})
        path = os.path.join(tmp, "copy", "model.safetensors")
        data = bytearray(read(path))
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        begin, end = header["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
        data[8 + size + begin:8 + size + end] = b"\xff" * (end - begin)  # NaN, of which only the rank that has the parameter hears
        with open(path, "wb") as file:
            file.write(data)
        out = os.path.join(tmp, "out")
        for flags in (["wint8"], ["tensor_wise_fp8"]):
            for start, ranks in (([BINARY], 2), (mpirun(3), 3)):
                _, err = done([*start, "convert", os.path.join(tmp, "copy"), "--quantization", *flags, "--output", out, *parallel(ranks)], code=2)
                must(err, "down_proj", "rank ")
                if err.count("inflight: ") != 1 or os.listdir(tmp) != ["copy"]:
                    raise Failed(f"told more than once, or something is left: {err} {os.listdir(tmp)}")
        _, err = done(apart(["convert", model("tiny-qwen3"), "--quantization", "wint8", "--output", out, *parallel(2)],
                            ["convert", model("tiny-qwen3"), "--quantization", "wint8", "--output", out + "2", *parallel(2)]), code=2)
        must(err, "rank 1", "--output")
        cut = changed_copy(tmp + "/copy", {"truncate": {"model.safetensors": 1000}})[1]
        _, err = done(apart(["convert", model("tiny-qwen3"), "--quantization", "wint8", "--output", out, *parallel(2)],
                            ["convert", cut, "--quantization", "wint8", "--output", out, *parallel(2)]), code=2)
        must(err, "rank 1", "model.safetensors")
        os.mkdir(out)
        with open(os.path.join(out, "mine"), "wb"):
            pass
        _, err = done([BINARY, "convert", model("tiny-qwen3"), "--quantization", "wint8", "--output", out, *parallel(2)], code=2)
        must(err, "exists already")
        if sorted(os.listdir(tmp)) != ["copy", "out"] or os.listdir(out) != ["mine"]:
            raise Failed(f"something is left: {os.listdir(tmp)}")


# --- wrong use -------------------------------------------------------------------------------------------------------

GENERATE = ["generate", model("tiny-qwen3"), "-p", "hi", "--max-tokens", "3"]


@case
def wrong_numbers_of_ranks_are_told_with_both():
    for command in (mpirun(2, *GENERATE), mpirun(3, *GENERATE, *parallel(2)), mpirun(1, *GENERATE, *parallel(2))):
        out, err = done(command, code=2)
        must(err, "--tensor-parallel-size")
        if out or err.count("inflight: ") != 1:
            raise Failed(f"told more than once, or on standard output: {out} {err}")
    must(done(mpirun(3, *GENERATE, *parallel(2)), code=2)[1], "needs 2 ranks, but 3 were started", "mpirun -n 2")
    must(done(mpirun(2, *GENERATE), code=2)[1], "2 ranks were started", "--tensor-parallel-size 2")


@case
def an_error_is_told_once():
    _, err = done([BINARY, "generate", model("nothing-here"), "-p", "x", *parallel(2)], code=2)
    must(err, "nothing-here")
    must_not(err, "rank 1", "mpirun")
    _, err = done([BINARY, *GENERATE, *parallel(2), "--max-model-len", "2"], code=2)
    must_not(err, "rank 1", "mpirun")


@case
def without_mpirun_or_the_plugin_the_package_is_named():
    with tempfile.TemporaryDirectory() as tmp:
        must(done([BINARY, *GENERATE, *parallel(2)], code=2, env={"PATH": tmp})[1], "openmpi-bin")
        copy = os.path.join(tmp, "inflight")
        shutil.copy(BINARY, copy)
        _, err = done([copy, *GENERATE, *parallel(2)], code=2)
        must(err, "libinflight_mpi.so, which is not here")
        must_not(err, "rank 1", "mpirun ")


def apart(first, second):
    """mpirun with another command line for each of two ranks."""
    return [MPIRUN, *LAUNCH, "-n", "1", BINARY, *first, ":", "-n", "1", BINARY, *second]


@case
def ranks_that_mean_different_things_are_refused():
    for flag, other in ((["--quantization", "wint8"], ["--quantization", "wint4"]), (["--compute", "fp32"], ["--compute", "bf16"]), ([], ["--block-size", "32"])):
        _, err = done(apart([*GENERATE, *parallel(2), *flag], [*GENERATE, *parallel(2), *other]), code=2)
        must(err, "rank 1", other[0], other[1])
    _, err = done(apart([*GENERATE, *parallel(2)], ["eval", model("tiny-qwen3"), "--data", __file__, *parallel(2)]), code=2)
    must(err, "rank 1", "command", "eval", "generate")


def changed_copy(tmp, change):
    run_cases.make_model(tmp, "copy", {"from": "tiny-qwen3", **change})
    return ["generate", os.path.join(tmp, "copy"), *GENERATE[2:], *parallel(2)]


@case
def another_checkpoint_on_one_rank_is_refused():
    with tempfile.TemporaryDirectory() as tmp:
        _, err = done(apart([*GENERATE, *parallel(2)], changed_copy(tmp, {"config": {"rope_theta": 12345.0}})), code=2)
        must(err, "rank 1", "config.json")
    with tempfile.TemporaryDirectory() as tmp:
        other = changed_copy(tmp, {})
        path = os.path.join(tmp, "copy", "model.safetensors")
        data = bytearray(read(path))
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        for name in header:
            if name.endswith("q_proj.weight"):
                header[name]["shape"].reverse()
        text = json.dumps(header, separators=(",", ":")).encode()
        data[8:8 + size] = text.ljust(size)
        with open(path, "wb") as file:
            file.write(data)
        _, err = done(apart([*GENERATE, *parallel(2)], other), code=2)
        must(err, "rank 1", "model.safetensors")


@case
def a_file_cut_on_one_rank_ends_all_with_its_message():
    with tempfile.TemporaryDirectory() as tmp:
        began = time.monotonic()
        out, err = done(apart([*GENERATE, *parallel(2)], changed_copy(tmp, {"truncate": {"model.safetensors": 1000}})), code=2)
        must(err, "rank 1", "model.safetensors")
        if out:
            raise Failed(f"an answer: {out}")
        if time.monotonic() - began > FAULT + 10:
            raise Failed("it took too long")


# --- ranks that die --------------------------------------------------------------------------------------------------

def long_work(command):
    """A batch that goes on for minutes; started, and its first answers are there."""
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    for i in range(4000):
        file.write(json.dumps({"prompt": f"number {i}", "max_tokens": 40, "ignore_eos": True}) + "\n")
    file.flush()
    run = Run([*command, "--prompts", file.name])
    run.file = file
    run.until(lambda: run.stdout().count("\n") > 2, "the first answer")
    return run


BATCH = ["generate", model("tiny-qwen3"), *parallel(2)]


def check_fault(command, rank, number):
    run = long_work(command)
    victim = run.rank(rank)
    try:
        os.kill(victim, number)
        code = run.end(FAULT)
    finally:
        run.kill()
    if code != 1 and not (command[0] == MPIRUN and code != 0):
        raise Failed(f"exit code {code} instead of 1; stderr: {run.stderr()[-2000:]}")
    must(run.stderr(), f"rank {rank}")
    if rank != 0 and ("requests in" in run.stderr() or '"error"' in run.stdout()):
        raise Failed(f"more than the one message: {run.stderr()[-2000:]} {run.stdout()[-2000:]}")


@case
def a_killed_rank_ends_all():
    for command in ([BINARY, *BATCH], mpirun(2, *BATCH)):
        check_fault(command, 1, signal.SIGKILL)
    check_fault([BINARY, *BATCH], 0, signal.SIGKILL)


@case
def a_stopped_rank_ends_all():
    check_fault([BINARY, *BATCH], 1, signal.SIGSTOP)


@case
def a_killed_launcher_ends_all():
    run = long_work([BINARY, *BATCH])
    run.process.kill()
    try:
        run.end(FAULT)
    finally:
        run.kill()


# --- signals, streams, terminals -------------------------------------------------------------------------------------

@case
def an_interrupt_ends_all_as_it_ends_one_process():
    for command in ([BINARY, "generate", model("tiny-qwen3")], [BINARY, *BATCH]):  # in the middle of work: the line is finished, exit code 1
        run = long_work(command)
        run.process.send_signal(signal.SIGINT)
        if (code := run.end()) != 1:
            raise Failed(f"exit code {code} instead of 1; stderr: {run.stderr()[-2000:]}")
        must(run.stderr(), "interrupted")
        must_not(run.stderr(), "rank 1", "mpirun")
    read_end, write_end = os.pipe()  # before it: the signal's own end
    run = Run([BINARY, "generate", model("tiny-qwen3"), "-", *parallel(2)], stdin=read_end)
    run.rank(1)
    time.sleep(1)
    run.process.send_signal(signal.SIGINT)
    code = run.end()
    os.close(write_end)
    os.close(read_end)
    if code != -signal.SIGINT:
        raise Failed(f"exit code {code} instead of {-signal.SIGINT}; stderr: {run.stderr()[-2000:]}")
    must_not(run.stderr(), "rank 1", "mpirun")


@case
def a_reader_that_goes_away_ends_all():
    read_end, write_end = os.pipe()
    file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")
    for i in range(4000):
        file.write(json.dumps({"prompt": f"number {i}", "max_tokens": 40, "ignore_eos": True}) + "\n")
    file.flush()
    run = Run([BINARY, *BATCH, "--prompts", file.name], stdout=write_end)
    os.close(write_end)
    os.read(read_end, 10)
    os.close(read_end)
    if (code := run.end()) != 0:
        raise Failed(f"exit code {code}; stderr: {run.stderr()[-2000:]}")


@case
def standard_input_reaches_rank_0():
    arguments = ["generate", model("tiny-qwen3"), "-", "--json", "--max-tokens", "6", "--compute", "fp32"]
    one = done([BINARY, *arguments], stdin="some text\n")[0]
    for command in ([BINARY, *arguments, *parallel(2)], mpirun(2, *arguments, *parallel(2))):
        if (got := done(command, stdin="some text\n")[0].replace("\r\n", "\n")) != one:
            raise Failed(f"{got} instead of {one}")
    out, _ = done([BINARY, "chat", model("tiny-qwen3"), "--max-tokens", "6", "--compute", "fp32", *parallel(2)], stdin="hello\nagain\n")
    if out != done([BINARY, "chat", model("tiny-qwen3"), "--max-tokens", "6", "--compute", "fp32"], stdin="hello\nagain\n")[0]:
        raise Failed("chat: other answers than one rank's")


@case
def words_that_mpirun_would_read_are_ours():
    arguments = ["generate", model("tiny-qwen3"), "--json", "--max-tokens", "3", "--raw", "-p", ":"]
    if done([BINARY, *arguments, *parallel(2)])[0] != done([BINARY, *arguments])[0]:
        raise Failed("\":\" is another prompt on two ranks")


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, command):
        self.token = uuid.uuid4().hex
        self.process, self.screen = pty.fork()
        if self.process == 0:
            os.execve(command[0], command, dict(os.environ, TERM="xterm", INFLIGHT_TEST_RUN=self.token))
        self.seen = ""

    def until(self, pattern):
        began = time.monotonic()
        while not (found := re.search(pattern, self.seen)):
            if time.monotonic() - began > PATIENCE:
                raise Failed(f"\"{pattern}\" never came: {self.seen!r}")
            if select.select([self.screen], [], [], 0.1)[0]:
                self.seen += os.read(self.screen, 4096).decode(errors="replace")
        self.seen = self.seen[found.end():]

    def write(self, text):
        os.write(self.screen, text.encode())

    def end(self):
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE:
            if select.select([self.screen], [], [], 0.05)[0]:
                try:
                    os.read(self.screen, 4096)
                except OSError:
                    pass
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                os.close(self.screen)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        raise Failed("still there")


@case
def a_terminal_is_rank_0s():
    terminal = Terminal([BINARY, "chat", model("tiny-qwen3"), "--max-tokens", "200", "--ignore-eos", *parallel(2)])
    terminal.until("sampling: ")
    time.sleep(1)
    terminal.write("hellp\x7fo")     # edited
    terminal.until("o")
    terminal.write("\r")
    time.sleep(2)
    terminal.write("\x1b[A")         # the last line again: there is a history
    terminal.until("hello")
    terminal.write("\x03")           # not this one
    time.sleep(0.5)
    terminal.write("/exit\r")
    if (code := terminal.end()) != 0:
        raise Failed(f"exit code {code}")


# --- several at once -------------------------------------------------------------------------------------------------

@case
def two_runs_at_once_do_not_meet():
    arguments = ["generate", model("tiny-qwen3"), "--json", "--max-tokens", "8", "--compute", "fp32", "-p"]
    one = [done([BINARY, *arguments, text])[0] for text in ("a", "b")]
    runs = [Run([BINARY, *arguments, text, *parallel(2)]) for text in ("a", "b")]
    for run, expected in zip(runs, one):
        if (code := run.end()) != 0 or run.stdout() != expected:
            raise Failed(f"exit code {code}, {run.stdout()} instead of {expected}; stderr: {run.stderr()[-1000:]}")


def main():
    if not MPIRUN:
        print("no mpirun here (Debian: openmpi-bin): commands on several ranks are not tested")
        return 77
    failed = passed = 0
    for check in CASES:
        name = check.__name__.replace("_", " ")
        if sys.argv[2:] and not any(part in name for part in sys.argv[2:]):
            continue
        began = time.monotonic()
        try:
            check()
            passed += 1
            print(f"passed: {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Failed as error:
            failed += 1
            print(f"FAILED: {name}: {error}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
