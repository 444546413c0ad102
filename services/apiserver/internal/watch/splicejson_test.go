package watch

import (
	"encoding/json"
	"testing"
)

func TestSplicedJSONIsAsIfItHadBeenMarshalled(t *testing.T) {
	for _, object := range []map[string]any{
		{"apiVersion": "a/v1", "kind": "A", "metadata": map[string]any{"name": "n", "uid": "u", "labels": map[string]any{`q"\`: "}{]"}}, "spec": []any{1.5, nil, true, "x"}},
		{"apiVersion": "a/v1", "metadata": map[string]any{}, "z": "z"},
		{"apiVersion": "a/v1", "metadata": map[string]any{"uid": "u"}},
		{"metadata": map[string]any{"a": 1}},
		{"a": map[string]any{"metadata": 1}, "z": 1}, {"a": 1}, {"z": 1}, {},
	} {
		stored, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		meta, _ := object["metadata"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
			object["metadata"] = meta
		}
		meta["resourceVersion"] = "42"
		want, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got, err := splice(stored, 42)
		if err != nil || string(got) != string(want)+"\n" {
			t.Errorf("%s became %s (%v), want %s", stored, got, err, want)
		}
		if again, err := splice(got, 42); err != nil || string(again) != string(got) {
			t.Errorf("again: %s %v", again, err)
		}
	}
}
