// Package controllers lists the controllers of the controller manager.
package controllers

import (
	"github.com/sampan-io/sampan/services/controller-manager/internal/controller"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/attachdetach"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/deployment"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/endpoints"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/endpointslice"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/ephemeralvolume"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/expand"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/garbagecollector"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/namespace"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/nodeipam"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/nodelifecycle"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/persistentvolume"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/podgc"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/pvcprotection"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/pvprotection"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/replicaset"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/resourcequota"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/rootca"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/serviceaccount"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/servicecidrs"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/tainteviction"
	"github.com/sampan-io/sampan/services/controller-manager/internal/controllers/vacprotection"
)

// All is every controller, in the order in which they start. A new one is a
// directory here and a line below.
func All() []controller.Definition {
	return []controller.Definition{
		serviceaccount.Definition(),
		rootca.Definition(),
		nodeipam.Definition(),
		nodelifecycle.Definition(),
		tainteviction.Definition(),
		endpointslice.Definition(),
		endpoints.Definition(),
		deployment.Definition(),
		replicaset.Definition(),
		namespace.Definition(),
		garbagecollector.Definition(),
		podgc.Definition(),
		persistentvolume.Definition(),
		attachdetach.Definition(),
		ephemeralvolume.Definition(),
		expand.Definition(),
		pvcprotection.Definition(),
		pvprotection.Definition(),
		vacprotection.Definition(),
		resourcequota.Definition(),
		servicecidrs.Definition(),
	}
}
