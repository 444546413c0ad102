package admission

import (
	"os"
	"strings"
	"testing"
)

func TestPolicySet(t *testing.T) {
	s := startServer(t)
	policies, err := os.ReadFile("testdata/policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl(t, "", "create", "namespace", "policies")
	s.kubectl(t, "", "create", "namespace", "shop")
	s.kubectl(t, "", "label", "namespace", "shop", "team=sales")
	s.kubectl(t, "", "create", "configmap", "registries", "-n", "policies", "--from-literal=registries=registry.example.com/,ghcr.io/example/")
	s.kubectl(t, string(policies), "apply", "-f", "-")

	in := []string{"-n", "shop"}
	deploy := func(image string) []string { return append(in, "create", "deployment", "web", "--image="+image) }
	s.refused(t, "ValidatingAdmissionPolicy 'images.example.com' with binding 'images.example.com' denied request: images of foreign registries: docker.io/nginx:1", "", deploy("docker.io/nginx:1")...)
	s.refused(t, "images need a tag that is not latest, or a digest", "", deploy("registry.example.com/web:latest")...)
	out := s.kubectl(t, "", deploy("registry.example.com/web:1")...)
	if !strings.Contains(out, "Warning: Validation failed for ValidatingAdmissionPolicy 'limits.example.com' with binding 'limits.example.com': containers should have a memory limit") {
		t.Errorf("kubectl says %q", out)
	}
	show := "{.metadata.labels.team} {.spec.template.metadata.labels.team} {.spec.template.spec.securityContext.runAsNonRoot} {.metadata.annotations.example\\.com/team}"
	if got := s.kubectl(t, "", append(in, "get", "deployment", "web", "-o", "jsonpath="+show)...); got != "sales sales true sales" {
		t.Errorf("the deployment is %q", got)
	}

	s.kubectl(t, "", append(in, "scale", "deployment", "web", "--replicas=3")...)
	s.kubectl(t, "", append(in, "create", "rolebinding", "jane", "--clusterrole=edit", "--user=jane")...)
	s.refused(t, "at most 10 replicas, not 11", "", append(in, "scale", "deployment", "web", "--replicas=11", "--as=jane")...)
	s.kubectl(t, "", append(in, "scale", "deployment", "web", "--replicas=11")...) // an administrator may

	s.kubectl(t, "", append(in, "create", "configmap", "mine")...)
	s.kubectl(t, "", append(in, "label", "configmap", "mine", "keep=true")...)
	s.refused(t, "mine is to be kept", "", append(in, "delete", "configmap", "mine")...)
	s.kubectl(t, "", append(in, "label", "configmap", "mine", "keep-")...)
	s.kubectl(t, "", append(in, "delete", "configmap", "mine")...)

	// Without its parameters the policy refuses, and it can be taken away.
	s.kubectl(t, "", "delete", "configmap", "registries", "-n", "policies")
	s.refused(t, "no params found for policy binding with `Deny` parameterNotFoundAction", "", append(in, "set", "image", "deployment/web", "web=registry.example.com/web:2")...)
	s.kubectl(t, "", "delete", "validatingadmissionpolicybinding", "images.example.com")
	s.kubectl(t, "", append(in, "set", "image", "deployment/web", "web=nginx")...)

	table := s.kubectl(t, "", "get", "validatingadmissionpolicies")
	for _, want := range []string{"NAME", "VALIDATIONS", "PARAMKIND", "v1/ConfigMap"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %s:\n%s", want, table)
		}
	}
}
