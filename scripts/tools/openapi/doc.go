// Package main of openapi is built with the tag "openapi" only, after
// openapi-gen wrote package definitions: see scripts/generate.sh.
package main
