package volumes

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
	}
}
