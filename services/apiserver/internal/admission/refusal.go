package admission

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusal is err as the API status that the client gets.
func refusal(a *Attributes, err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return apierrors.NewForbidden(a.Resource.GroupResource(), a.Name, err)
}
