#!/usr/bin/env bash
# c_example_test.sh CC PKG_CONFIG PREFIX LIBDIR EXAMPLE PROGRAM: compiles the example as strict C99
# by what pkg-config says of the installed package, and runs it as two processes.
set -euo pipefail
cc=$1 pkg_config=$2 prefix=$3 libdir=$4 example=$5 program=$6

export PKG_CONFIG_PATH=$libdir/pkgconfig
read -ra flags <<<"$("$pkg_config" --cflags --libs gradpress)"
"$cc" -std=c99 -pedantic -Wall -Wextra -Werror "$example" -o "$program" "${flags[@]}" \
  "-Wl,-rpath,$libdir"
"$prefix/bin/gradpress" launch -n 2 -- "$program"
