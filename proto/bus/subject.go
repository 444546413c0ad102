// Package bus is the contract of the watch bus: subjects, messages, and a
// client that feeds client-go informers from it.
//
// The API server publishes each committed change of some resources to NATS. NATS
// delivers at most once; each message names the revision of its predecessor, and
// heartbeats name the last one, so a listener notices what it missed and reads
// it from the API server's watch. The bus is the doorbell, the log is the truth.
package bus

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Prefixes of all subjects. Version 1 of the contract.
const (
	watchPrefix     = "sampan.watch.v1."
	heartbeatPrefix = "sampan.heartbeat.v1."
	// coreGroup stands for the core group, whose name is empty.
	coreGroup = "core"
	// clusterScope stands for the namespace of cluster-scoped objects.
	clusterScope = "_"
)

// TokenAudience is the audience of service-account tokens for the bus.
const TokenAudience = "sampan-bus"

// Subject is where changes of an object are published.
func Subject(resource schema.GroupResource, namespace, name string) string {
	if namespace == "" {
		namespace = clusterScope
	} else {
		namespace = encode(namespace)
	}
	return watchPrefix + group(resource) + "." + resource.Resource + "." + namespace + "." + encode(name)
}

// Pattern subscribes to all changes of a resource, or of its objects in one
// namespace.
func Pattern(resource schema.GroupResource, namespace string) string {
	if namespace == "" {
		return watchPrefix + group(resource) + "." + resource.Resource + ".>"
	}
	return watchPrefix + group(resource) + "." + resource.Resource + "." + encode(namespace) + ".>"
}

// HeartbeatSubject is where the heartbeats of a resource are published, or those
// of its objects in one namespace.
func HeartbeatSubject(resource schema.GroupResource, namespace string) string {
	subject := heartbeatPrefix + group(resource) + "." + resource.Resource
	if namespace != "" {
		subject += "." + encode(namespace)
	}
	return subject
}

func group(resource schema.GroupResource) string {
	if resource.Group == "" {
		return coreGroup
	}
	return encode(resource.Group)
}

// encode makes a name one token of a subject: dots separate tokens, and "*" and
// ">" are wildcards.
func encode(name string) string {
	if !strings.ContainsAny(name, ".%*> \t") {
		return name
	}
	return strings.NewReplacer("%", "%25", ".", "%2E", "*", "%2A", ">", "%3E", " ", "%20", "\t", "%09").Replace(name)
}
