#!/usr/bin/env bash
# Builds the demo image into bin/images/demo.tar: the demo web program and busybox, for a shell and tar.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
mkdir -p bin/images

busybox=$(command -v busybox || true)
if [ -z "$busybox" ] || ! file=$(ldd "$busybox" 2>&1 || true) || ! grep -q -e 'not a dynamic' -e 'statically' <<<"$file"; then
  echo "build-image: a static busybox is missing; on Debian: apt-get install busybox-static" >&2
  exit 1
fi

(cd deploy/demo && CGO_ENABLED=0 GOWORK=off go build -ldflags '-s -w' -o "$root/bin/demo" .)
links=(-link /bin/busybox=/usr/bin/busybox)
for applet in sh ls cat tar cp mv rm mkdir echo sleep true false env id ps kill grep head tail wc touch stat df mount hostname nslookup wget nc ip seq dd date test sync printf sha256sum; do
  links+=(-link "/bin/$applet=/usr/bin/busybox")
done
passwd=$(mktemp) group=$(mktemp)
trap 'rm -f "$passwd" "$group"' EXIT
echo 'root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false' >"$passwd"
echo 'root:x:0:
nogroup:x:65534:' >"$group"
chmod 644 "$passwd" "$group"
(cd scripts/tools && GOWORK=off go run ./image -o "$root/bin/images/demo.tar" -tag localhost/sampan/demo:1 -cmd /demo,serve "${links[@]}" \
  "$root/bin/demo=/demo" "$busybox=/usr/bin/busybox" "$passwd=/etc/passwd" "$group=/etc/group")
