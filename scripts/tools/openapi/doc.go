//go:build !openapi

// Package main of openapi does its work only when it is built with the tag
// "openapi", after openapi-gen wrote package definitions.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "openapi: run scripts/generate.sh, which makes what this command reads")
	os.Exit(2)
}
