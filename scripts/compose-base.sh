#!/usr/bin/env bash
# Makes the base images of the composed cluster where no registry is reached, and puts them into the engine:
#   base      sampan/base, a small Debian for the nodes, with debootstrap
#   builder   sampan/builder, a Debian with gcc and this machine's Go to build in, with debootstrap
#   prebuilt  sampan/prebuilt, which takes a builder's place and holds the programs that were built into bin/ (needs sampan/base)
# Usage: scripts/compose-base.sh base|builder|prebuilt
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
suite=${SAMPAN_DEBIAN:-bookworm}
mirror=${SAMPAN_DEBIAN_MIRROR:-} # empty: debootstrap's own
bin=${SAMPAN_BIN:-$root/bin}

fail() { echo "compose-base: $*" >&2; exit 2; }
command -v docker >/dev/null || fail "docker is missing; on Debian: apt-get install docker.io"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

# bootstrap DIRECTORY PACKAGE,… makes a minimal Debian with those packages.
bootstrap() {
  [ "$(id -u)" = 0 ] || fail "debootstrap needs root; run it with sudo"
  command -v debootstrap >/dev/null || fail "debootstrap is missing; on Debian: apt-get install debootstrap"
  debootstrap --variant=minbase --include="$2" "$suite" "$1" ${mirror:+"$mirror"} >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; fail "debootstrap ended with an error"; }
  # What no container reads.
  rm -rf "$1"/var/cache/apt/*.bin "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/usr/share/{doc,man,locale,info}/*
  mkdir -p "$1/var/cache/apt/archives/partial" "$1/var/lib/apt/lists/partial"
}

load() {
  tar -C "$1" --numeric-owner -cf - . |
    docker import --change 'ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$2" >/dev/null
  echo "$2"
}

case ${1:-base} in
base)
  packages=$(tr '\n' ',' <"$root/deploy/docker/node.packages")
  bootstrap "$work/base" "${packages%,}"
  load "$work/base" sampan/base
  ;;
builder)
  packages=$(tr '\n' ',' <"$root/deploy/docker/builder.packages")
  bootstrap "$work/builder" "${packages%,}"
  # The toolchain that the Makefile asks for, wherever this machine keeps it.
  goroot=$(GOTOOLCHAIN=$(sed -n 's/^export GOTOOLCHAIN := //p' "$root/Makefile") go env GOROOT)
  mkdir -p "$work/builder/usr/local/go"
  cp -a "$goroot/." "$work/builder/usr/local/go/"
  # And its authorities: a module proxy may have one that this machine alone knows.
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$work/builder/etc/ssl/certs/"
  load "$work/builder" sampan/builder
  ;;
prebuilt)
  printf 'FROM sampan/base\nCOPY . /prebuilt/\n' >"$work/Dockerfile"
  tar -cf - -C "$work" Dockerfile -C "$bin" apiserver scheduler controller-manager node-agent proxy sampan nats-server probe runc pause cni images/demo.tar |
    docker build -q -t sampan/prebuilt - >/dev/null
  echo sampan/prebuilt
  ;;
*)
  fail "$1 is none of base, builder, prebuilt"
  ;;
esac
