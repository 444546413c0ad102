package plugins

import (
	"context"
	"errors"

	"github.com/sampan-io/sampan/services/apiserver/internal/admission"
)

// alwaysAdmit does nothing; it is there because configurations name it.
type alwaysAdmit struct{ plugin }

func newAlwaysAdmit(Config) admission.Plugin { return &alwaysAdmit{plugin{"AlwaysAdmit", nil}} }

// alwaysDeny refuses every write.
type alwaysDeny struct{ plugin }

func newAlwaysDeny(Config) admission.Plugin {
	return &alwaysDeny{plugin{"AlwaysDeny", []admission.Operation{admission.Create, admission.Update, admission.Delete, admission.Connect}}}
}

// Admit implements admission.Mutator.
func (*alwaysDeny) Admit(context.Context, *admission.Attributes) error { return errDenied }

// Validate implements admission.Validator.
func (*alwaysDeny) Validate(context.Context, *admission.Attributes) error { return errDenied }

var errDenied = errors.New("admission control is denying all modifications")
