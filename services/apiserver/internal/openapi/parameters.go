package openapi

// The query and path parameters of the API's operations. What they mean is
// described in Kubernetes' API concepts.
var (
	nameParameter      = parameter{name: "name", in: "path", kind: "string", about: "name of the object", required: true}
	namespaceParameter = parameter{name: "namespace", in: "path", kind: "string", about: "object name and auth scope, such as for teams and projects", required: true}

	listParameters = []parameter{
		query("allowWatchBookmarks", "boolean", "whether a watch may send events of type BOOKMARK, which tell the progress of the resource version"),
		query("continue", "string", "token of an earlier answer from which a list goes on"),
		query("fieldSelector", "string", "selects objects by their fields"),
		query("labelSelector", "string", "selects objects by their labels"),
		query("limit", "integer", "largest number of objects in one answer; the rest is had with continue"),
		query("resourceVersion", "string", "how fresh the answer must be, or where a watch begins"),
		query("resourceVersionMatch", "string", "how resourceVersion is applied to a list: NotOlderThan or Exact"),
		query("sendInitialEvents", "boolean", "whether a watch begins with the objects that exist and a bookmark that ends them"),
		query("timeoutSeconds", "integer", "ends the call after that time"),
		query("watch", "boolean", "streams changes instead of one answer"),
	}
	writeParameters = []parameter{
		query("dryRun", "string", "All: go through every stage of the request but store nothing"),
		query("fieldManager", "string", "name of the actor whose fields these are"),
		query("fieldValidation", "string", "what to do with unknown and duplicate fields: Ignore, Warn or Strict"),
	}
	patchParameters  = append(writeParameters[:len(writeParameters):len(writeParameters)], query("force", "boolean", "takes fields over from other managers; only for apply patches"))
	deleteParameters = []parameter{
		query("dryRun", "string", "All: go through every stage of the request but delete nothing"),
		query("gracePeriodSeconds", "integer", "seconds before the object is deleted; 0 deletes at once"),
		query("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean", "deletes an object that cannot be read; not supported, an object that cannot be read ends the server's start"),
		query("orphanDependents", "boolean", "deprecated: use propagationPolicy"),
		query("propagationPolicy", "string", "what happens to dependents: Orphan, Background or Foreground"),
	}
)

func query(name, kind, about string) parameter {
	return parameter{name: name, in: "query", kind: kind, about: about}
}
