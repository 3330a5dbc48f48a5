#!/usr/bin/env python3
"""check_project.py CHECK PROJECT: what the tree says of itself must be so.

tests_are_built   every *_test.cc on disk is named by the CMakeLists.txt of its folder
readme_commands   every ./run command that a document shows is one that ./run has, and every
                  command that ./run has is in the README
versions_agree    version.h and CMakeLists.txt name one version, and CHANGELOG.md tells of it
Prints one line per disagreement, then a summary.
"""
import pathlib
import re
import subprocess
import sys

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/**/*.md"]


def tests_are_built(project):
    wrong = []
    for path in sorted((project / "tests").rglob("*_test.cc")):
        lists = path.parent / "CMakeLists.txt"
        named = lists.exists() and re.search(rf"(?<![\w/.]){re.escape(path.name)}\b",
                                             lists.read_text())
        if not named:
            wrong.append(f"{path.relative_to(project)}: not named in "
                         f"{lists.relative_to(project)}, so nothing builds it")
    return wrong


def readme_commands(project):
    listed = subprocess.run([str(project / "run"), "commands"], check=True, capture_output=True,
                            text=True).stdout.split()
    wrong = []
    shown = {}
    for pattern in DOCUMENTS:
        for path in sorted(project.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for command in re.findall(r"\./run ([a-z][\w-]*)", line):
                    shown.setdefault(command, f"{path.relative_to(project)}:{number}")
    for command, place in shown.items():
        if command not in listed:
            wrong.append(f"{place}: shows ./run {command}, which ./run does not have "
                         f"({', '.join(listed)})")
    readme = (project / "README.md").read_text()
    for command in listed:
        if f"./run {command}" not in readme:
            wrong.append(f"README.md: does not mention ./run {command}")
    return wrong


def versions_agree(project):
    header = (project / "include/gradpress/version.h").read_text()
    parts = [re.search(rf"GRADPRESS_VERSION_{part} (\d+)", header)
             for part in ("MAJOR", "MINOR", "PATCH")]
    if not all(parts):
        return ["version.h: wanted GRADPRESS_VERSION_MAJOR, _MINOR and _PATCH, each a number"]
    of_header = ".".join(part[1] for part in parts)
    lists = (project / "CMakeLists.txt").read_text()
    of_cmake = re.search(r"project\(gradpress VERSION ([\d.]+)", lists)
    wrong = []
    if not of_cmake or of_cmake[1] != of_header:
        wrong.append(f"CMakeLists.txt: version {of_cmake[1] if of_cmake else 'missing'}, "
                     f"version.h says {of_header}")
    changelog = (project / "CHANGELOG.md").read_text()
    if not re.search(rf"^## .*\b{re.escape(of_header)}\b", changelog, re.MULTILINE):
        wrong.append(f"CHANGELOG.md: no heading names version {of_header}")
    return wrong


CHECKS = {check.__name__: check for check in (tests_are_built, readme_commands, versions_agree)}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in CHECKS:
        sys.exit(f"usage: check_project.py {'|'.join(CHECKS)} PROJECT")
    wrong = CHECKS[sys.argv[1]](pathlib.Path(sys.argv[2]).resolve())
    for line in wrong:
        print(line)
    print(f"{sys.argv[1]}: {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
