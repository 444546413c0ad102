package resources_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// changing is what differs between two runs.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`"resourceVersion":( ?)"[0-9]+"`), `"resourceVersion":$1"VERSION"`},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), `UID`},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), `TIME`},
	{regexp.MustCompile(`"\d+s"`), `"AGE"`},
	{regexp.MustCompile(`,?"managedFields":\[.*?\}\]`), ``}, // other tests hold them
}

// exchange sends what the text asks for, and returns the answer as text: its
// status, media type and body.
func exchange(t *testing.T, server *testserver.Server, request string) string {
	t.Helper()
	head, body, _ := strings.Cut(request, "\n")
	words := strings.Fields(head)
	if len(words) < 2 {
		t.Fatalf("request %q", request)
	}
	r, err := http.NewRequestWithContext(t.Context(), words[0], server.Config.Host+words[1], strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for _, header := range words[2:] {
		name, value, _ := strings.Cut(header, ":")
		r.Header.Set(name, value)
	}
	response, err := server.HTTP(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d %s\n%s", response.StatusCode, response.Header.Get("Content-Type"), data)
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	return strings.TrimSpace(text)
}

// TestDocuments sends the requests of a file, in their order, and holds the
// answers against those that follow them there.
func TestDocuments(t *testing.T) {
	const file, between, answers = "testdata/documents.txt", "\n\n", "\n->\n"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	server, out := testserver.Start(t), []string{}
	for _, section := range strings.Split(strings.TrimSpace(string(data)), between) {
		request, want, _ := strings.Cut(section, answers)
		got := exchange(t, server, request)
		if out = append(out, request+answers+got); !*rewrite && got != strings.TrimSpace(want) {
			t.Errorf("%s\n got %s\nwant %s", request, got, want)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.Join(out, between)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
