#!/usr/bin/env python3
"""check_wheel.py WHEEL HEADER: what a wheel of gradpress says of itself must be so. Needs readelf.

- The tag is py3-none-manylinux_A_B_x86_64, and nothing in the wheel is for one version of Python.
- Library and program need no shared library that the tag does not allow, and no symbol version newer than the tag's
  glibc A.B and the compiler of the Debian that has it.
- Neither has a search path of its own.
- The library exports what HEADER (c_api.h) declares, and nothing else: no symbol of Gloo, Highway or xxHash.
Prints what it found, then one line per fault.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# What the tag allows, as far as gradpress needs it.
LIBRARIES = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
# Of each glibc the newest symbol versions of the GCC libraries that may be asked for: those of Debian 12's GCC 12.
COMPILER = {(2, 36): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}}
TAG = re.compile(r"-py3-none-manylinux_(\d+)_(\d+)_x86_64\.whl$")


def readelf(option, file):
    return subprocess.run(["readelf", "--wide", option, file], check=True, capture_output=True, text=True).stdout


def numbers(version):
    return tuple(int(number) for number in version.split("."))


def program_faults(name, file, bounds):
    """Faults of one ELF file against {"GLIBC": (2, 36), …}."""
    faults = []
    dynamic = readelf("--dynamic", file)
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(.+)\]", dynamic)
    for library in needed:
        if library not in LIBRARIES:
            faults.append(f"{name}: needs {library}; the tag allows {', '.join(sorted(LIBRARIES))}")
    for path in re.findall(r"\((?:RPATH|RUNPATH)\)\s+Library \w+: \[(.+)\]", dynamic):
        faults.append(f"{name}: has the search path {path}; wanted none")
    newest = {}
    for family, version in re.findall(r"Name: ([A-Z]+)_([\d.]+)\b", readelf("--version-info", file)):
        newest[family] = max(newest.get(family, ()), numbers(version))
    for family, version in sorted(newest.items()):
        text = ".".join(map(str, version))
        if family not in bounds:
            faults.append(f"{name}: needs {family}_{text}, of a family that the tag does not know")
        elif version > bounds[family]:
            faults.append(f"{name}: needs {family}_{text}; the tag allows up to {'.'.join(map(str, bounds[family]))}")
    versions = ", ".join(f"{family}_{'.'.join(map(str, version))}" for family, version in sorted(newest.items()))
    print(f"{name}: {pathlib.Path(file).stat().st_size / 1e6:.1f} MB, needs {' '.join(needed)}; {versions}")
    return faults


def exported(library):
    """Names of the defined dynamic symbols."""
    names = set()
    for line in readelf("--dyn-syms", library).splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit() and words[6] not in ("UND", "ABS"):
            names.add(words[7].split("@")[0])
    return names


def export_faults(name, library, header):
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(header).read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"\bGRADPRESS_C_API\s[^;(]*?\b(gradpress_\w+)\s*\(", text))
    assert declared, f"{header} declares no function as GRADPRESS_C_API"
    found = exported(library)
    print(f"{name}: exports {len(found)} symbols, {header} declares {len(declared)}")
    return ([f"{name}: exports {symbol}, which {header} does not declare" for symbol in sorted(found - declared)] +
            [f"{name}: does not export {symbol}, which {header} declares" for symbol in sorted(declared - found)])


def wheel_faults(wheel, header):
    tag = TAG.search(wheel.name)
    if not tag:
        return [f"{wheel.name}: wanted a wheel py3-none-manylinux_A_B_x86_64"]
    glibc = (int(tag[1]), int(tag[2]))
    if glibc not in COMPILER:
        return [f"{wheel.name}: no bounds are known for glibc {tag[1]}.{tag[2]}"]
    bounds = {"GLIBC": glibc, **COMPILER[glibc]}
    faults = []
    with tempfile.TemporaryDirectory(prefix="gradpress-wheel-") as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        root = pathlib.Path(folder)
        machine_code = sorted(path.relative_to(root).as_posix() for path in root.rglob("*")
                              if path.is_file() and path.read_bytes()[:4] == b"\x7fELF")
        program = f"{'-'.join(wheel.name.split('-')[:2])}.data/scripts/gradpress"
        library = "gradpress/libgradpress.so"
        wanted = sorted([library, program])
        if machine_code != wanted:
            faults.append(f"{wheel.name}: wanted machine code in {wanted}, got {machine_code}")
        for name in machine_code:
            faults += program_faults(name, root / name, bounds)
        if library in machine_code:
            faults += export_faults(library, root / library, header)
        licenses = [name for name in archive.namelist() if "/licenses/" in name]
        for carried in ("gloo", "highway", "libxxhash", "nlohmann-json3", "libcli11", "libexpected"):
            if not any(pathlib.PurePosixPath(name).name == carried for name in licenses):
                faults.append(f"{wheel.name}: carries {carried} without its license")
    return faults


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    faults = wheel_faults(pathlib.Path(sys.argv[1]), sys.argv[2])
    for fault in faults:
        print(f"wrong: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
