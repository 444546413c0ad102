// Command sampan is the operator's command: it brings a cluster up on this
// machine, shows it, and takes it down.
package main

import (
	"os"

	"github.com/sampan-io/sampan/services/sampan/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr))
}
