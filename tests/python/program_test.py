"""The command gradpress that the wheel brings: it runs, also on two ranks, and says what its missing parts need."""
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys

LIMIT_S = 120


def run(program, *words, **variables):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=LIMIT_S,
                          env={**os.environ, **variables})
    return done.returncode, done.stdout + done.stderr


def expect(outcome, code, *texts):
    got, output = outcome
    assert (got == 0) == (code == 0), f"wanted exit code {code}, got {got}\n{output}"
    for text in texts:
        assert text in output, f"wanted {text!r} in\n{output}"


def main():
    # Beside the interpreter in an environment; pip puts it where the shell finds it otherwise.
    beside = pathlib.Path(sys.executable).with_name("gradpress")
    program = str(beside) if beside.exists() else shutil.which("gradpress")
    if not program:
        print("skipped: no command gradpress beside this Python or in PATH; the wheel brings it")
        sys.exit(77)
    expect(run(program, "--version"), 0, importlib.metadata.version("gradpress"))
    expect(run(program, "doctor"), 0, "backend gloo")
    expect(run(program, "launch", "-n", "2", "--", program, "bench", "collective", "--backend", "gloo", "-b", "1M"), 0)
    # The wheel has neither trainer nor MPI modules.
    expect(run(program, "train", PATH="/nowhere"), 1, "gradpress-train", "libtorch-dev", "from source")
    expect(run(program, "bench", "collective", "--backend", "mpi", "-b", "1M", PMI_RANK="0", PMI_SIZE="1"), 1,
           "libgradpress_mpi_mpich.so", "libmpich-dev", "from source")
    print("passed: the program runs, and names what its missing parts need")


main()
