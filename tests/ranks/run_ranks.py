#!/usr/bin/env python3
"""Ranks as processes, under a real mpirun: collectives on one host and on several, and what happens when a rank is killed, stopped, fails or hangs.

A host's name can be given (INFLIGHT_HOST_NAME), so several hosts fit into one machine: ranks of unlike names share no memory and send messages.
Usage: run_ranks.py RANKS_CHECK MPIRUN [part of a case's name...]. Needs Python's standard library alone.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, MPIRUN = sys.argv[1:3]
WANTED = sys.argv[3:]
START, END = 90, 30  # seconds until the ranks work; from what happens to them until all have ended. The program's own promise is 10
TCP = ("--mca", "btl", "tcp,self")


class Failed(Exception):
    pass


def alive(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Run:
    """One job. `hosts`: the number of ranks on each."""

    def __init__(self, hosts, arguments, options=()):
        command = [MPIRUN, "--oversubscribe", *options]
        for number, ranks in enumerate(hosts):
            if number > 0:
                command.append(":")
            command += ["-n", str(ranks), "-x", f"INFLIGHT_HOST_NAME=host-{number}", PROGRAM, *arguments]
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")  # MPI's own
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.began = time.monotonic()
        self.job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env=environment)

    def text(self, file):
        return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")

    def ranks(self):
        return {int(rank): int(process) for rank, process in re.findall(r"rank (\d+) is process (\d+)", self.text(self.err))}

    def until_working(self):
        while "working" not in self.text(self.out):
            if self.job.poll() is not None or time.monotonic() - self.began > START:
                raise Failed("the ranks do not come to work")
            time.sleep(0.05)

    def send(self, rank, number):
        os.kill(self.ranks()[rank], number)

    def ended(self, seconds):
        """mpirun's exit code, once it and all ranks have ended."""
        began = time.monotonic()
        try:
            code = self.job.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"still there after {seconds} s") from None
        while left := [process for process in self.ranks().values() if alive(process)]:
            if time.monotonic() - began > seconds:
                raise Failed(f"processes {left} outlived mpirun")
            time.sleep(0.05)
        self.seconds = time.monotonic() - began
        return code

    def close(self):
        for process in self.ranks().values():
            if alive(process):
                os.kill(process, signal.SIGKILL)
        if self.job.poll() is None:
            self.job.kill()
            self.job.wait()

    def errors(self):
        return re.findall(r"^error: (.*)$", self.text(self.err), re.M)


def collectives(hosts, options=()):
    def case():
        run = Run(hosts, ["collectives"], options)
        try:
            code = run.ended(2 * START)
            wanted = f"{sum(hosts)} ranks on {len(hosts)} hosts: good"
            if code != 0 or wanted not in run.text(run.out):
                raise Failed(f"expected {wanted!r}, exit code 0; got {code}, {run.text(run.out)!r}, {run.text(run.err)[-2000:]!r}")
        finally:
            run.close()
        return ""
    return case


def trouble(hosts, arguments, happen, message, options=()):
    """happen(run) once the ranks work; then one error that matches `message`, said once, and the end of all."""
    def case():
        run = Run(hosts, ["steps", *arguments], options)
        try:
            run.until_working()
            time.sleep(1)  # rank 0 hears what ranks of other hosts do five times a second
            happen(run)
            code = run.ended(END)
            if code == 0:
                raise Failed("mpirun's exit code is 0")
            errors = run.errors()
            if len(errors) != 1 or not re.fullmatch(message, errors[0]):
                raise Failed(f"expected one error like {message!r}, got {errors}; standard error:\n{run.text(run.err)[-3000:]}")
        finally:
            run.close()
        return f"{run.seconds:.1f} s: {errors[0]}"
    return case


def in_order(hosts):
    def case():
        run = Run(hosts, ["steps", "last", "100"])
        try:
            code = run.ended(START)
            if code != 0 or run.errors():
                raise Failed(f"expected exit code 0 and no error, got {code}, {run.text(run.err)[-2000:]!r}")
        finally:
            run.close()
        return ""
    return case


def without_the_plugin():
    with tempfile.TemporaryDirectory() as folder:
        program = shutil.copy(PROGRAM, folder)
        run = subprocess.run([program, "collectives"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START)
        message = "error: several ranks need libinflight_mpi.so, which is not here."
        if run.returncode != 1 or not run.stderr.startswith(message) or f"{folder}/libinflight_mpi.so: no such file" not in run.stderr:
            raise Failed(f"expected {message!r} and exit code 1, got {run.returncode}, {run.stderr!r}")
        with open(os.path.join(folder, "libinflight_mpi.so"), "w", encoding="ascii") as file:
            file.write("no library")
        run = subprocess.run([program, "collectives"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START)
        message = f"error: several ranks need MPI, and {folder}/libinflight_mpi.so cannot be opened: "
        if run.returncode != 1 or not run.stderr.startswith(message):
            raise Failed(f"expected {message!r} and exit code 1, got {run.returncode}, {run.stderr!r}")
    return ""


def send(rank, number):
    return lambda run: run.send(rank, number)


def nothing(_):
    pass


STATE = r"(step \d+, layer \d(: all_reduce_sum)?)"


def killed(rank):
    return rf"rank {rank} on host host-\d \(pid \d+\) ended unexpectedly while: {STATE}"


def stopped(rank):
    return rf"rank {rank} on host host-\d \(pid \d+\) gives no sign of life for 6 s \(stopped, or its host is gone\), last state: {STATE}"


CASES = {
    "no plugin, and one that is none": without_the_plugin,
    **{f"collectives of {n}": collectives((n,)) for n in (1, 2, 3, 4)},
    "collectives on hosts of 1 and 1": collectives((1, 1)),
    "collectives on hosts of 2 and 2": collectives((2, 2)),
    "collectives on hosts of 1, 2 and 1": collectives((1, 2, 1)),
    "collectives on hosts of 2 and 2, over TCP": collectives((2, 2), TCP),
    "the end": in_order((3,)),
    "the end, on two hosts": in_order((2, 2)),
    "rank 1 of 2 killed": trouble((2,), (), send(1, signal.SIGKILL), killed(1)),
    "rank 2 of 4 killed": trouble((4,), (), send(2, signal.SIGKILL), killed(2)),
    "rank 0 of 3 killed": trouble((3,), (), send(0, signal.SIGKILL), killed(0)),
    "rank 3 of 2 and 2 killed": trouble((2, 2), (), send(3, signal.SIGKILL), killed(3)),
    "rank 3 of 2 and 2 killed, over TCP": trouble((2, 2), (), send(3, signal.SIGKILL), killed(3), TCP),
    "rank 1 of 2 stopped": trouble((2,), (), send(1, signal.SIGSTOP), stopped(1)),
    "rank 2 of 3 stopped": trouble((3,), (), send(2, signal.SIGSTOP), stopped(2)),
    "rank 0 of 3 stopped": trouble((3,), (), send(0, signal.SIGSTOP), stopped(0)),
    "rank 2 of 1, 1 and 1 stopped": trouble((1, 1, 1), (), send(2, signal.SIGSTOP), stopped(2)),
    "rank 1 of 3 fails": trouble((3,), ("fail", "1"), nothing, r'rank 1 \(step 20, layer 3\): "model.safetensors" is too short'),
    "rank 0 of 2 fails": trouble((2,), ("fail", "0"), nothing, r'rank 0 \(step 20, layer 3\): "model.safetensors" is too short'),
    "rank 2 of 1 and 2 fails": trouble((1, 2), ("fail", "2"), nothing, r'rank 2 \(step 20, layer 3\): "model.safetensors" is too short'),
    "rank 1 of 2 hangs": trouble((2,), ("busy", "1", "600", "stuck", "3"), nothing,
                                 r"rank 1 on host host-0 \(pid \d+\) hangs: others wait for it, and it has not moved for 3 s, last state: step 20, layer 3"),
    "rank 1 of 2 ends early": trouble((2,), ("early", "1"), nothing, r"rank [01] .*ranks are out of step: .* the end of 0.*"),
    "mpirun ended": trouble((2,), (), lambda run: run.job.terminate(), r"rank [01] was asked to end \(SIGTERM\) while: .*"),
}


def main():
    failed = passed = 0
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    for name, case in CASES.items():
        if WANTED and not any(part in name for part in WANTED):
            continue
        try:
            print(f"ok      {name}  {case()}", flush=True)
            passed += 1
        except Failed as failure:
            print(f"FAILED  {name}: {failure}", flush=True)
            failed += 1
    if left := [name for name in (set(os.listdir("/dev/shm")) if shared else set()) - shared if "inflight" in name]:
        print(f"FAILED  left in /dev/shm: {left}")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
