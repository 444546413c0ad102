package plugins

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/internal/component"
)

// declaredFeatures refuses changes of a pod that need a feature which the pod's
// node does not declare.
type declaredFeatures struct {
	plugin
	reader    registry.Reader
	framework *features.Framework
	version   *version.Version
}

func newNodeDeclaredFeatureValidator(config Config) admission.Plugin {
	return &declaredFeatures{
		plugin{"NodeDeclaredFeatureValidator", []admission.Operation{admission.Update}},
		config.State, features.DefaultFramework, version.MustParse(component.Version().GitVersion),
	}
}

// Validate implements admission.Validator.
func (p *declaredFeatures) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Subresource != "" && a.Subresource != "resize" {
		return nil
	}
	pod, node, err := changedOnNode(ctx, p.reader, a)
	if err != nil || node == nil {
		return err
	}
	old, ok := a.OldObject.(*corev1.Pod)
	if !ok {
		return nil
	}
	needed, err := p.framework.InferForPodUpdate(
		&features.PodInfo{Spec: &old.Spec, Status: &old.Status}, &features.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, p.version)
	if err != nil {
		return fmt.Errorf("inferring the features that the update needs: %w", err)
	}
	if needed.IsEmpty() {
		return nil
	}
	result, err := p.framework.MatchNode(needed, node)
	if err != nil {
		return fmt.Errorf("matching the update with node %q: %w", node.Name, err)
	}
	if !result.IsMatch {
		return fmt.Errorf("pod update requires features %s which are not available on node %q", strings.Join(result.UnsatisfiedRequirements, ", "), node.Name)
	}
	return nil
}
