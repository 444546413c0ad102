package volumes

// persistentKinds are the kinds of persistent volumes.
func persistentKinds() []persistentKind {
	return []persistentKind{persistentHostPath{}, persistentLocal{}, persistentCSI{}}
}

// kinds are all that this node has; each is in a file of its own.
func kinds() []kind {
	return []kind{
		configMapKind{},
		secretKind{},
		emptyDirKind{},
		hostPathKind{},
		downwardAPIKind{},
		projectedKind{},
		imageKind{},
		csiKind{},
		claimKind{persistentKinds()},
	}
}
