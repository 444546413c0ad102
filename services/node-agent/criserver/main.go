// Command criserver serves the node agent's container runtime by itself, for agents
// and tools that reach it through the CRI.
package main

import (
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/node-agent/app"
)

func main() {
	component.Main("criserver", "Runs containers through runc for clients of the Container Runtime Interface.", app.NewCRIServer())
}
