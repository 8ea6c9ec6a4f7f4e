#!/usr/bin/env python3
"""One model on two hosts: network namespaces with addresses and names of their own on this machine, joined by a virtual cable, and mpirun between them.

Usage: two_hosts.py INFLIGHT. Needs Open MPI's mpirun, iproute2, util-linux and the right to make network namespaces; without one of them it says so and ends with exit
code 77. Everything listens inside the two namespaces alone, and they are removed at the end.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(TESTS, "cases"))
sys.path.insert(0, HERE)
import run_cases  # noqa: E402
import run_commands  # noqa: E402

BINARY = os.path.abspath(sys.argv[1])
TINY = os.path.join(TESTS, "tiny")
NAMES = [f"inflight-{os.getpid()}-{letter}" for letter in "ab"]
ADDRESSES = ["10.213.77.1", "10.213.77.2"]

# What mpirun calls to start its daemon on a host: ssh's place. It enters that host's network and takes its name.
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""


def system(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def make_hosts():
    for tool, package in (("mpirun", "openmpi-bin"), ("ip", "iproute2"), ("unshare", "util-linux")):
        if not shutil.which(tool):
            skip(f"no {tool} here (Debian: {package})")
    for name in NAMES:
        made = system("ip", "netns", "add", name)
        if made.returncode:
            skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    a, b = (f"ifl{os.getpid() % 100000}{letter}" for letter in "ab")
    steps = [("ip", "link", "add", a, "netns", NAMES[0], "type", "veth", "peer", "name", b, "netns", NAMES[1])]
    for name, link, address in zip(NAMES, (a, b), ADDRESSES):
        steps += [("ip", "-n", name, "link", "set", link, "name", "eth0"), ("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0"),
                  ("ip", "-n", name, "link", "set", "lo", "up"), ("ip", "-n", name, "link", "set", "eth0", "up")]
    for step in steps:
        made = system(*step)
        if made.returncode:
            skip(f"{' '.join(step)}: {made.stderr.strip()}")


def on_hosts(agent, ranks, command, hosts_file):
    """The words that run the command on `ranks` ranks of each host, mpirun on the first."""
    with open(hosts_file, "w", encoding="ascii") as file:
        file.writelines(f"{name} slots={ranks}\n" for name in NAMES)
    mpirun = ["mpirun", *(["--allow-run-as-root"] if os.getuid() == 0 else []), "--hostfile", hosts_file, "--map-by", "slot", "--bind-to", "none", "-n", str(2 * ranks),
              "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "eth0",
              "-x", "INFLIGHT_TEST_RUN", *command]
    return ["ip", "netns", "exec", NAMES[0], "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', NAMES[0], *mpirun]


def known_names():
    """Both names in the namespaces' own /etc/hosts."""
    for name in NAMES:
        os.makedirs(f"/etc/netns/{name}", exist_ok=True)
        with open(f"/etc/netns/{name}/hosts", "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{address} {other}\n" for address, other in zip(ADDRESSES, NAMES)))


def check(agent, tmp, model, ranks, *flags):
    folder = os.path.join(TINY, model)
    reference = run_cases.read_safetensors(os.path.join(folder, "golden.safetensors"))
    prompt = next(key for key in reference if key.startswith("prompt."))[len("prompt."):]
    output = os.path.join(tmp, "logits.safetensors")
    arguments = ["logits", folder, "--tokens", ",".join(str(i) for i in reference[f"prompt.{prompt}"][1]), "--output", output, "--hidden", "--compute", "fp32", "--lm-head", "bf16",
                 "--tensor-parallel-size", str(2 * ranks), *flags]
    what = f"{model}, {ranks} rank{'s' if ranks > 1 else ''} on each of two hosts {' '.join(flags)}"
    run_commands.done(on_hosts(agent, ranks, [BINARY, *arguments], os.path.join(tmp, "hosts")))
    got = run_cases.read_safetensors(output)
    run_cases.compare(f"{what}: logits", got["logits"], reference[f"logits.{prompt}"])
    run_cases.compare(f"{what}: hidden", got["hidden"], reference[f"hidden.{prompt}"])
    print(f"passed: {what}", flush=True)


def check_really_two(agent, tmp):
    """Ranks do come to both, and the second has an address of its own."""
    out, _ = run_commands.done(on_hosts(agent, 1, ["sh", "-c", "hostname; ip -4 -o address show eth0"], os.path.join(tmp, "hosts")))
    for word in (*NAMES, *ADDRESSES):
        if word not in out:
            raise run_cases.Failed(f"{word} is no host of the job: {out}")


def check_fault(agent, tmp, what, happen, *told, mpirun_ends=True):
    """A batch that goes on for minutes ends soon after `happen`, on both hosts and with these words. mpirun itself may hear of a lost host much later."""
    run = run_commands.long_work(on_hosts(agent, 1, [BINARY, *run_commands.BATCH], os.path.join(tmp, "hosts")))
    try:
        began = time.monotonic()
        happen(run)
        if mpirun_ends and run.end(2 * run_commands.FAULT) == 0:
            raise run_cases.Failed(f"{what}: exit code 0")
        while any(b"OMPI_COMM_WORLD_RANK" in environment for environment in run.alive().values()):
            if time.monotonic() - began > 2 * run_commands.FAULT:
                raise run_cases.Failed(f"{what}: there are still ranks; stderr: {run.stderr()[-1000:]}")
            time.sleep(0.05)
        seconds = time.monotonic() - began
        run_commands.must(run.stderr(), *told)
    finally:
        run.kill()
    print(f"passed: {what} ({seconds:.1f} s)", flush=True)


def main():
    failed = False
    try:
        make_hosts()
        with tempfile.TemporaryDirectory() as tmp:
            agent = os.path.join(tmp, "agent")
            with open(agent, "w", encoding="ascii") as file:
                file.write(AGENT)
            os.chmod(agent, 0o755)
            known_names()
            try:
                check_really_two(agent, tmp)
                check(agent, tmp, "tiny-qwen3", 1)
                check(agent, tmp, "tiny-qwen3", 2)
                check(agent, tmp, "tiny-ernie4_5-moe", 1, "--enable-expert-parallel")
                check(agent, tmp, "tiny-deepseek-v3", 2)
                check_fault(agent, tmp, "a rank of the other host is killed", lambda run: os.kill(run.rank(1), signal.SIGKILL), "rank 1", NAMES[1])
                check_fault(agent, tmp, "the cable is cut", lambda run: system("ip", "-n", NAMES[0], "link", "set", "eth0", "down"), "rank 1", NAMES[1], mpirun_ends=False)
            except run_cases.Failed as error:
                failed = True
                print(f"FAILED: {error}")
    finally:
        for name in NAMES:
            system("ip", "netns", "del", name)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        if os.path.isdir("/etc/netns") and not os.listdir("/etc/netns"):
            os.rmdir("/etc/netns")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
