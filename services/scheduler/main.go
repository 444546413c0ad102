// Command scheduler chooses a node for each pod of a Sampan cluster.
package main

import (
	"github.com/sampan-io/sampan/services/internal/component"
	"github.com/sampan-io/sampan/services/scheduler/app"
)

func main() {
	component.Main("scheduler", "Chooses a node for each pod and says why where it cannot.", app.New())
}
