package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	defaultNamespace = "kubernetes.io/"
	requestsPrefix   = "requests."
)

// isNative says that a resource is Kubernetes' own.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), defaultNamespace)
}

// IsExtended says that a resource is offered by a device plugin or such.
func IsExtended(name corev1.ResourceName) bool {
	if isNative(name) || strings.HasPrefix(string(name), requestsPrefix) {
		return false
	}
	return len(utilvalidation.IsQualifiedName(requestsPrefix+string(name))) == 0
}

// Overcommits says that a resource's requests may be below its limits.
func Overcommits(name corev1.ResourceName) bool { return isNative(name) && !isHugePage(name) }

// isContainerResource says that containers may name a resource without a
// domain.
func isContainerResource(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage || isHugePage(name)
}

// countedResources are the resources of quotas that count objects.
func countedResources() []corev1.ResourceName {
	return []corev1.ResourceName{
		corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers, corev1.ResourceSecrets,
		corev1.ResourcePersistentVolumeClaims, corev1.ResourceConfigMaps, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
	}
}

// quotaResources are the resources that quotas bound besides objects.
func quotaResources() []corev1.ResourceName {
	return []corev1.ResourceName{
		corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	}
}

// IsQuotaResource says that a quota may bound a resource without a domain.
func IsQuotaResource(name corev1.ResourceName) bool {
	return slices.Contains(quotaResources(), name) || slices.Contains(countedResources(), name) || isQuotaHugePage(name)
}

func isQuotaHugePage(name corev1.ResourceName) bool {
	return isHugePage(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

func isStandardResource(name corev1.ResourceName) bool {
	return IsQuotaResource(name) || name == corev1.ResourceStorage
}

// isInteger says that a resource comes in whole pieces.
func isInteger(name corev1.ResourceName) bool {
	return slices.Contains(countedResources(), name) || IsExtended(name)
}

// ResourceName checks the name of any resource.
func ResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := invalid(path, name, utilvalidation.IsQualifiedName(string(name)))
	if len(errs) == 0 && !strings.Contains(string(name), "/") && !isStandardResource(name) {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource type or fully qualified"))
	}
	return errs
}

// QuotaResourceName checks the name of a resource that a quota bounds.
func QuotaResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := ResourceName(name, path)
	if !strings.Contains(string(name), "/") && !IsQuotaResource(name) {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource for quota"))
	}
	return errs
}

// ContainerResourceName checks the name of a resource that a container asks
// for.
func ContainerResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	return containerResourceName(name, path)
}

func containerResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := ResourceName(name, path)
	switch {
	case !strings.Contains(string(name), "/"):
		if !isContainerResource(name) {
			errs = append(errs, field.Invalid(path, name, "must be a standard resource for containers"))
		}
	case !isNative(name) && !IsExtended(name):
		errs = append(errs, field.Invalid(path, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

func podResourceName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := ResourceName(name, path)
	if len(errs) == 0 && !isPodLevelResource(name) {
		errs = append(errs, field.NotSupported(path, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory}))
	}
	return errs
}

// hugePagesFit says that a quantity of huge pages is a whole number of pages.
func hugePagesFit(name corev1.ResourceName, quantity resource.Quantity) error {
	page, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || page.Sign() <= 0 || page.MilliValue()%1000 != 0 || quantity.Value()%page.Value() != 0 {
		return fmt.Errorf("%s is not positive integer multiple of %s", quantity.String(), name)
	}
	return nil
}
