#!/bin/sh
# Builds the program that holds a PID namespace shared by a pod's containers, into bin/pause.
# Usage: scripts/build-pause.sh [output file]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/bin/pause}
mkdir -p "$(dirname "$out")"
${CC:-cc} -std=c99 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -Os -static -s -o "$out" "$root/services/node-agent/pause/pause.c"
