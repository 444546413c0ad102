// Package definitions is where openapi-gen writes the schemas of the built-in
// types in Go form, while scripts/generate.sh runs. That file is not kept.
package definitions
