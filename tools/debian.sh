#!/usr/bin/env bash
# Functions for tools that fetch from Debian's archive or run something inside a bare Debian in a
# folder. To be sourced, after `set -euo pipefail`.

# The package source of Debian's main archive in this machine's apt settings, as a URI.
debian_archive() {
  local found
  found=$(apt-get indextargets --format "\$(ORIGIN)|\$(LABEL)|\$(COMPONENT)|\$(SITE)" \
    "Created-By: Packages" | awk -F'|' '$1 == "Debian" && $2 == "Debian" && $3 == "main" {print $4; exit}')
  if [[ ! $found ]]; then
    echo "apt knows no archive of Debian's: run apt-get update, or see /etc/apt/sources.list.d" >&2
    return 1
  fi
  echo "$found"
}

# debian_source RELEASE PACKAGE VERSION FOLDER: unpacks the upstream source of that Debian package into
# FOLDER. apt checks it against the archive's signature. Neither root nor a change of the machine's apt
# settings is needed.
debian_source() {
  local release=$1 package=$2 version=$3 folder=$4 archive apt keyring signed=""
  archive=$(debian_archive) || return 1
  rm -rf "$folder"
  apt=$folder/apt
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [[ ! -e $keyring ]] || signed="[signed-by=$keyring] "
  echo "deb-src $signed$archive $release main" >"$apt/sources.list"
  local options=(-q -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o "APT::Sandbox::User=$(id -un)")
  # The tar archive alone: Debian's own changes to it are not used.
  if ! { apt-get "${options[@]}" update &&
    cd "$folder" && apt-get "${options[@]}" source --download-only --tar-only "$package"; } \
    >"$folder/apt.log" 2>&1; then
    tail -n 20 "$folder/apt.log" >&2
    echo "apt could not fetch the source of $package from Debian $release" >&2
    return 1
  fi
  local tars=("$folder/${package}_$version".orig.tar.*)
  if [[ ! -e ${tars[0]} ]]; then
    echo "$package in Debian $release: wanted the source of version $version, got $(cd "$folder" && ls -- *.orig.tar.*)" >&2
    return 1
  fi
  mkdir "$folder/source"
  # An archive has one folder on top, or none.
  tar -C "$folder/source" -xf "${tars[0]}"
  local inside=("$folder/source"/*)
  if ((${#inside[@]} == 1)) && [[ -d ${inside[0]} ]]; then
    mv "${inside[0]}" "$folder/only" && rmdir "$folder/source" && mv "$folder/only" "$folder/source"
  fi
}

# debian_base RELEASE FOLDER: a bare Debian in FOLDER, made by debootstrap; needs root. Left alone when
# it is there.
debian_base() {
  local release=$1 folder=$2 archive script
  [[ ! -e $folder/etc/apt/sources.list ]] || return 0
  archive=$(debian_archive) || return 1
  # An older debootstrap does not know the newest releases. They are made as the unstable one is.
  script=/usr/share/debootstrap/scripts/$release
  [[ -e $script ]] || script=/usr/share/debootstrap/scripts/sid
  rm -rf "$folder" "$folder.part"
  mkdir -p "$folder.part"
  if ! debootstrap --variant=minbase --include=ca-certificates "$release" "$folder.part" "$archive" "$script" \
    >"$folder.log" 2>&1; then
    tail -n 20 "$folder.log" >&2
    rm -rf "$folder.part"
    return 1
  fi
  # Such as proxies.
  apt-config dump | grep -E '^Acquire::(http|https|Retries|Check-Valid-Until)\b' >"$folder.part/etc/apt/apt.conf.d/50machine" || true
  # A base that a power cut spoils is made again.
  echo force-unsafe-io >"$folder.part/etc/dpkg/dpkg.cfg.d/unsafe-io"
  mv "$folder.part" "$folder"
}

# debian_run FOLDER COMMAND...: runs it as root in that Debian; needs root. Mounts are made in a
# namespace of the command's own, and processes in another: both end with it, however it ends.
debian_run() {
  local folder=$1 proxies=() name
  shift
  for name in http_proxy https_proxy no_proxy; do
    [[ ! ${!name:-} ]] || proxies+=("$name=${!name}")
  done
  cp -L /etc/resolv.conf /etc/hosts "$folder/etc/"
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "${proxies[@]}" \
    unshare --mount --pid --fork --kill-child --mount-proc="$folder/proc" bash -c "
      mount --rbind /dev \"\$1/dev\" && mount --rbind /sys \"\$1/sys\" && cd / &&
      exec chroot \"\$@\"" debian_run "$folder" "$@"
}

# debian_put FOLDER: this checkout (the working folder), without what is built, as /srv/gradpress of that Debian.
debian_put() {
  local target=$1/srv/gradpress
  rm -rf "$target"
  mkdir -p "$target"
  # Files that are deleted but not yet committed as such are left out.
  git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null |
    tar -x -C "$target"
}
