package openapi

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
)

// The schemas of all built-in types by model name, made by scripts/tools/openapi.
var (
	//go:embed data/definitions.v3.json.gz
	schemasV3 []byte
	//go:embed data/definitions.v2.json.gz
	schemasV2 []byte
)

// schemas are JSON schemas by model name ("io.k8s.api.core.v1.Pod").
type schemas map[string]json.RawMessage

func loadSchemas(compressed []byte) (schemas, error) {
	data, err := decompress(compressed)
	if err != nil {
		return nil, err
	}
	var all schemas
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading embedded schemas: %w", err)
	}
	return all, nil
}

var reference = regexp.MustCompile(`"\$ref":"#/(?:components/schemas|definitions)/([^"]+)"`)

// closure is the part of all that the models in roots refer to, roots included.
func (all schemas) closure(roots []string) schemas {
	out := schemas{}
	for len(roots) > 0 {
		name := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		schema, known := all[name]
		if _, done := out[name]; done || !known {
			continue
		}
		out[name] = schema
		for _, match := range reference.FindAllSubmatch(schema, -1) {
			roots = append(roots, string(match[1]))
		}
	}
	return out
}

func compress(data []byte) ([]byte, error) {
	var buffer bytes.Buffer
	zip := gzip.NewWriter(&buffer)
	if _, err := zip.Write(data); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}

func decompress(data []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	out, err := io.ReadAll(zip)
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	return out, nil
}
