// Command node-agent runs the pods of one node of a Sampan cluster.
package main

import (
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/app"
)

func main() {
	component.Main("node-agent", "Runs the pods that are bound to this node, as runc containers or through any CRI runtime.", app.New())
}
