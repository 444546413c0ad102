#!/usr/bin/env bash
# Checks the composed cluster on an engine of its own: images, start, the demo, and what happens when things break. Leaves nothing behind.
# Needs root, the programs in bin/ (make compose-test builds them) and, for the packages and the base image, Debian's mirror.
#   SAMPAN_ENGINE_ROOT   keeps the engine's images in that folder for the next time
#   SAMPAN_OUTAGE        seconds that the bus and then the API server are away (15)
set -euo pipefail
cd "$(dirname "$0")/.."

began=$SECONDS outage=${SAMPAN_OUTAGE:-15}
say() { printf '%4ds  %s\n' $((SECONDS - began)) "$*"; }
die() { echo "compose-ci: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "needs root, for an engine of its own"

if ! command -v dockerd >/dev/null || ! command -v docker-compose >/dev/null || ! command -v debootstrap >/dev/null; then
  say "installing the engine"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends docker.io docker-compose debootstrap >/dev/null
fi

work=$(mktemp -d /var/tmp/sampan-compose.XXXXXX)
chmod 711 "$work"
root=${SAMPAN_ENGINE_ROOT:-$work/engine}
group=sampan-compose-$$
export DOCKER_HOST=unix://$work/docker.sock COMPOSE_PROJECT_NAME=sampan-ci COMPOSE_PARALLEL_LIMIT=16
# Quick to notice a lost node, and all on ports of this check's own.
export SAMPAN_NODE_GRACE=22s SAMPAN_TOLERATION=5 SAMPAN_PORT=${SAMPAN_PORT:-6443} SAMPAN_NODEPORTS=30000-30015
forward=$(iptables -S FORWARD | head -1)
strangers=$(iptables -S DOCKER-USER 2>/dev/null || true) # another engine's rules
kubeconfig=deploy/compose/admin/kubeconfig
kubectl() { bin/kubectl --kubeconfig "$kubeconfig" "$@"; }
compose() { scripts/compose.sh "$@"; }
# The real thing, for what the script does not do.
raw() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }

# start_engine [COMMAND…] starts it, under a command that changes what it may; again if it gives up, as a service manager would: after a kill
# it has much to clear away, and its own patience with that is short.
start_engine() {
  for _ in 1 2 3; do
    "$@" dockerd --host "$DOCKER_HOST" --data-root "$root" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" --bridge none \
      --cgroup-parent "/$group" --log-level warn >>"$work/dockerd.log" 2>&1 &
    engine=$!
    while kill -0 $engine 2>/dev/null; do
      docker version >/dev/null 2>&1 && return
      sleep 0.2
    done
  done
  tail -5 "$work/dockerd.log" >&2
  die "the engine does not start"
}

# members are the processes in the engine's containers.
members() { find /sys/fs/cgroup -path "*/$group/*" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u; }

# parts are the engine's own: itself, containerd, the shims, its port proxies.
parts() { pgrep -P "$engine" || true; pgrep -f "containerd-shim.* $work/exec/|-address $work/exec/" || true; echo "$engine"; }

stop_engine() {
  kill "$engine" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "$engine" 2>/dev/null || break; sleep 0.2; done
}

cleanup() {
  local code=$? point group_dir chain
  set +e
  kill "${helpers[@]}" 2>/dev/null
  if [ $code != 0 ] && [ -n "${engine:-}" ]; then
    raw ps 2>&1 | cut -c1-120; raw logs --no-color --tail 15 2>&1 | cut -c1-300 | tail -80
    kubectl get nodes,pods -A -o wide 2>&1 | tail -40
  fi
  if [ -n "${engine:-}" ]; then
    raw down -v -t 2 >/dev/null 2>&1
    stop_engine
    # shellcheck disable=SC2046
    kill -9 $(parts) $(members) 2>/dev/null
  fi
  awk -v at="$work/" 'index($5, at) == 1 {print $5}' /proc/self/mountinfo | sort -r | while read -r point; do umount -l "$point"; done
  find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null
  if [ -z "$strangers" ]; then
    for jump in "filter FORWARD DOCKER-USER" "filter FORWARD DOCKER-ISOLATION-STAGE-1" "nat PREROUTING DOCKER" "nat OUTPUT DOCKER"; do
      # shellcheck disable=SC2086
      set -- $jump
      iptables -t "$1" -S "$2" | sed -n "s/^-A \(.* -j $3\)$/-D \1/p" | while read -r rule; do eval "iptables -t $1 $rule"; done
    done
    for chain in DOCKER-USER DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2 DOCKER; do iptables -F $chain; done 2>/dev/null
    for chain in DOCKER-USER DOCKER-ISOLATION-STAGE-1 DOCKER-ISOLATION-STAGE-2 DOCKER; do iptables -X $chain; done 2>/dev/null
    iptables -t nat -F DOCKER 2>/dev/null; iptables -t nat -X DOCKER 2>/dev/null
    [ "$forward" != "-P FORWARD ACCEPT" ] || iptables -P FORWARD ACCEPT
  fi
  rm -f deploy/compose/admin/kubeconfig
  rm -rf --one-file-system "$work"
  [ $code = 0 ] || echo "compose-ci: failed" >&2
  exit $code
}
helpers=()
trap cleanup EXIT

# expect MESSAGE COMMAND… wants that refusal, in one line.
expect() {
  local want=$1 said code=0; shift
  said=$("$@" 2>&1) || code=$?
  [ $code = 2 ] && [ "$(wc -l <<<"$said")" = 1 ] && [[ $said == *"$want"* ]] || die "wanted one line with '$want', got ($code): $said"
  say "refused: $said"
}

# until_true SECONDS WHAT COMMAND… waits for a condition.
until_true() {
  local end=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || die "not in time: $what"; sleep 0.2; done
}

ready() { [ "$(kubectl get nodes --no-headers 2>/dev/null | awk '$2 == "Ready"' | wc -l)" = "$1" ]; }
rolled() { kubectl rollout status "deployment/$1" --timeout=60s >/dev/null; }
ask() { timeout 3 bin/demo fetch "http://127.0.0.1:${1:-30008}/"; }
container() { docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --filter "label=com.docker.compose.service=$1" --filter "label=com.docker.compose.container-number=${2:-1}"; }
uids() { kubectl get deployments,services,configmaps -A -o jsonpath='{range .items[*]}{.kind}{.metadata.namespace}/{.metadata.name}={.metadata.uid}{"\n"}{end}' | sort; }
restarts() { kubectl get pods -o jsonpath='{range .items[*]}{.metadata.name}={.status.containerStatuses[*].restartCount}{"\n"}{end}' | sort; }

# answering COMMAND… asks the demo all the time until the command is done, and wants every answer.
answering() {
  local good=0 bad=0 change
  "$@" & change=$!
  while kill -0 $change 2>/dev/null; do
    if ask >/dev/null 2>&1; then good=$((good + 1)); else bad=$((bad + 1)); fi
    sleep 0.1
  done
  wait $change
  [ $bad = 0 ] || die "$bad of $((good + bad)) requests were not answered"
  say "  $good requests answered meanwhile, 0 not"
}

# crosses CLIENT_NODE URL OTHER_NODE wants an answer of a pod on the other node.
crosses() {
  local pod
  pod=$(kubectl get pods -l app=client --field-selector "spec.nodeName=$1" -o name | head -1)
  for _ in $(seq 30); do
    kubectl exec "${pod#pod/}" -- /demo fetch "$2" 2>/dev/null | grep -q "on $3 " && return
  done
  die "$2 is not answered on $3 for a pod on $1"
}

# --- An engine that cannot, then one that can.
if [ -n "${SAMPAN_ENGINE_ROOT:-}" ]; then mkdir -p "$root"; fi
start_engine
say "engine $(docker version --format '{{.Server.Version}}'), $(raw version --short 2>/dev/null)"
[ -z "${SAMPAN_ENGINE_ROOT:-}" ] || raw down -v >/dev/null 2>&1 # of a run that was cut off
say "building the images"
compose build prebuilt | sed 's/^/       /'

perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, ReuseAddr => 1, LocalAddr => "127.0.0.1:'"$SAMPAN_PORT"'") or die; sleep 60' & helpers+=($!)
until_true 5 "a listener" bash -c "ss -Htln | grep -q 127.0.0.1:$SAMPAN_PORT"
expect "port $SAMPAN_PORT" compose up
kill "${helpers[0]}"; wait "${helpers[0]}" 2>/dev/null || true
install -D -m 755 scripts/compose.sh "$work/nobody/scripts/compose.sh"
chmod 660 "$work/docker.sock"
expect "no permission" setpriv --reuid 65534 --regid 65534 --clear-groups "$work/nobody/scripts/compose.sh" up

expect "no capability" docker run --rm --network none --cap-drop SYS_CHROOT --cap-add SYS_ADMIN sampan/node

# --- From nothing to Ready.
from=$(date +%s%N)
compose up >/dev/null
until_true 60 "two Ready nodes" ready 2
took=$((($(date +%s%N) - from) / 1000000))
say "from up to two Ready nodes: $((took / 1000)).$(printf %03d $((took % 1000))) s (goal: 10)"

say "the demo"
kubectl apply -f deploy/examples/demo/demo.yaml >/dev/null
kubectl patch service web -p '{"spec":{"type":"NodePort","ports":[{"name":"http","port":80,"targetPort":"http","nodePort":30008}]}}' >/dev/null
kubectl create configmap kept --from-literal=a=b >/dev/null
rolled web; rolled client
until_true 20 "an answer by NodePort" ask
say "  by NodePort from the host: $(ask)"
crosses node-1 "http://$(kubectl get service web -o jsonpath='{.spec.clusterIP}')/" node-2
crosses node-2 http://web.default.svc.cluster.local/ node-1
say "  by ClusterIP and DNS name from pods, on the other node"
kubectl exec deploy/client -- true
kubectl logs deploy/web --tail 1 >/dev/null 2>&1
say "memory of the containers:"
docker stats --no-stream --format '{{.Name}} {{.MemUsage}}' | sed "s/^$COMPOSE_PROJECT_NAME[-_]//" | awk '{printf "       %-24s %s\n", $1, $2}' | sort

# --- What breaks.
say "the bus is away for $outage s"
before=$(restarts)
away() {
  raw stop -t 2 nats >/dev/null 2>&1
  kubectl create service nodeport late --tcp=80:8080 --node-port=30009 >/dev/null
  kubectl set selector service late app=web >/dev/null
  until_true 20 "a Service that was made without the bus" ask 30009
  sleep "$outage"
  raw start nats >/dev/null 2>&1
}
answering away
say "the API server is away for $outage s"
away() { raw stop -t 5 apiserver >/dev/null 2>&1; sleep "$outage"; raw start apiserver >/dev/null 2>&1; }
answering away
until_true 30 "the API server" kubectl get --raw /readyz
until_true 30 "two Ready nodes" ready 2
kubectl scale deployment/web --replicas=6 >/dev/null && rolled web
[ "$before" = "$(restarts | grep -Fx "$before")" ] || die "pods were restarted: $(restarts)"
say "  no pod was restarted"
kubectl scale deployment/web --replicas=4 >/dev/null && rolled web

say "a node is killed"
address() { docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$1"; }
second=$(container node 2) was=$(address "$(container node 2)")
docker kill "$second" >/dev/null
moved() { [ "$(kubectl get pods -l app=web --field-selector spec.nodeName=node-1 --no-headers | grep -c ' 1/1 .*Running')" -ge 4 ]; }
killed=$SECONDS
until_true 60 "its pods on the other node" moved
say "  its pods run elsewhere after $((SECONDS - killed)) s (grace $SAMPAN_NODE_GRACE, toleration $SAMPAN_TOLERATION s)"
until_true 20 "an answer" ask
squatter=$(docker run -d --rm --network "${COMPOSE_PROJECT_NAME}_default" --entrypoint /nats-server sampan/nats)
[ "$(address "$squatter")" = "$was" ] || die "the node's address was not taken"
compose up >/dev/null
until_true 40 "the node back" ready 2
now=$(address "$second")
[ "$now" != "$was" ] && [ "$(kubectl get node node-2 -o jsonpath='{.status.addresses[?(@.type=="InternalIP")].address}')" = "$now" ] || die "the node has not got another address"
clean() { ! kubectl get pods -A --no-headers | grep -q Terminating; }
until_true 40 "no pod left behind" clean
until_true 10 "no container left behind" bash -c "[ \"\$(docker exec $second sh -c 'ls /run/sampan/runc 2>/dev/null | wc -l')\" -le 2 ]"
kubectl scale deployment/web --replicas=8 >/dev/null && rolled web
kubectl delete pods -l app=client >/dev/null && rolled client
crosses node-1 http://web.default.svc.cluster.local/ node-2
say "  and come back clean at $now instead of $was"
docker kill "$squatter" >/dev/null

say "four nodes"
compose up --scale node=4 >/dev/null
until_true 60 "four Ready nodes" ready 4
compose up --scale node=2 >/dev/null
kubectl delete node node-3 node-4 >/dev/null

kept=$(uids)
say "down and up"
compose down
compose up >/dev/null
until_true 60 "two Ready nodes" ready 2
[ "$(uids)" = "$kept" ] || die "objects are not what they were"
rolled web; rolled client
until_true 30 "an answer" ask
crosses node-1 http://web.default.svc.cluster.local/ node-2

say "kill -9 of the engine and everything in its containers at once"
# shellcheck disable=SC2046
kill -9 $(parts) $(members) 2>/dev/null || true
wait "$engine" 2>/dev/null || true
start_engine
compose up >/dev/null
until_true 60 "two Ready nodes" ready 2
[ "$(uids)" = "$kept" ] || die "objects are not what they were"
rolled web; rolled client
until_true 30 "an answer" ask
crosses node-2 http://web.default.svc.cluster.local/ node-1
say "  objects and pods are there again: $(ask)"

# --- Nothing left, and an engine that cannot.
compose down -v
[ -z "$(docker ps -aq)$(docker volume ls -q)$(docker network ls -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME")" ] || die "down -v leaves something behind"
stop_engine
start_engine setpriv --bounding-set -audit_write --
expect "capability" compose up
compose down -v
say "done"
