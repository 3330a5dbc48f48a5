#!/usr/bin/env bash
# bundled_libraries.sh FOLDER: builds Gloo and Highway as static libraries in FOLDER, for a gradpress
# that carries both inside (cmake -DGRADPRESS_BUNDLED=FOLDER). Debian has neither as a static library.
#
# The sources come from Debian's archive. FOLDER is complete when FOLDER/built names what it holds,
# and is left alone then. Why these versions: docs/decisions/0024-one-wheel.md.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=tools/debian.sh
source "$here/debian.sh"

GLOO=(trixie gloo "0.0~git20231202.5354032")
# The version of libhwy-dev in Debian 12, whose headers the build uses.
HIGHWAY=(bookworm highway 1.0.3)

prefix=$(realpath -m "$1")
# What is built, by which compiler, and how.
stamp="${GLOO[*]}, ${HIGHWAY[*]}, g++ $(g++ -dumpfullversion), $(sha256sum <"${BASH_SOURCE[0]}" | cut -c 1-16)"
if [[ -e $prefix/built && $(<"$prefix/built") == "$stamp" ]]; then exit 0; fi

rm -rf "$prefix" "$prefix.work"
mkdir -p "$prefix" "$prefix.work"

# make_static NAME CMAKE_ARGS...: from $prefix.work/NAME/source into $prefix. Hidden symbols stay inside
# the library or program that they are linked into.
make_static() {
  local name=$1 work=$prefix.work/$1
  shift
  if ! { cmake -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_VISIBILITY_PRESET=hidden \
    -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON "$@" &&
    ninja -C "$work/build" install; } >"$work/build.log" 2>&1; then
    tail -n 40 "$work/build.log" >&2
    echo "$name: the static library could not be built; the whole log is $work/build.log" >&2
    return 1
  fi
}

echo "Building ${GLOO[1]} ${GLOO[2]} and ${HIGHWAY[1]} ${HIGHWAY[2]} as static libraries"
debian_source "${GLOO[@]}" "$prefix.work/gloo"
make_static gloo -DUSE_REDIS=OFF -DUSE_IBVERBS=OFF -DUSE_LIBUV=OFF -DUSE_TCP_OPENSSL_LINK=OFF \
  -DUSE_TCP_OPENSSL_LOAD=OFF -DUSE_CUDA=OFF -DUSE_MPI=OFF
debian_source "${HIGHWAY[@]}" "$prefix.work/highway"
make_static highway -DHWY_ENABLE_TESTS=OFF -DBUILD_TESTING=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
# The build takes Highway's headers from libhwy-dev, after it has compared the versions.
rm -r "$prefix/include/hwy"
echo "${HIGHWAY[2]}" >"$prefix/highway_version"
# Licenses travel with the code, also those of what is headers alone.
mkdir "$prefix/licenses"
cp "$prefix.work/gloo/source/LICENSE" "$prefix/licenses/gloo"
cp "$prefix.work/highway/source/LICENSE" "$prefix/licenses/highway"
for package in libxxhash nlohmann-json3 libcli11 libexpected; do
  cp "/usr/share/doc/$package-dev/copyright" "$prefix/licenses/$package"
done
rm -rf "$prefix.work"
echo "$stamp" >"$prefix/built"
