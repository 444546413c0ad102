#!/usr/bin/env bash
# Runs the composed cluster, and says in one line what is in the way. `docker compose` works without it.
# Usage: scripts/compose.sh build [prebuilt] | up [ARGUMENT…] | down [ARGUMENT…] | image ARCHIVE
#   build     builds the images and prints their sizes; "prebuilt" puts in the programs of bin/, and makes the nodes' base with debootstrap
#   up        starts the cluster and waits until it is healthy; arguments are those of `docker compose up`: --scale node=4
#   down      ends it; -v deletes its objects and identities too
#   image     offers an image archive (docker save, OCI) to every node
set -euo pipefail
cd "$(dirname "$0")/.."
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-sampan}
port=${SAMPAN_PORT:-6443}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

refuse() { echo "compose: $*" >&2; exit 2; }

engine() {
  command -v docker >/dev/null || refuse "docker is missing; on Debian: apt-get install docker.io docker-compose"
  if docker compose version >/dev/null 2>&1; then compose=(docker compose)
  elif command -v docker-compose >/dev/null; then compose=(docker-compose)
  else refuse "neither docker compose nor docker-compose is installed; on Debian: apt-get install docker-compose"; fi
  local said
  said=$(docker version --format '{{.Server.Version}}' 2>&1) && return
  case $said in
    *"permission denied"*) refuse "no permission on the engine's socket ${DOCKER_HOST:-/var/run/docker.sock}: join its group (usually docker), or use sudo" ;;
    *) refuse "no engine answers at ${DOCKER_HOST:-/var/run/docker.sock}: ${said##*$'\n'}" ;;
  esac
}

# ports refuses when another process has a port that the cluster needs.
ports() {
  local taken first last
  [ -z "$(docker ps -q --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --filter label=com.docker.compose.service=apiserver)" ] || return 0
  first=${SAMPAN_NODEPORTS:-30000-30015} last=${first#*-} first=${first%-*}
  command -v ss >/dev/null || return 0
  while read -r taken; do
    taken=${taken##*:}
    [ "$taken" != "$port" ] || refuse "port $port, the API server's, is in use by another process; set SAMPAN_PORT to another"
    [ "$taken" -lt "$first" ] || [ "$taken" -gt "$last" ] || refuse "port $taken, one of the NodePorts, is in use by another process; set SAMPAN_NODEPORTS to another range"
  done < <(ss -Htln | awk '{print $4}')
}

# explain says what an engine's error means, or shows it.
explain() {
  local what
  what=$(grep -v '^ERROR: Encountered' "$log" | grep -iE 'error|cannot|failed' | tail -1 || true)
  case $(cat "$log") in
    *"address already in use"* | *"port is already allocated"*) refuse "a port that the cluster needs is in use by another process: ${what##*: }" ;;
    *"unable to apply caps"* | *"apply caps"* | *"invalid CapAdd"*)
      refuse "the engine has not got a capability that nodes need (it runs rootless, or in a container itself); docker-compose.yml lists them" ;;
    *) tail -20 "$log" >&2; refuse "the engine reports an error" ;;
  esac
}

quietly() { "$@" >"$log" 2>&1 || explain; }

containers() { docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" "$@"; }

# healthy waits until every container is.
healthy() {
  local deadline=$((SECONDS + ${SAMPAN_PATIENCE:-90})) state id
  for id in $(containers --filter label=com.docker.compose.oneoff=False); do
    while :; do
      state=$(docker inspect --format '{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{end}} {{.State.ExitCode}}' "$id")
      case $state in
        "running healthy "* | "exited  0") break ;;
        "restarting "* | "exited "*)
          refuse "$(docker inspect --format '{{slice .Name 1}}' "$id") has ended: $(docker logs --tail 1 "$id" 2>&1)" ;;
      esac
      [ $SECONDS -lt $deadline ] || refuse "$(docker inspect --format '{{slice .Name 1}}' "$id") is not healthy in time; its log: docker logs $id"
      sleep 0.2
    done
  done
}

build() {
  if [ "${1:-}" = prebuilt ]; then
    docker image inspect sampan/base >/dev/null 2>&1 || scripts/compose-base.sh base
    scripts/compose-base.sh prebuilt 2>/dev/null
    export SAMPAN_BASE=sampan/base SAMPAN_BUILDER=sampan/prebuilt SAMPAN_BUILD_NETWORK=none
  fi
  SAMPAN_COMMIT=${SAMPAN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
  export SAMPAN_COMMIT
  "${compose[@]}" build >"$log" 2>&1 || { tail -20 "$log" >&2; refuse "the images cannot be built"; }
  docker images --format '{{.Repository}}\t{{.Size}}' | awk '$1 ~ /^sampan\/(nats|setup|apiserver|scheduler|controller-manager|node)$/ {printf "%-28s %s\n", $1, $2}' | sort
}

offer() {
  [ -f "${1:-}" ] || refuse "usage: scripts/compose.sh image ARCHIVE"
  local id name
  name=$(basename "$1")
  for id in $(containers --filter label=com.docker.compose.service=node); do
    docker exec -i "$id" sh -c 'into=$(echo /var/lib/sampan/"$(node-init name)"/images/import)/$0; cat >"$into.part" && mv "$into.part" "$into"' "$name" <"$1"
  done
}

command=${1:-}
shift || true
engine
case $command in
  build) build "$@" ;;
  up)
    ports
    quietly "${compose[@]}" up --detach "$@"
    healthy
    echo "The cluster is up. Next:"
    echo
    echo "  export KUBECONFIG=$PWD/deploy/compose/admin/kubeconfig"
    echo "  kubectl get nodes"
    ;;
  down) quietly "${compose[@]}" down "$@" ;;
  image) offer "$@" ;;
  *) refuse "usage: scripts/compose.sh build [prebuilt] | up [ARGUMENT…] | down [ARGUMENT…] | image ARCHIVE" ;;
esac
