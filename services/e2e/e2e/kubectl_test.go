package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

var update = flag.Bool("update", false, "write what kubectl prints into testdata/kubectl")

// TestKubectlPrintsWhatItDoesElsewhere runs the commands of testdata/kubectl, which are
// the lines that begin with "$ ", each file in a namespace of its own, and compares
// what they print, names and times that differ from run to run aside.
func TestKubectlPrintsWhatItDoesElsewhere(t *testing.T) {
	files, err := filepath.Glob("testdata/kubectl/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no commands: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			session := newSession(t)
			var said strings.Builder
			for _, command := range commandsOf(string(text)) {
				said.WriteString("$ " + command + "\n" + session.run(command))
			}
			if *update {
				if err := os.WriteFile(file, []byte(said.String()), 0o644); err != nil { //nolint:gosec // it is to be committed
					t.Fatal(err)
				}
				return
			}
			compare(t, string(text), said.String())
		})
	}
}

func commandsOf(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "$ "); ok {
			out = append(out, command)
		}
	}
	return out
}

// compare reports the first line that differs, with its command.
func compare(t *testing.T, want, got string) {
	t.Helper()
	wanted, have := strings.Split(want, "\n"), strings.Split(got, "\n")
	command := ""
	for i, line := range wanted {
		if strings.HasPrefix(line, "$ ") {
			command = line
		}
		if i >= len(have) || have[i] != line {
			t.Fatalf("%s\nprints\n%s\nwant\n%s", command, strings.Join(have[min(i, len(have)):min(i+6, len(have))], "\n"), strings.Join(wanted[i:min(i+6, len(wanted))], "\n"))
		}
	}
}

// session is a shell whose kubectl works in a namespace.
type session struct {
	t          *testing.T
	namespace  string
	dir, files string
	env        []string
}

func newSession(t *testing.T) *session {
	t.Helper()
	s := &session{t: t, namespace: newNamespace(t), dir: t.TempDir()}
	config, err := clientcmd.LoadFromFile(cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[config.CurrentContext].Namespace = s.namespace
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	if s.files, err = filepath.Abs("testdata/kubectl"); err != nil {
		t.Fatal(err)
	}
	s.env = append(os.Environ(), "PATH="+cluster.Bin+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+s.dir, "LC_ALL=C", "FILES="+s.files, "NAMESPACE="+s.namespace, "KUBE_EDITOR=sed -i "+edits)
	return s
}

// edits is what the editor of kubectl edit does.
const edits = "s/colour:.blue/colour:\\ green/"

// run is the normalised output of a command; a failure is told in a last line.
func (s *session) run(command string) string {
	s.t.Helper()
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", command)
	cmd.Dir, cmd.Env = s.dir, s.env
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := s.normalise(string(out))
	if err != nil {
		text += fmt.Sprintf("(%v)\n", err)
	}
	return text
}

// varying is what differs from run to run, and what takes its place.
var varying = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}`), "TIME"},
	{regexp.MustCompile(`\b(\d{1,3}\.){3}\d{1,3}\b`), "IP"},
	{regexp.MustCompile(`\bIP:\d+`), "IP:PORT"},
	{regexp.MustCompile(`(resourceVersion: |"resourceVersion": )"\d+"`), `${1}"N"`},
	{regexp.MustCompile(`\bnode-[12]\b`), "NODE"},
	{regexp.MustCompile(`-[0-9a-z]{6,10}-[bcdfghjklmnpqrstvwxz2-9]{5}\b`), "-HASH-RANDOM"},
	{regexp.MustCompile(`\b(web|debugger-\w+)-[bcdf0-9][bcdf0-9]{5,9}\b`), "$1-HASH"},
	{regexp.MustCompile(`pod-template-hash=\w+`), "pod-template-hash=HASH"},
	{regexp.MustCompile(`\b\d+(m\d+)?s\b`), "AGE"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "DIGEST"},
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
	{regexp.MustCompile(`(\S)  +`), "$1  "},
}

func (s *session) normalise(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, s.namespace, "NAMESPACE")
	text = strings.ReplaceAll(strings.ReplaceAll(text, s.dir, "DIR"), s.files, "FILES")
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.instead)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text
}
