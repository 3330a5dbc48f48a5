#!/usr/bin/env bash
# pkg_config_test.sh PKG_CONFIG LIBDIR SOURCE PROGRAM COMPILER [FLAG...]: builds SOURCE by what
# pkg-config says of the package installed under LIBDIR, and runs it.
set -euo pipefail
pkg_config=$1 libdir=$2 source=$3 program=$4
shift 4

export PKG_CONFIG_PATH=$libdir/pkgconfig
read -ra flags <<<"$("$pkg_config" --cflags --libs gradpress)"
"$@" -std=c++20 "$source" -o "$program" "${flags[@]}" "-Wl,-rpath,$libdir"
"$program"

static=$("$pkg_config" --static --libs gradpress)
case " $static " in
  *" -lhwy "*) ;;
  *) echo "--static must name what the static library calls, got: $static" >&2; exit 1 ;;
esac
