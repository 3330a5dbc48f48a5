#!/usr/bin/env python3
"""tidy.py BUILD [--jobs N] [--all]: clang-tidy over the tree's sources, those that changed.

A source is checked again when it, a header of ours that it includes, its compile command,
.clang-tidy or clang-tidy itself changed since it was last found clean, in this tree or in another
copy of it: the marks stand in the user's cache folder, named by a hash of all that, as ccache keeps
objects. --all checks everything. Kernel sources are checked for one SIMD target: the others are the
same text, and reading it seven times takes seven times as long.

The plug-in tidy/own_code_scope.cc keeps the checks out of system headers, where they spend most of their time and
report nothing. It is built here, and used once clang-tidy finds with it all that tidy/findings.cc has wrong. Without
libclang-dev it is left out, which a line says.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

PROJECT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "frontends", "tests", "fuzz", "bench")
ONE_TARGET = "-DHWY_COMPILE_ONLY_STATIC"
SCOPE = PROJECT / "tools/tidy/own_code_scope.cc"
FINDINGS = PROJECT / "tools/tidy/findings.cc"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "gradpress", "tidy")


def sources(build):
    """The compile commands of our own sources, one per file, without the compiler's launcher."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(PROJECT) and path.relative_to(PROJECT).parts[0] in FOLDERS:
            words = shlex.split(entry["command"])
            while words and pathlib.Path(words[0]).name in ("ccache", "sccache"):
                words.pop(0)
            commands[path] = (entry["directory"], words)
    return commands


def one_target(words):
    """The definition that leaves kernels one target. Sources with a precompiled header have no kernels, and no definition
    that the header was compiled without."""
    return [] if "-include-pch" in words else [ONE_TARGET]


def fingerprint(path, directory, words, version):
    """A hash of all that the verdict on `path` depends on."""
    listing = words[:words.index("-o")] + [*one_target(words), "-MM", str(path)]
    listing = [word for word in listing if word not in ("-c", "-MD")]
    text = subprocess.run(listing, cwd=directory, check=True, capture_output=True, text=True).stdout
    files = text.split(":", 1)[1].replace("\\\n", " ").split()
    # Where the tree and its build folder are does not matter.
    command = shlex.join(words).replace(str(directory), "BUILD").replace(str(PROJECT), "TREE")
    digest = hashlib.sha256((version + command + str(path.relative_to(PROJECT))).encode())
    for name in sorted({str(pathlib.Path(directory, name).resolve()) for name in files}):
        digest.update(pathlib.Path(name).read_bytes())
    for folder in (PROJECT, *(PROJECT / name for name in FOLDERS)):
        if (folder / ".clang-tidy").exists():
            digest.update((folder / ".clang-tidy").read_bytes())
    return digest.hexdigest()


def narrowed(version):
    """The arguments that load the plug-in, or none where it cannot be built. Ends the program when it hides a finding."""
    known = hashlib.sha256((version + SCOPE.read_text() + FINDINGS.read_text()).encode()).hexdigest()
    library = CACHE / f"own_code_scope.{known}.so"
    arguments = [f"--load={library}", "--checks=gradpress-own-code-scope"]
    if library.exists():
        return arguments
    headers = "/usr/lib/llvm-14/include"
    if not pathlib.Path(headers, "clang-tidy").is_dir():
        print("tidy: libclang-dev is not installed: the checks read system headers too, and take four times as long")
        return []
    fresh = library.with_suffix(f".{os.getpid()}")
    subprocess.run(["clang++", "-std=c++17", "-O1", "-fPIC", "-shared", "-fno-rtti", "-isystem", headers, str(SCOPE),
                    "-o", str(fresh)], check=True)
    said = subprocess.run(
        ["clang-tidy", "--quiet", f"--load={fresh}", arguments[1], str(FINDINGS), "--", "-std=c++20", "-Wall"],
        capture_output=True, text=True, check=False).stdout
    found = {int(line) for line in re.findall(rf"{re.escape(str(FINDINGS))}:(\d+):\d+: error:", said)}
    wanted = {number for number, line in enumerate(FINDINGS.read_text().splitlines(), 1) if line.endswith("// wrong")}
    if found != wanted:
        fresh.unlink()
        sys.exit(f"tidy: with {SCOPE.relative_to(PROJECT)} clang-tidy has findings in the lines {sorted(found)} of "
                 f"{FINDINGS.relative_to(PROJECT)}, wanted {sorted(wanted)}:\n{said}")
    fresh.rename(library)
    return arguments


def check(path, build, directory, words, version, options):
    """(path, what clang-tidy said, whether it was clean, seconds; 0 when nothing had changed)."""
    anyway, scope = options
    mark = CACHE / fingerprint(path, directory, words, version)
    if mark.exists() and not anyway:
        return path, "", True, 0.0
    started = time.monotonic()
    run = subprocess.run(
        ["clang-tidy", "--quiet", *scope, "-p", str(build),
         *(f"--extra-arg={word}" for word in one_target(words)), str(path)],
        capture_output=True, text=True, check=False)
    clean = run.returncode == 0
    if clean:
        mark.touch()
    return path, run.stdout if clean else run.stdout + run.stderr, clean, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    build = args.build.resolve()
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True,
                             text=True).stdout
    commands = sources(build)
    if not commands:
        sys.exit(f"tidy: {build}/compile_commands.json names no source of ours")
    CACHE.mkdir(parents=True, exist_ok=True)
    options = (args.all, narrowed(version))
    wrong = checked = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(check, path, build, *command, version, options)
                for path, command in sorted(commands.items())]
        for job in concurrent.futures.as_completed(jobs):
            path, said, clean, seconds = job.result()
            wrong += not clean
            if seconds:
                checked += 1
                print(f"{'clean' if clean else 'WRONG'} {seconds:5.1f} s  "
                      f"{path.relative_to(PROJECT)}", flush=True)
            if not clean:
                print(said, flush=True)
    print(f"tidy: {len(commands)} sources, {checked} checked, {wrong} with findings")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
