package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

const (
	onCreate  = admissionregistrationv1.Create
	onUpdate  = admissionregistrationv1.Update
	onDelete  = admissionregistrationv1.Delete
	onConnect = admissionregistrationv1.Connect
)

type operationTypes = []admissionregistrationv1.OperationType

var webhooks = map[string]func(*testing.T){
	"should include webhook resources in discovery documents": func(t *testing.T) {
		list := got(client.Discovery().ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1"))(t)
		for _, resource := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
			if !hasResource(list, resource) {
				t.Errorf("%s is not in discovery", resource)
			}
		}
	},
	"should be able to deny pod and configmap creation":                                           denyCreation,
	"should be able to deny attaching pod":                                                        denyAttach,
	"should be able to deny custom resource creation, update and deletion":                        denyCustom,
	"should unconditionally reject operations on fail closed webhook":                             failClosed,
	"should mutate configmap":                                                                     mutateConfigMap,
	"should mutate pod and apply defaults after mutation":                                         mutatePod,
	"should not be able to mutate or prevent deletion of webhook configuration objects":           configurationsAreExempt,
	"should mutate custom resource":                                                               mutateCustom,
	"should deny crd creation":                                                                    denyDefinition,
	"should mutate custom resource with different stored version":                                 mutateStoredVersion,
	"should mutate custom resource with pruning":                                                  mutatePruned,
	"should honor timeout":                                                                        hookTimeout,
	"patching/updating a validating webhook should work":                                          validatingIsChanged,
	"patching/updating a mutating webhook should work":                                            mutatingIsChanged,
	"listing validating webhooks should work":                                                     validatingAreListed,
	"listing mutating webhooks should work":                                                       mutatingAreListed,
	"should be able to create and update validating webhook configurations with match conditions": func(t *testing.T) { matchConditions(t, false) },
	"should be able to create and update mutating webhook configurations with match conditions":   func(t *testing.T) { matchConditions(t, true) },
	"should reject validating webhook configurations with invalid match conditions":               func(t *testing.T) { invalidConditions(t, false) },
	"should reject mutating webhook configurations with invalid match conditions":                 func(t *testing.T) { invalidConditions(t, true) },
	"should mutate everything except 'skip-me' configmaps":                                        mutateButSkipMe,
}

// awaitDenied waits until the act is refused with the message.
func awaitDenied(t *testing.T, message string, act func(context.Context) error) {
	t.Helper()
	eventually(t, "a refusal: "+message, func(ctx context.Context) (bool, error) {
		err := act(ctx)
		return err != nil && strings.Contains(err.Error(), message), nil
	})
}

func unwanted(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	raw := string(request.Object.Raw)
	if strings.Contains(raw, "webhook-disallow") {
		return deny("the object contains unwanted data")
	}
	return allow()
}

func denyCreation(t *testing.T) {
	namespace := newNamespace(t)
	server := newHookServer(t, review(unwanted))
	validate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate, onUpdate}, resources: []string{"pods", "configmaps"}})
	bad := configMap("bad", "x")
	bad.Data = map[string]string{"webhook-e2e-test": "webhook-disallow"}
	api := client.CoreV1().ConfigMaps(namespace)
	awaitDenied(t, "the object contains unwanted data", func(ctx context.Context) error {
		_, err := api.Create(ctx, bad, metav1.CreateOptions{})
		return err
	})
	made := pod("disallowed", "sleep 3600")
	made.Annotations = map[string]string{"why": "webhook-disallow"}
	if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), made, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "denied the request") {
		t.Errorf("creating the pod gives %v", err)
	}
	got(api.Create(t.Context(), configMap("good", "x"), metav1.CreateOptions{}))(t)
	good := configMap("good", "x")
	good.Data = bad.Data
	if _, err := api.Update(t.Context(), good, metav1.UpdateOptions{}); err == nil {
		t.Error("the update was taken")
	}
	if _, err := api.Patch(t.Context(), "good", types.StrategicMergePatchType, []byte(`{"data":{"a":"webhook-disallow"}}`), metav1.PatchOptions{}); err == nil {
		t.Error("the patch was taken")
	}
	// Another namespace is not asked about.
	got(client.CoreV1().ConfigMaps(newNamespace(t)).Create(t.Context(), bad, metav1.CreateOptions{}))(t)
}

func denyAttach(t *testing.T) {
	namespace := newNamespace(t)
	create(t, namespace, pod("attached", "sleep 3600"))
	awaitRunning(t, namespace, "attached")
	server := newHookServer(t, review(func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if request.Operation == admissionv1.Connect && request.SubResource == "attach" {
			return deny("attaching to pod 'attached' is not allowed")
		}
		return allow()
	}))
	validate(t, hook{server: server, namespace: namespace, operations: operationTypes{onConnect}, resources: []string{"pods/attach"}})
	awaitDenied(t, "attaching to pod 'attached' is not allowed", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience/10)
		defer cancel()
		return client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name("attached").SubResource("attach").Param("stdout", "true").Do(ctx).Error()
	})
}

func denyCustom(t *testing.T) {
	namespace := newNamespace(t)
	crd := newDefinition(t, nil)
	server := newHookServer(t, review(func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		raw := request.Object.Raw
		if request.Operation == admissionv1.Delete {
			raw = request.OldObject.Raw
		}
		if strings.Contains(string(raw), "webhook-disallow") {
			return deny("the custom resource contains unwanted data")
		}
		return allow()
	}))
	api := instances(crd, "v1", namespace)
	got(api.Create(t.Context(), instance(crd, "v1", "marked", map[string]any{"data": "webhook-disallow"}), metav1.CreateOptions{}))(t)
	got(api.Create(t.Context(), instance(crd, "v1", "plain", nil), metav1.CreateOptions{}))(t)
	configuration := validate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate, onUpdate, onDelete}, group: crd.Spec.Group, resources: []string{crd.Spec.Names.Plural}})
	const message = "the custom resource contains unwanted data"
	awaitDenied(t, message, func(ctx context.Context) error {
		_, err := api.Create(ctx, instance(crd, "v1", unique("other"), map[string]any{"data": "webhook-disallow"}), metav1.CreateOptions{})
		return err
	})
	awaitDenied(t, message, func(ctx context.Context) error {
		_, err := api.Patch(ctx, "plain", types.MergePatchType, []byte(`{"data":"webhook-disallow"}`), metav1.PatchOptions{})
		return err
	})
	awaitDenied(t, message, func(ctx context.Context) error { return api.Delete(ctx, "marked", metav1.DeleteOptions{}) })
	must(t, client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), configuration.Name, metav1.DeleteOptions{}))
	eventually(t, "the deletion to go through", func(ctx context.Context) (bool, error) {
		return api.Delete(ctx, "marked", metav1.DeleteOptions{}) == nil, nil
	})
}

// failClosed names a server that nobody runs.
func failClosed(t *testing.T) {
	namespace := newNamespace(t)
	server := newHookServer(t, http.NotFoundHandler())
	server.url = "https://127.0.0.1:1"
	validate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}})
	eventually(t, "everything to be refused", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, configMap(unique("foo"), "x"), metav1.CreateOptions{})
		if err != nil && !apierrors.IsInternalError(err) {
			t.Errorf("the refusal is %v", err)
		}
		return err != nil, nil
	})
}

// addData is a webhook that adds a key to data, if another one is there.
func addData(need, add string) review {
	return func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		var object struct {
			Data map[string]any `json:"data"`
		}
		if err := json.Unmarshal(request.Object.Raw, &object); err != nil {
			return deny(err.Error())
		}
		if _, has := object.Data[need]; !has {
			return allow()
		}
		return patched(fmt.Sprintf(`[{"op":"add","path":"/data/%s","value":"yes"}]`, add))
	}
}

func mutateConfigMap(t *testing.T) {
	namespace := newNamespace(t)
	first, second := newHookServer(t, addData("mutation-start", "mutation-stage-1")), newHookServer(t, addData("mutation-stage-1", "mutation-stage-2"))
	on := hook{server: first, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}}
	then := on
	then.server = second
	mutate(t, on, then)
	eventually(t, "both stages", func(ctx context.Context) (bool, error) {
		object := configMap(unique("mutated"), "x")
		object.Data = map[string]string{"mutation-start": "yes"}
		made, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{})
		return err == nil && len(made.Data) == 3 && made.Data["mutation-stage-2"] == "yes", err
	})
}

func mutatePod(t *testing.T) {
	namespace := newNamespace(t)
	server := newHookServer(t, review(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return patched(`[{"op":"add","path":"/spec/initContainers","value":[{"image":"webhook-added-image","name":"webhook-added-init-container","resources":{}}]}]`)
	}))
	mutate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"pods"}})
	eventually(t, "the added container", func(ctx context.Context) (bool, error) {
		made, err := client.CoreV1().Pods(namespace).Create(ctx, idle(unique("mutated"), nil, nil), metav1.CreateOptions{})
		if err != nil || len(made.Spec.InitContainers) == 0 {
			return false, err
		}
		added := made.Spec.InitContainers[0]
		if added.Name != "webhook-added-init-container" || added.TerminationMessagePolicy != corev1.TerminationMessageReadFile || added.ImagePullPolicy == "" {
			t.Errorf("the added container lacks defaults: %+v", added)
		}
		return true, nil
	})
}

// configurationsAreExempt registers webhooks that deny everything about
// webhooks, and deletes them all.
func configurationsAreExempt(t *testing.T) {
	server := newHookServer(t, review(func(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if request.Operation == admissionv1.Delete {
			return deny("no deletion of webhooks")
		}
		return patched(`[{"op":"add","path":"/metadata/labels","value":{"mutated":"yes"}}]`)
	}))
	all := hook{server: server, operations: operationTypes{onCreate, onUpdate, onDelete}, group: "admissionregistration.k8s.io", resources: []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"}}
	validate(t, all)
	mutate(t, all)
	dummy := hook{server: server, operations: operationTypes{onCreate}, group: "none.example.com", resources: []string{"nothing"}}
	first, second := validate(t, dummy), mutate(t, dummy)
	if first.Labels["mutated"] != "" || second.Labels["mutated"] != "" {
		t.Error("a webhook changed the configuration of a webhook")
	}
	must(t, client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	must(t, client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), second.Name, metav1.DeleteOptions{}))
}

// mutatesData registers the two stages for a definition's objects.
func mutatesData(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, namespace string) {
	t.Helper()
	on := hook{namespace: namespace, operations: operationTypes{onCreate, onUpdate}, group: crd.Spec.Group, version: "*", resources: []string{crd.Spec.Names.Plural}}
	then := on
	on.server, then.server = newHookServer(t, addData("mutation-start", "mutation-stage-1")), newHookServer(t, addData("mutation-stage-1", "mutation-stage-2"))
	mutate(t, on, then)
}

// awaitStages creates objects until one has the wanted number of keys in data.
func awaitStages(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, version, namespace string, keys int) {
	t.Helper()
	eventually(t, "the mutated object", func(ctx context.Context) (bool, error) {
		made, err := instances(crd, version, namespace).Create(ctx, instance(crd, version, unique("cr"), map[string]any{"data": map[string]any{"mutation-start": "yes"}}), metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		data, _ := made.Object["data"].(map[string]any)
		return len(data) == keys && data["mutation-stage-1"] == "yes", nil
	})
}

func mutateCustom(t *testing.T) {
	namespace := newNamespace(t)
	crd := newDefinition(t, nil)
	mutatesData(t, crd, namespace)
	awaitStages(t, crd, "v1", namespace, 3)
}

func mutatePruned(t *testing.T) {
	namespace := newNamespace(t)
	crd := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) {
		text := apiextensionsv1.JSONSchemaProps{Type: "string"}
		crd.Spec.Versions[0].Schema = objectSchema(apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"data": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"mutation-start": text, "mutation-stage-1": text}},
		}})
	})
	mutatesData(t, crd, namespace)
	awaitStages(t, crd, "v1", namespace, 2) // the second stage is pruned
}

func mutateStoredVersion(t *testing.T) {
	namespace := newNamespace(t)
	crd := newDefinition(t, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2", Served: true, Schema: openSchema()})
	})
	mutatesData(t, crd, namespace)
	got(instances(crd, "v1", namespace).Create(t.Context(), instance(crd, "v1", "stored", nil), metav1.CreateOptions{}))(t)
	patchDefinition(t, crd, `[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`)
	eventually(t, "the patched object to be mutated", func(ctx context.Context) (bool, error) {
		patched, err := instances(crd, "v2", namespace).Patch(ctx, "stored", types.MergePatchType, []byte(`{"data":{"mutation-start":"yes"}}`), metav1.PatchOptions{})
		if err != nil {
			return false, err
		}
		data, _ := patched.Object["data"].(map[string]any)
		return patched.GetAPIVersion() == crd.Spec.Group+"/v2" && data["mutation-stage-2"] == "yes", nil
	})
}

func denyDefinition(t *testing.T) {
	label := unique("denied")
	server := newHookServer(t, review(func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return deny("the crd contains unwanted label")
	}))
	validate(t, hook{server: server, operations: operationTypes{onCreate}, group: "apiextensions.k8s.io", resources: []string{"customresourcedefinitions"}, object: metav1.SetAsLabelSelector(testLabels(label))})
	awaitDenied(t, "the crd contains unwanted label", func(ctx context.Context) error {
		crd := definition()
		crd.Labels = testLabels(label)
		_, err := definitionsAPI().Create(ctx, crd, metav1.CreateOptions{})
		if err == nil {
			err = errors.Join(definitionsAPI().Delete(ctx, crd.Name, metav1.DeleteOptions{}))
		}
		return err
	})
}

func hookTimeout(t *testing.T) {
	namespace := newNamespace(t)
	slow := newHookServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees only then that its client has gone
		<-r.Context().Done()
	}))
	api := client.CoreV1().ConfigMaps(namespace)
	on := hook{server: slow, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}, timeout: 1}
	closed := validate(t, on)
	awaitDenied(t, "context deadline exceeded", func(ctx context.Context) error {
		_, err := api.Create(ctx, configMap(unique("slow"), "x"), metav1.CreateOptions{})
		return err
	})
	must(t, client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), closed.Name, metav1.DeleteOptions{}))
	on.policy = admissionregistrationv1.Ignore
	validate(t, on)
	eventually(t, "a webhook that is ignored to let writes through", func(ctx context.Context) (bool, error) {
		_, err := api.Create(ctx, configMap(unique("ignored"), "x"), metav1.CreateOptions{})
		return err == nil, nil
	})
}

func denyAll(t *testing.T) hookServer {
	t.Helper()
	return newHookServer(t, review(unwanted))
}

func disallowed(name string) *corev1.ConfigMap {
	object := configMap(name, "x")
	object.Data = map[string]string{"webhook-e2e-test": "webhook-disallow"}
	return object
}

// awaitTaken waits until the object is taken.
func awaitTaken(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "the object to be taken", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, disallowed(unique("taken")), metav1.CreateOptions{})
		return err == nil, nil
	})
}

func awaitRefused(t *testing.T, namespace string) {
	t.Helper()
	awaitDenied(t, "unwanted data", func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, disallowed(unique("refused")), metav1.CreateOptions{})
		return err
	})
}

func validatingIsChanged(t *testing.T) {
	namespace := newNamespace(t)
	api := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	made := validate(t, hook{server: denyAll(t), namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}})
	awaitRefused(t, namespace)
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := api.Get(t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		read.Webhooks[0].Rules[0].Operations = operationTypes{onUpdate}
		_, err = api.Update(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
	awaitTaken(t, namespace)
	got(api.Patch(t.Context(), made.Name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["CREATE"]}]`), metav1.PatchOptions{}))(t)
	awaitRefused(t, namespace)
}

func mutatingIsChanged(t *testing.T) {
	namespace := newNamespace(t)
	api := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	server := newHookServer(t, addData("mutation-start", "mutation-stage-1"))
	made := mutate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}})
	awaitKeys(t, namespace, 2)
	must(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		read, err := api.Get(t.Context(), made.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		read.Webhooks[0].Rules[0].Operations = operationTypes{onUpdate}
		_, err = api.Update(t.Context(), read, metav1.UpdateOptions{})
		return err
	}))
	awaitKeys(t, namespace, 1)
	got(api.Patch(t.Context(), made.Name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["CREATE"]}]`), metav1.PatchOptions{}))(t)
	awaitKeys(t, namespace, 2)
}

// awaitKeys waits until a new config map comes back with so many keys.
func awaitKeys(t *testing.T, namespace string, keys int) {
	t.Helper()
	eventually(t, fmt.Sprintf("config maps of %d keys", keys), func(ctx context.Context) (bool, error) {
		object := configMap(unique("mutated"), "x")
		object.Data = map[string]string{"mutation-start": "yes"}
		made, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, metav1.CreateOptions{})
		return err == nil && len(made.Data) == keys, err
	})
}

func validatingAreListed(t *testing.T) {
	namespace, test := newNamespace(t), unique("listed")
	api := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	server := denyAll(t)
	for range 3 {
		made := validate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}})
		got(api.Patch(t.Context(), made.Name, types.MergePatchType, labelPatch("test", test), metav1.PatchOptions{}))(t)
	}
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 3 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	awaitRefused(t, namespace)
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	awaitTaken(t, namespace)
}

func mutatingAreListed(t *testing.T) {
	namespace, test := newNamespace(t), unique("listed")
	api := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	server := newHookServer(t, addData("mutation-start", "mutation-stage-1"))
	for range 3 {
		made := mutate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}})
		got(api.Patch(t.Context(), made.Name, types.MergePatchType, labelPatch("test", test), metav1.PatchOptions{}))(t)
	}
	if list := got(api.List(t.Context(), labelled(test)))(t); len(list.Items) != 3 {
		t.Errorf("listing gives %d", len(list.Items))
	}
	awaitKeys(t, namespace, 2)
	must(t, api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, labelled(test)))
	awaitKeys(t, namespace, 1)
}

func matchConditions(t *testing.T, mutating bool) {
	namespace := newNamespace(t)
	h := hook{server: denyAll(t), namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}, conditions: []admissionregistrationv1.MatchCondition{
		{Name: "expression-1", Expression: "object.metadata.namespace == 'x'"},
	}}
	second := admissionregistrationv1.MatchCondition{Name: "expression-2", Expression: "object.metadata.name.startsWith('y')"}
	var have []admissionregistrationv1.MatchCondition
	if mutating {
		made := mutate(t, h)
		made.Webhooks[0].MatchConditions = append(made.Webhooks[0].MatchConditions, second)
		have = got(client.AdmissionregistrationV1().MutatingWebhookConfigurations().Update(t.Context(), made, metav1.UpdateOptions{}))(t).Webhooks[0].MatchConditions
	} else {
		made := validate(t, h)
		made.Webhooks[0].MatchConditions = append(made.Webhooks[0].MatchConditions, second)
		have = got(client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(t.Context(), made, metav1.UpdateOptions{}))(t).Webhooks[0].MatchConditions
	}
	if len(have) != 2 || have[1] != second {
		t.Errorf("conditions after the update are %+v", have)
	}
	awaitTaken(t, namespace)
}

func invalidConditions(t *testing.T, mutating bool) {
	h := hook{server: denyAll(t), operations: operationTypes{onCreate}, group: "none.example.com", resources: []string{"nothing"}, conditions: []admissionregistrationv1.MatchCondition{
		{Name: "invalid-expression-1", Expression: "... [] bad expression"},
	}}
	meta := metav1.ObjectMeta{Name: unique("invalid")}
	var err error
	if mutating {
		_, err = client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{h.mutating("x")}}, metav1.CreateOptions{})
	} else {
		_, err = client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{h.validating("x")}}, metav1.CreateOptions{})
	}
	assertInvalid(t, err)
	if err != nil {
		contains(t, err.Error(), "compilation failed")
	}
}

func mutateButSkipMe(t *testing.T) {
	namespace := newNamespace(t)
	server := newHookServer(t, addData("mutation-start", "mutation-stage-1"))
	mutate(t, hook{server: server, namespace: namespace, operations: operationTypes{onCreate}, resources: []string{"configmaps"}, conditions: []admissionregistrationv1.MatchCondition{
		{Name: "skip-me", Expression: "object.metadata.name != 'skip-me'"},
	}})
	awaitKeys(t, namespace, 2)
	object := configMap("skip-me", "x")
	object.Data = map[string]string{"mutation-start": "yes"}
	if made := got(client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{}))(t); len(made.Data) != 1 {
		t.Errorf("the skipped object has %v", made.Data)
	}
}
