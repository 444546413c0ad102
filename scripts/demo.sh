#!/usr/bin/env bash
# Applies the example to the running cluster and shows it answering.
set -euo pipefail
cd "$(dirname "$0")/.."
export KUBECONFIG=${KUBECONFIG:-$PWD/.sampan/kubeconfig}
[ -e "$KUBECONFIG" ] || { echo "demo: there is no cluster here; make up starts one" >&2; exit 2; }
kubectl() { bin/kubectl "$@"; }
show() { echo; echo "\$ $*"; "$@"; }

show kubectl apply -f deploy/examples/demo/demo.yaml
show kubectl rollout status deployment/web --timeout=60s
show kubectl rollout status deployment/client --timeout=60s
show kubectl get pods -o wide
show kubectl get service web

ip=$(kubectl get service web -o jsonpath='{.spec.clusterIP}')
echo; echo "# from this host, by ClusterIP"
for _ in 1 2 3 4; do bin/demo fetch "http://$ip/"; done

for client in $(kubectl get pods -l app=client -o name); do
  echo; echo "# from $client, by ClusterIP and by DNS name"
  kubectl exec "$client" -- /demo fetch "http://$ip/"
  kubectl exec "$client" -- /demo fetch http://web.default.svc.cluster.local/
done

# Answers while something changes: every request must get one.
answers() {
  echo; echo "# $1"; shift
  local stop=0 good=0 bad=0
  "$@" & local change=$!
  while [ $stop = 0 ]; do
    kill -0 $change 2>/dev/null || stop=1
    if bin/demo fetch "http://$ip/" >/dev/null 2>&1; then good=$((good + 1)); else bad=$((bad + 1)); fi
  done
  wait $change
  echo "$good requests answered, $bad not"
  [ $bad = 0 ]
}
scale() { kubectl scale deployment/web --replicas="$1" && kubectl rollout status deployment/web --timeout=60s; }
update() { kubectl set env deployment/web VERSION=2 && kubectl rollout status deployment/web --timeout=60s; }
answers "scaling to 6" scale 6
answers "a rolling update" update
answers "scaling to 2" scale 2
bin/demo fetch "http://$ip/"

pod=pod/$(kubectl get pods -l app=web -o jsonpath="{.items[0].metadata.name}")
show kubectl delete "$pod" --wait=false
show kubectl rollout status deployment/web --timeout=60s
show kubectl get pods -l app=web
