#!/usr/bin/env bash
# Installs the distribution's packages that the build and the cluster need; without root or Debian it says what to install.
set -euo pipefail

declare -A package=([gcc]=gcc [pkg-config]=pkg-config [iptables-restore]=iptables [conmon]=conmon [busybox]=busybox-static [conntrack]=conntrack [mkfs.ext4]=e2fsprogs [ip]=iproute2 [losetup]=mount [pgrep]=procps [script]=bsdutils [file:/usr/include/seccomp.h]=libseccomp-dev)
missing=()
for need in "${!package[@]}"; do
  case $need in
    file:*) [ -e "${need#file:}" ] || missing+=("${package[$need]}") ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$need" >/dev/null || missing+=("${package[$need]}") ;;
  esac
done
command -v go >/dev/null || { echo "sampan: Go is missing; install it from https://go.dev/dl (any version from 1.21 on fetches the right one)" >&2; exit 2; }
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "sampan: missing packages; on Debian: sudo apt-get install ${missing[*]}" >&2
  exit 2
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
