"""run_all.py [--examples FOLDER] [NAME...]: runs every *_test.py beside it with the INSTALLED package, one after another.

A test is a script: exit code 0 is passed, 77 is skipped (its last line says why), all else is failed. With --examples, the
programs in that folder run too, on two ranks by `gradpress launch`. NAMEs choose some. Prints versions, one line per
test, the output of those that failed, and "N passed, N failed, N skipped" last. Exit code 0 if none failed.
"""
import argparse
import ast
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
# Against hangs alone.
LIMIT_S = 600
# Tests of the checkout rather than of the package.
ELSEWHERE = {"install_test.py": "needs a build folder", "judge_test.py": "tests bench/ddp"}
# Debian's torch 2.x is built without libuv, and asks for it unless told not to.
# Some virtual machines announce AMX and refuse it: torch's own bf16 products die there (SIGILL).
VARIABLES = {"USE_LIBUV": "0", "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONDONTWRITEBYTECODE": "1"}
# The wheel's own launcher for examples. torchrun fails with Debian 13's torch 2.6 in every way: its rendezvous asks for
# libuv whatever USE_LIBUV says.
LAUNCHER = pathlib.Path(sys.executable).with_name("gradpress")
VERSIONS = """
import platform, torch, gradpress
print(f"Python {platform.python_version()}, torch {torch.__version__}, glibc {platform.libc_ver()[1]}, "
      f"gradpress {gradpress.__version__} in {gradpress.__path__[0]}")
"""


def run(command, folder):
    """Exit code and output."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GRADPRESS_LIBRARY")}
    with subprocess.Popen(command, cwd=folder, env={**variables, **VARIABLES}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        try:
            output = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # the ranks with it
            return 1, process.communicate()[0] + f"\nno end within {LIMIT_S} s"
    return process.returncode, output


def missing_imports(path):
    """Packages that an example imports and this system need not have."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    packages = {name.split(".")[0] for name in names} - {"torch", "gradpress"}
    return sorted(name for name in packages if not importlib.util.find_spec(name))


def tests(examples):
    """Name to command, or to why it cannot run."""
    found = {path.name: [sys.executable, path] for path in sorted(HERE.glob("*_test.py"))}
    if examples:
        for path in sorted(pathlib.Path(examples).resolve().glob("*.py")):
            missing = missing_imports(path)
            found[f"example {path.name}"] = (f"needs {', '.join(missing)}" if missing else
                                             [LAUNCHER, "launch", "-n", "2", "--prefix", "--", sys.executable, path, "."])
    found.update((name, f"{reason}; ./run test runs it") for name, reason in ELSEWHERE.items())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    found = tests(arguments.examples)
    unknown = sorted(set(arguments.names) - set(found))
    if unknown:
        sys.exit(f"run_all.py: no test {', '.join(unknown)}; there are {', '.join(found)}")
    code, versions = run([sys.executable, "-c", VERSIONS], "/")
    if code:
        sys.exit(f"run_all.py: torch or gradpress cannot be imported\n{versions}")
    print(versions, end="", flush=True)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in arguments.names or found:
        if isinstance(found[name], str):
            counts["skipped"] += 1
            print(f"skipped           {name}: {found[name]}", flush=True)
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gradpress-run-") as folder:
            code, output = run(found[name], folder)
        result = {0: "passed", SKIPPED: "skipped"}.get(code, "failed")
        counts[result] += 1
        reason = f": {output.strip().splitlines()[-1]}" if result == "skipped" and output.strip() else ""
        print(f"{result}  {time.monotonic() - started:6.1f} s  {name}{reason}", flush=True)
        if result == "failed":
            print(f"-- {name}, exit code {code}\n{output}--", flush=True)
    print(", ".join(f"{count} {result}" for result, count in counts.items()))
    sys.exit(1 if counts["failed"] else 0)


main()
