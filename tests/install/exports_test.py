#!/usr/bin/env python3
"""exports_test.py NM LIBRARY HEADERS NAME...: a shared library exports the public API and nothing else.

Every defined dynamic symbol must be a name that a header under HEADERS declares: gradpress::NAME,
or a member, type information or virtual table of such a class, also in gradpress::ddp; or a function of
c_api.h. An inner room's name (gradpress::kernels::, gradpress::codec::) is never one, nor is anything of
another namespace. Each NAME must be among them; the NAME c_api.h stands for all functions of that header.
"""
import pathlib
import re
import subprocess
import sys

DECLARED = re.compile(r"GRADPRESS_API\s+(?P<rest>[^;{]*)")
SYMBOL = re.compile(
    r"^(?:vtable for |typeinfo for |typeinfo name for |VTT for )?gradpress::(?P<name>[\w:]+)")

C_FUNCTION = re.compile(r"^GRADPRESS_C_API\b[^;(]*?\b(\w+)\(", re.MULTILINE)


def public_names(headers):
    """Names marked GRADPRESS_API, with `detail::` where a header puts them into that namespace."""
    names = set()
    for header in sorted(headers.glob("*.h")):
        for match in DECLARED.finditer(header.read_text()):
            # "Result<T> make_codec(…)", "class … Shape", "class … State final : public …"
            before_arguments = re.split(r"\(|(?<!:):(?!:)", match["rest"])[0]
            words = re.findall(r"\w+", before_arguments.replace(" final", ""))
            if words:
                names.add(words[-1])
    return names


def main():
    nm, library, headers, *wanted = sys.argv[1:]
    names = public_names(pathlib.Path(headers))
    listing = subprocess.run([nm, "-DC", "--defined-only", library], check=True,
                             capture_output=True, text=True).stdout
    symbols = [line.split(maxsplit=2)[2] for line in listing.splitlines()]
    c_functions = set(C_FUNCTION.findall((pathlib.Path(headers) / "c_api.h").read_text()))
    if len(c_functions) < 10:
        sys.exit(f"c_api.h: found {len(c_functions)} functions: does the pattern still fit?")
    leaks = []
    for symbol in symbols:
        if symbol in c_functions:
            continue
        match = SYMBOL.match(symbol)
        parts = match["name"].split("::") if match else []
        if parts and parts[0] in ("detail", "ddp"):
            parts = parts[1:]
        if not parts or parts[0] not in names:
            leaks.append(symbol)
    for symbol in leaks:
        print(f"exported, but no public header declares it: {symbol}")
    if "c_api.h" in wanted:
        wanted.remove("c_api.h")
        for name in sorted(c_functions - set(symbols)):
            leaks.append(name)
            print(f"declared in c_api.h, but not exported: {name}")
    for name in wanted:
        if not any(re.search(rf"gradpress::{name}\b", symbol) for symbol in symbols):
            leaks.append(name)
            print(f"declared in a public header, but not exported: gradpress::{name}")
    print(f"{len(symbols)} symbols exported, {len(leaks)} wrong")
    sys.exit(1 if leaks else 0)


if __name__ == "__main__":
    main()
