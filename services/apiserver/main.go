// Command apiserver serves the Kubernetes API from an embedded store.
package main

import (
	"github.com/sampan-io/sampan/services/apiserver/app"
	"github.com/sampan-io/sampan/services/internal/component"
)

func main() {
	component.Main("apiserver", "Serves the Kubernetes API from an embedded store.", app.New())
}
