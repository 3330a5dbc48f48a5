"""Writes the source of a library that has the names of an MPI's functions. Each of them says its name and ends the process.

usage: other_mpi.py NM OUTPUT LIBRARY...
"""
import re
import subprocess
import sys

nm, output, *libraries = sys.argv[1:]
names = set()
for library in libraries:
    symbols = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names |= set(re.findall(r"^[0-9a-f]+ [TWi] (P?MPI_\w+)", symbols, re.MULTILINE))
if not {"MPI_Init_thread", "PMPI_Init_thread", "MPI_Isend"} <= names:
    sys.exit(f"other_mpi: wanted MPI's functions in {libraries}, found {len(names)}")

with open(output, "w", encoding="utf-8") as file:
    file.write("""#include <cstdio>
#include <cstdlib>

#define GRADPRESS_OTHER_MPI(name)                                                              \\
  extern "C" [[noreturn]] __attribute__((visibility("default"))) void name();                  \\
  extern "C" void name() {                                                                     \\
    std::fputs("other_mpi: " #name " was bound to another MPI than the module's\\n", stderr);  \\
    std::abort();                                                                              \\
  }

""")
    file.writelines(f"GRADPRESS_OTHER_MPI({name})\n" for name in sorted(names))
