#!/usr/bin/env bash
# matrix.sh FOLDER WHEEL: installs WHEEL and python3-torch in a bare Debian 12, 13 and testing each, and
# runs tests/python there.
# matrix.sh FOLDER --build: runs `./run train` and `./run test` of this checkout in each instead.
#
# The bare systems are kept in FOLDER and used again. Needs root and debootstrap. A release whose packages
# cannot be installed today is skipped, and the reason is printed; if that is all of them, it is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/debian.sh
source tools/debian.sh

FOLDER=$1
WHAT=$2
RELEASES=(bookworm trixie testing)
# venv brings pip. Without OpenBLAS torch multiplies by the reference BLAS, four times slower.
PACKAGES=(python3-torch python3-venv libopenblas0-pthread)
# Examples use them where Debian has them.
PACKAGES_TESTING=(python3-accelerate python3-transformers)
# Base systems follow the archive once a week.
FRESH_DAYS=7

say() { printf '%s\n' "$*"; }
die() {
  printf './run matrix: %s\n' "$*" >&2
  exit 1
}

# name RELEASE: as people call it.
name() {
  case $1 in
    bookworm) echo "Debian 12" ;;
    trixie) echo "Debian 13" ;;
    *) echo "Debian $1" ;;
  esac
}

# install RELEASE PACKAGE...: unless all are there and were looked for less than a week ago. Where the archive
# cannot be reached, a system that has them all is used as it is.
install() {
  local root=$FOLDER/$1 stamp=$FOLDER/$1.installed status
  shift
  [[ ! $(find "$stamp" -mtime "-$FRESH_DAYS" 2>/dev/null) || $(<"$stamp") != "$*" ]] || return 0
  rm -f "$stamp"
  if debian_run "$root" sh -c "apt-get update -q -o APT::Update::Error-Mode=any &&
    apt-get dist-upgrade -q -y --no-install-recommends && apt-get install -q -y --no-install-recommends \"\$@\" &&
    apt-get clean" install "$@"; then
    echo "$*" >"$stamp"
  else
    status=$(debian_run "$root" dpkg-query -W -f "\${Status}\n" "$@") && ! grep -qv 'ok installed' <<<"$status"
  fi
}

# prepare RELEASE PACKAGE...: the base system with those packages. Its log is FOLDER/RELEASE.prepare; the last line is
# why it failed.
prepare() {
  local release=$1 started=$SECONDS log=$FOLDER/$1.prepare
  shift
  say "$(name "$release"): preparing, with $*"
  if { debian_base "$release" "$FOLDER/$release" && install "$release" "$@"; } >"$log" 2>&1 </dev/null; then
    say "$(name "$release"): prepared in $((SECONDS - started)) s"
    rm -f "$FOLDER/$release.skip"
  else
    # What apt said first is the cause, what it said last the consequence.
    { grep -m 1 -E '^(E: |W: Failure|dpkg: error)' "$log" || tail -n 1 "$log"; } >"$FOLDER/$release.skip"
    say "$(name "$release"): cannot be prepared; the log is $log"
  fi
}

# test_wheel RELEASE: prints versions and one line per test; the last line is the counts.
test_wheel() {
  local root=$FOLDER/$1
  debian_put "$FOLDER/$1"
  cp "$WHAT" "$root/srv/"
  rm -rf "$root/opt/gradpress"
  debian_run "$root" python3 -m venv --system-site-packages /opt/gradpress &&
    debian_run "$root" /opt/gradpress/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps \
      "/srv/$(basename "$WHAT")" &&
    debian_run "$root" /opt/gradpress/bin/python /srv/gradpress/tests/python/run_all.py \
      --examples /srv/gradpress/examples/pytorch </dev/null
}

# build_here RELEASE: the checkout as a newcomer builds it, with everything that it installs.
build_here() {
  local command passed=0 failed=0
  debian_put "$FOLDER/$1"
  for command in train test; do
    say "-- ./run $command"
    if debian_run "$FOLDER/$1" sh -c "cd /srv/gradpress && exec ./run $command" </dev/null; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
    fi
  done
  say "$passed passed, $failed failed, 0 skipped"
}

((EUID == 0)) || die "making base systems and running in them needs root"
[[ $WHAT == --build || -e $WHAT ]] || die "wanted a wheel or --build, got $WHAT"
mkdir -p "$FOLDER"
# One call at a time: two would use the same base systems.
exec 9>"$FOLDER/lock"
flock --nonblock 9 || { say "Waiting for another ./run matrix with $FOLDER" && flock 9; }

if [[ $WHAT == --build ]]; then
  # Apart, because the wheel must do without the compilers that a build installs.
  FOLDER=$FOLDER/build
  mkdir -p "$FOLDER"
  PACKAGES=(git) PACKAGES_TESTING=()
fi
# Each job is a process group of its own, so that all that it started ends with this script, however that ends. The
# foreground only waits: traps run at once then.
set -m
# unshare ignores all but SIGKILL while its child runs, and the child ends with it.
end_jobs() { jobs -p | while read -r group; do kill -KILL -- "-$group" 2>/dev/null || true; done; }
trap end_jobs EXIT
trap 'exit 130' INT TERM HUP
started=$SECONDS
for release in "${RELEASES[@]}"; do
  more=()
  [[ $release != testing ]] || more=("${PACKAGES_TESTING[@]}")
  prepare "$release" "${PACKAGES[@]}" "${more[@]}" &
done
wait

passed=0 failed=0 skipped=0 reached=0
table=()
for release in "${RELEASES[@]}"; do
  say ""
  say "== $(name "$release")"
  if [[ -e $FOLDER/$release.skip ]]; then
    reason=$(<"$FOLDER/$release.skip")
    say "skipped: its packages cannot be installed today: $reason"
    table+=("$(printf '%-16s skipped: %s' "$(name "$release")" "$reason")")
    skipped=$((skipped + 1))
    continue
  fi
  reached=$((reached + 1))
  began=$SECONDS
  output=$FOLDER/$release.output
  if [[ $WHAT == --build ]]; then run=build_here; else run=test_wheel; fi
  "$run" "$release" 2>&1 | tee "$output" &
  wait $! || true
  # A release that did not come to its counts has failed as a whole.
  counts=$(grep . "$output" | tail -n 1)
  if [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + BASH_REMATCH[3]))
  else
    counts="stopped: $counts"
    failed=$((failed + 1))
  fi
  versions=$(grep -m 1 '^Python ' "$output" || true)
  table+=("$(printf '%-16s %4d s  %-34s %s' "$(name "$release")" $((SECONDS - began)) "$counts" "$versions")")
done

say ""
say "Matrix, $((SECONDS - started)) s:"
printf '%s\n' "${table[@]}"
((reached > 0)) || die "no release could be prepared, so that nothing was tested"
say "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
