// Command controller-manager runs the controllers that bring a Sampan cluster
// to what its API objects ask for.
package main

import (
	"github.com/sampan-io/sampan/services/controller-manager/app"
	"github.com/sampan-io/sampan/services/internal/component"
)

func main() {
	component.Main("controller-manager", "Runs the controllers that bring the cluster to what its API objects ask for.", app.New())
}
