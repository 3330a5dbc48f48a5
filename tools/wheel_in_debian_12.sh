#!/usr/bin/env bash
# wheel_in_debian_12.sh CACHE: `./run wheel` of this checkout in a bare Debian 12, made in CACHE/debian/build/bookworm
# and kept. The wheel ends up in dist/ here. Needs root and debootstrap.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/debian.sh
source tools/debian.sh

if ((EUID != 0)); then
  echo "./run wheel: this is not Debian 12 on x86-64, and making one in a folder needs root" >&2
  exit 1
fi
folder=$1/debian/build
root=$folder/bookworm
mkdir -p "$folder"
# As tools/matrix.sh does: one call at a time.
exec 9>"$1/debian/lock"
flock 9
echo "This is not Debian 12: building in the bare one at $root"
debian_base bookworm "$root"
debian_put "$root"
# What was built there before is kept: static libraries in the cache of its own root, objects in its ccache.
debian_run "$root" sh -c "cd /srv/gradpress && exec ./run wheel"
rm -rf dist
cp -r "$root/srv/gradpress/dist" dist
