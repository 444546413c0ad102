// Command proxy forwards a node's Service traffic, routes to other nodes' pods
// and answers cluster DNS.
package main

import (
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/proxy/app"
)

func main() {
	component.Main("proxy", "The Sampan proxy programs a node's Service rules, pod routes and DNS, in the place of kube-proxy and a DNS server.", app.New())
}
