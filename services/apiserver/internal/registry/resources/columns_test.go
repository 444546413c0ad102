package resources_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// columnsText is a Table's columns as the table in testdata spells them.
func columnsText(columns []metav1.TableColumnDefinition) string {
	var out []string
	for _, c := range columns {
		text := c.Name
		if c.Type != "string" {
			text += " " + c.Type
		}
		if c.Priority == 1 {
			text += " wide"
		}
		out = append(out, text)
	}
	return strings.Join(out, " | ")
}

func fetchTable(t *testing.T, s *testserver.Server, path string) *metav1.Table {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := s.HTTP(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	table := &metav1.Table{}
	if err == nil {
		err = json.Unmarshal(body, table)
	}
	if err != nil || table.Kind != "Table" {
		t.Fatalf("%s: %v: %s", path, err, body)
	}
	return table
}

func TestTablesHaveTheColumnsThatKubectlPrints(t *testing.T) {
	server := testserver.Start(t)
	data, err := os.ReadFile("testdata/columns.txt")
	if err != nil {
		t.Fatal(err)
	}
	missing := stored(t, server)
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		name, want, ok := strings.Cut(line, ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		version, resource, _ := strings.Cut(name, " ")
		gv, err := schema.ParseGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		delete(missing, gv.WithResource(resource))
		root := "/apis/"
		if gv.Group == "" {
			root = "/api/"
		}
		table := fetchTable(t, server, root+version+"/"+resource)
		if got := columnsText(table.ColumnDefinitions); got != want {
			t.Errorf("%s\n got %s\nwant %s", name, got, want)
		}
		at := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == "Name" })
		if format := table.ColumnDefinitions[at].Format; format != "name" && resource != "storageversionmigrations" {
			t.Errorf("%s: the name's format is %q", name, format)
		}
	}
	for resource := range missing {
		t.Errorf("the columns of %s are not listed", resource)
	}
}

func TestFlowSchemasAreListedAsTheyAreTried(t *testing.T) {
	table := fetchTable(t, testserver.Start(t), "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas")
	var names []any
	for _, row := range table.Rows {
		names = append(names, row.Cells[0])
	}
	if len(names) < 10 || names[0] != "exempt" || names[1] != "probes" || names[len(names)-1] != "catch-all" {
		t.Errorf("rows are %v", names)
	}
}
