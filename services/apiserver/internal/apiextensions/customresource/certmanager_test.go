package customresource_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/sampan-io/sampan/services/apiserver/internal/testserver"
)

const certManager = "github.com/cert-manager/cert-manager@v1.21.2"

// moduleDir is where a module's files lie, fetched with the go command.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	command := exec.Command("go", "mod", "download", "-json", module)
	command.Dir = t.TempDir() // outside of any module
	command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := command.Output()
	if err != nil {
		t.Skipf("%s cannot be fetched: %v %s", module, err, out)
	}
	var fetched struct{ Dir string }
	if err := json.Unmarshal(out, &fetched); err != nil {
		t.Fatal(err)
	}
	return fetched.Dir
}

func TestDefinitionsOfCertManagerServe(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(moduleDir(t, certManager), "deploy", "crds", "*.yaml"))
	if err != nil || len(files) < 6 {
		t.Fatalf("definitions: %v %v", err, files)
	}
	warnings := &recorder{}
	server := testserver.Start(t)
	server.Config.WarningHandler = warnings
	began := time.Now()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		mustDefine(t, server, d)
		if c := awaitCondition(t, server, d.Name, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionTrue); c == nil {
			t.Errorf("%s: names are not accepted", d.Name)
		}
	}
	t.Logf("%d definitions serve after %v", len(files), time.Since(began))
	ctx := context.Background()
	for text, wrong := range map[string]string{
		`{"apiVersion":"cert-manager.io/v1","kind":"Issuer","metadata":{"name":"self"},"spec":{"selfSigned":{}}}`:                                                                                                                                       "",
		`{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"web"},"spec":{"secretName":"web","dnsNames":["a.example.com"],"issuerRef":{"name":"self"}}}`:                                                                       "",
		`{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"bad"},"spec":{"dnsNames":["a.example.com"],"issuerRef":{"name":"self"}}}`:                                                                                          "spec.secretName: Required value",
		`{"apiVersion":"cert-manager.io/v1","kind":"Certificate","metadata":{"name":"bad"},"spec":{"secretName":"x","issuerRef":{"name":"self"},"privateKey":{"algorithm":"Other"}}}`:                                                                   "spec.privateKey.algorithm: Unsupported value",
		`{"apiVersion":"cert-manager.io/v1","kind":"Issuer","metadata":{"name":"pods"},"spec":{"acme":{"server":"https://a","privateKeySecretRef":{"name":"k"},"solvers":[{"http01":{"ingress":{"podTemplate":{"metadata":{"labels":{"a":"b"}}}}}}]}}}`: "",
	} {
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON([]byte(text)); err != nil {
			t.Fatal(err)
		}
		gvr := obj.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(obj.GetKind()) + "s")
		_, err := server.Dynamic(t).Resource(gvr).Namespace("default").Create(ctx, obj, metav1.CreateOptions{FieldValidation: "Strict"})
		if wrong == "" && err != nil || wrong != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if got := warnings.take(); len(got) > 0 {
		t.Logf("warnings: %q", got)
	}
}
