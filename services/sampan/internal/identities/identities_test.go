package identities_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sampan-io/sampan/services/internal/pki"
	"github.com/sampan-io/sampan/services/sampan/internal/identities"
)

func plan(t testing.TB) identities.Plan {
	t.Helper()
	return identities.Plan{
		Dir: t.TempDir(), Server: "https://apiserver:6443", AdminServer: "https://127.0.0.1:16443",
		Names: []string{"apiserver", "192.0.2.7"}, BusNames: []string{"nats"}, Nodes: []string{"node-1", "node-2"}, Lifetime: 24 * time.Hour,
	}
}

func mustEnsure(t testing.TB, p identities.Plan) {
	t.Helper()
	if err := p.Ensure(); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t testing.TB, parts ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// every is the content of every file below dir, by path.
func every(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all[path] = mustRead(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestEachServiceIsItsUserAtTheServer(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	for file, want := range map[string]struct{ server, user, group string }{
		"scheduler/kubeconfig":          {p.Server, "system:kube-scheduler", ""},
		"controller-manager/kubeconfig": {p.Server, "system:kube-controller-manager", ""},
		"node/proxy.kubeconfig":         {p.Server, "system:kube-proxy", ""},
		"node/node-2/kubeconfig":        {p.Server, "system:node:node-2", "system:nodes"},
		"admin/kubeconfig":              {p.AdminServer, "kubernetes-admin", "system:masters"},
	} {
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != want.server {
			t.Errorf("%s: server is %s", file, config.Host)
		}
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if config.CertFile != "" {
			pair, err = tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
		}
		if err != nil {
			t.Fatal(err)
		}
		subject := pair.Leaf.Subject
		if subject.CommonName != want.user || strings.Join(subject.Organization, ",") != want.group {
			t.Errorf("%s: is %s", file, subject)
		}
	}
}

func TestServersAreWhatTheyAreCalled(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	for file, names := range map[string][]string{
		"apiserver/serving.crt": {"apiserver", "localhost", "kubernetes.default.svc", "10.96.0.1", "127.0.0.1", "192.0.2.7"},
		"bus/serving.crt":       {"nats"},
	} {
		certificates, err := pki.LoadCertificates(filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		authorities, err := pki.LoadCertificates(filepath.Join(p.Dir, filepath.Dir(file), "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AddCert(authorities[0])
		for _, name := range names {
			if _, err := certificates[0].Verify(x509.VerifyOptions{DNSName: name, Roots: pool}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

func TestTheBusKnowsThePublicPartsOfTheServersKeys(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	known := mustRead(t, p.Dir, "bus", "keys.conf")
	for name, file := range map[string]string{"PUBLISHER": "bus-user.seed", "ISSUER": "bus-issuer.seed"} {
		seed := mustRead(t, p.Dir, "apiserver", file)
		if strings.Contains(known, seed) {
			t.Errorf("the bus is told the seed of %s", name)
		}
		pair, err := nkeys.FromSeed([]byte(seed))
		if err != nil {
			t.Fatal(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(known, name+" = "+public+"\n") {
			t.Errorf("%s is not %s in\n%s", name, public, known)
		}
	}
}

func TestOnlyTheAuthorityAndTheServerHoldSigningKeys(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	authority := mustRead(t, p.Dir, "ca", "ca.key")
	for path, content := range every(t, p.Dir) {
		if content == authority && path != filepath.Join(p.Dir, "ca", "ca.key") {
			t.Errorf("the authority's key is in %s, too", path)
		}
	}
	for path := range every(t, p.Dir) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if secret := strings.HasSuffix(path, ".key") || strings.HasSuffix(path, ".seed") || strings.HasSuffix(path, "kubeconfig"); secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
}

func TestWhatIsGoodStaysAndMoreNodesAreAdded(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	before := every(t, p.Dir)
	p.Nodes = append(p.Nodes, "node-3")
	mustEnsure(t, p)
	after := every(t, p.Dir)
	for path, content := range before {
		if after[path] != content {
			t.Errorf("%s has changed", path)
		}
	}
	if _, there := after[filepath.Join(p.Dir, "node", "node-3", "client.crt")]; !there {
		t.Error("node-3 has no identity")
	}
}

func TestExpiringCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	p := plan(t)
	p.Lifetime = time.Millisecond
	mustEnsure(t, p)
	before := every(t, p.Dir)
	p.Lifetime = 24 * time.Hour
	mustEnsure(t, p)
	after := every(t, p.Dir)
	for path, content := range before {
		leaf := strings.HasSuffix(path, ".crt") && !strings.HasSuffix(path, "ca.crt")
		if leaf == (after[path] == content) {
			if leaf {
				t.Errorf("%s is not renewed", path)
			} else if !strings.HasSuffix(path, ".key") && filepath.Base(path) != "kubeconfig" {
				t.Errorf("%s has changed", path)
			}
		}
	}
}

func TestADamagedSeedIsNotReplaced(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	path := filepath.Join(p.Dir, "apiserver", "bus-user.seed")
	if err := os.WriteFile(path, []byte("SUA"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Ensure(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

func TestTheOperatorsCopyBelongsToItsFoldersOwner(t *testing.T) {
	t.Parallel()
	p := plan(t)
	mustEnsure(t, p)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := p.CopyAdmin(path); err != nil {
		t.Fatal(err)
	}
	if mustRead(t, path) != mustRead(t, p.AdminKubeconfig()) {
		t.Error("the copy differs")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", info.Mode(), err)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	owned := t.TempDir()
	if err := os.Chown(owned, 4242, 4343); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(owned, "kubeconfig")
	if err := p.CopyAdmin(path); err != nil {
		t.Fatal(err)
	}
	if uid, gid := owner(t, path); uid != 4242 || gid != 4343 {
		t.Errorf("belongs to %d:%d", uid, gid)
	}
	if err := p.Give(4242, 4343); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]uint32{"apiserver": 4242, "bus": 4242, "scheduler": 4242, "ca": 0, "admin": 0, "node": 0} {
		if uid, _ := owner(t, filepath.Join(p.Dir, folder)); uid != want {
			t.Errorf("%s belongs to %d", folder, uid)
		}
	}
}
