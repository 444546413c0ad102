package discovery_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

// surface is what the table in testdata says, a line for each resource and
// subresource, in canonical form and in the table's order.
func surface(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/surface.txt")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	var version, resource, scope string
	for _, line := range strings.Split(string(data), "\n") {
		words := strings.Fields(line)
		switch indent := len(line) - len(strings.TrimLeft(line, " ")); {
		case len(words) == 0 || strings.HasPrefix(line, "#"):
		case indent == 0:
			version = words[0]
		case indent == 2:
			resource, scope = words[0], words[2]
			lines = append(lines, canonical(version, resource, words[1], scope, words[3], words[4:]))
		default:
			lines = append(lines, canonical(version, resource+"/"+words[0], words[1], scope, words[2], nil))
		}
	}
	return lines
}

func canonical(version, name, kind, scope, verbs string, names []string) string {
	switch verbs {
	case "crud":
		verbs = "create,delete,deletecollection,get,list,patch,update,watch"
	case "gpu":
		verbs = "get,patch,update"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", version, name, kind, scope, verbs, strings.Join(names, " ")))
}

// names are short names and categories as the table spells them.
func names(short, categories []string) []string {
	var out []string
	if len(short) > 0 {
		out = append(out, "short="+strings.Join(short, ","))
	}
	if len(categories) > 0 {
		out = append(out, "categories="+strings.Join(categories, ","))
	}
	return out
}

func fetch(t *testing.T, s *testserver.Server, path, accept string, into any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", accept)
	answer, err := s.HTTP(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v: %s", path, answer.StatusCode, err, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// elsewhere are groups that are tested where they are served from.
func elsewhere(group string) bool { return group == "metrics.k8s.io" }

func plainSurface(t *testing.T, s *testserver.Server) []string {
	t.Helper()
	paths := []string{"/api/v1"}
	var groups metav1.APIGroupList
	fetch(t, s, "/apis", "application/json", &groups)
	for _, g := range groups.Groups {
		if elsewhere(g.Name) {
			continue
		}
		if g.PreferredVersion != g.Versions[0] {
			t.Errorf("group %s prefers %v to %v", g.Name, g.PreferredVersion, g.Versions[0])
		}
		for _, v := range g.Versions {
			paths = append(paths, "/apis/"+v.GroupVersion)
		}
	}
	var lines []string
	for _, path := range paths {
		var list metav1.APIResourceList
		fetch(t, s, path, "application/json", &list)
		for _, r := range list.APIResources {
			scope, kind := "cluster", r.Kind
			if r.Namespaced {
				scope = "namespaced"
			}
			if r.Version != "" {
				kind = r.Group + "/" + r.Version + "/" + r.Kind
			}
			if !strings.Contains(r.Name, "/") && r.SingularName != strings.ToLower(r.Kind) {
				t.Errorf("%s %s: the singular is %q", list.GroupVersion, r.Name, r.SingularName)
			}
			lines = append(lines, canonical(list.GroupVersion, r.Name, kind, scope, strings.Join(r.Verbs, ","), names(r.ShortNames, r.Categories)))
		}
	}
	return lines
}

func aggregatedSurface(t *testing.T, s *testserver.Server) []string {
	t.Helper()
	var lines []string
	for _, path := range []string{"/api", "/apis"} {
		var list apidiscovery.APIGroupDiscoveryList
		fetch(t, s, path, aggregated, &list)
		for _, g := range list.Items {
			if elsewhere(g.Name) {
				continue
			}
			for _, v := range g.Versions {
				if v.Freshness != apidiscovery.DiscoveryFreshnessCurrent {
					t.Errorf("%s/%s is %s", g.Name, v.Version, v.Freshness)
				}
				version := strings.TrimPrefix(g.Name+"/"+v.Version, "/")
				for _, r := range v.Resources {
					lines = append(lines, aggregatedLines(version, r)...)
				}
			}
		}
	}
	return lines
}

func aggregatedLines(version string, r apidiscovery.APIResourceDiscovery) []string {
	scope := strings.ToLower(string(r.Scope))
	kindOf := func(kind *metav1.GroupVersionKind) string {
		if kind.Version == "" {
			return kind.Kind
		}
		return kind.Group + "/" + kind.Version + "/" + kind.Kind
	}
	lines := []string{canonical(version, r.Resource, kindOf(r.ResponseKind), scope, strings.Join(r.Verbs, ","), names(r.ShortNames, r.Categories))}
	for _, sub := range r.Subresources {
		lines = append(lines, canonical(version, r.Resource+"/"+sub.Subresource, kindOf(sub.ResponseKind), scope, strings.Join(sub.Verbs, ","), nil))
	}
	return lines
}

func TestDiscoveryTellsTheWholeSurface(t *testing.T) {
	s := testserver.Start(t)
	want := surface(t)
	for form, got := range map[string][]string{"plain": plainSurface(t, s), "aggregated": aggregatedSurface(t, s)} {
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("%s discovery lacks %s", form, line)
			}
		}
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("%s discovery has   %s", form, line)
			}
		}
		if !slices.Equal(order(got), order(want)) {
			t.Errorf("%s discovery has the order %v, want %v", form, order(got), order(want))
		}
	}
}

func version(line string) string { return line[:strings.Index(line, " ")] }

// order is that of the group versions.
func order(lines []string) []string {
	var out []string
	for _, line := range lines {
		if v := version(line); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
