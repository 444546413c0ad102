#!/usr/bin/env bash
# Prints the memory (PSS) and the CPU over 10 s of a cluster's services.
set -euo pipefail
dir=$(realpath "${1:-.sampan}")
declare -A before
pids=()
for environ in /proc/[0-9]*/environ; do
  pid=${environ#/proc/}; pid=${pid%/environ}
  if { tr "\0" "\n" <"$environ"; } 2>/dev/null | grep -q "^SAMPAN_PROCESS=$dir:"; then
    case $(basename "$(readlink "/proc/$pid/exe" 2>/dev/null)") in
      apiserver | scheduler | controller-manager | node-agent | proxy) pids+=("$pid") ;;
    esac
  fi
done
cpu() { awk '{print $14 + $15}' "/proc/$1/stat" 2>/dev/null || echo 0; }
for pid in "${pids[@]}"; do before[$pid]=$(cpu "$pid"); done
sleep 10
total=0 ticks=0
for pid in "${pids[@]}"; do
  pss=$(awk '/^Pss:/{print $2}' "/proc/$pid/smaps_rollup")
  used=$(($(cpu "$pid") - ${before[$pid]}))
  total=$((total + pss)) ticks=$((ticks + used))
  printf '%-20s %6d KiB   %4.1f %% of a core\n' "$(basename "$(readlink "/proc/$pid/exe")")" "$pss" "$(awk "BEGIN{print $used/10}")"
done
printf '%-20s %6d KiB   %4.1f %% of a core\n' total "$total" "$(awk "BEGIN{print $ticks/10}")"
