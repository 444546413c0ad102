package openapi

import "testing"

// A client reads no document in which one reference leads nowhere.
func TestSchemasReferToSchemas(t *testing.T) {
	for version, compressed := range map[string][]byte{"v2": schemasV2, "v3": schemasV3} {
		all, err := loadSchemas(compressed)
		if err != nil {
			t.Fatal(err)
		}
		for name, schema := range all {
			for _, match := range reference.FindAllSubmatch(schema, -1) {
				if all[string(match[1])] == nil {
					t.Errorf("%s: %s refers to %s, which is not there", version, name, match[1])
				}
			}
		}
	}
}
