package core

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry/allocator"
)

// beginService gives a Service its IP families, cluster IPs and node ports.
// Addresses that an update gives up are released when it is stored.
func beginService(ctx context.Context, allocations *allocator.Services, obj, old *corev1.Service, dryRun bool) (func(bool), error) {
	completeService(obj, old)
	if errs := setFamilies(obj, old, allocations.Families()); len(errs) > 0 {
		return nil, invalidService(obj, errs)
	}
	txn, err := allocations.Begin(ctx, obj, old, dryRun)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := allocate(ctx, txn, obj); err != nil {
		txn.Undo(ctx)
		return nil, err
	}
	return func(stored bool) {
		if dryRun || !stored {
			txn.Undo(ctx)
			return
		}
		txn.Keep(ctx, old, obj)
	}, nil
}

func invalidService(obj *corev1.Service, errs field.ErrorList) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), obj.Name, errs)
}

func allocate(ctx context.Context, txn *allocator.Transaction, obj *corev1.Service) error {
	if err := allocateIPs(ctx, txn, obj); err != nil {
		return err
	}
	if err := allocatePorts(txn, obj); err != nil {
		return err
	}
	return allocateHealthCheck(txn, obj)
}

func allocateIPs(ctx context.Context, txn *allocator.Transaction, obj *corev1.Service) error {
	spec := &obj.Spec
	if !hasClusterIPType(obj) || spec.ClusterIP == corev1.ClusterIPNone || slices.Contains(spec.ClusterIPs, corev1.ClusterIPNone) {
		if hasClusterIPType(obj) {
			spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		}
		return nil
	}
	ips := slices.Clone(spec.ClusterIPs)
	for i, family := range spec.IPFamilies {
		if i < len(ips) && ips[i] != "" {
			continue
		}
		addr, err := txn.NextIP(ctx, family)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", err))
		}
		if i < len(ips) {
			ips[i] = addr.String()
		} else {
			ips = append(ips, addr.String())
		}
	}
	for i, text := range ips {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return invalidService(obj, field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")})
		}
		if err := txn.TakeIP(ctx, addr); err != nil {
			return invalidService(obj, field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs"), spec.ClusterIPs,
				fmt.Sprintf("failed to allocate IP %v: %v", text, ipError(err)))})
		}
	}
	spec.ClusterIPs = ips
	if len(ips) > 0 {
		spec.ClusterIP = ips[0]
	}
	return nil
}

func ipError(err error) error {
	switch {
	case errors.Is(err, allocator.ErrTaken):
		return errors.New("provided IP is already allocated")
	case errors.Is(err, allocator.ErrOutOfRange):
		return errors.New("the provided network does not match the current range")
	}
	return err
}

// allocatePorts gives ports with the same number one node port between them, as
// DNS over UDP and TCP wants it.
func allocatePorts(txn *allocator.Transaction, obj *corev1.Service) error {
	path := field.NewPath("spec", "ports")
	given := map[int32]int32{}
	for i := range obj.Spec.Ports {
		if p := &obj.Spec.Ports[i]; p.NodePort != 0 {
			if err := txn.TakePort(int(p.NodePort)); err != nil {
				return invalidService(obj, field.ErrorList{field.Invalid(path.Index(i).Child("nodePort"), p.NodePort, portError(txn, err).Error())})
			}
			if given[p.Port] == 0 {
				given[p.Port] = p.NodePort
			}
		}
	}
	if !needsNodePorts(obj) {
		return nil
	}
	for i := range obj.Spec.Ports {
		p := &obj.Spec.Ports[i]
		if p.NodePort != 0 {
			continue
		}
		if given[p.Port] == 0 {
			number, err := txn.NextPort()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
			}
			given[p.Port] = int32(number)
		}
		p.NodePort = given[p.Port]
	}
	return nil
}

func portError(txn *allocator.Transaction, err error) error {
	switch {
	case errors.Is(err, allocator.ErrTaken):
		return errors.New("provided port is already allocated")
	case errors.Is(err, allocator.ErrOutOfRange):
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", txn.PortRange())
	}
	return err
}

func allocateHealthCheck(txn *allocator.Transaction, obj *corev1.Service) error {
	if !needsHealthCheck(obj) {
		return nil
	}
	if n := obj.Spec.HealthCheckNodePort; n != 0 {
		if err := txn.TakePort(int(n)); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", n, portError(txn, err)))
		}
		return nil
	}
	number, err := txn.NextPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", number, err))
	}
	obj.Spec.HealthCheckNodePort = int32(number)
	return nil
}
