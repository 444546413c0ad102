package main

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const (
	// crewLabel is on every hand.
	crewLabel = "ships.example.com/crew"
	// signOff holds a crew until it has left the register.
	signOff = "ships.example.com/sign-off"
	// register is the ConfigMap of each namespace that names its crews, by ship.
	register = "register"
	// ready is the condition of a crew that is complete.
	ready = "Ready"
)

// reconciler keeps as many hands as each crew wants, and each crew in the register.
type reconciler struct{ client.Client }

// setUp adds the reconciler to a manager.
func (r *reconciler) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).For(&Crew{}).Owns(&corev1.ConfigMap{}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	crew := &Crew{}
	if err := r.Get(ctx, request.NamespacedName, crew); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !crew.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.dismiss(ctx, crew)
	}
	if controllerutil.AddFinalizer(crew, signOff) {
		return ctrl.Result{}, r.Update(ctx, crew) // its event brings the crew back
	}
	if err := r.sign(ctx, crew, true); err != nil {
		return ctrl.Result{}, err
	}
	hands, err := r.muster(ctx, crew)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.report(ctx, crew, hands)
}

// dismiss takes a crew off the register and lets it go. The garbage collector
// takes its hands.
func (r *reconciler) dismiss(ctx context.Context, crew *Crew) error {
	if !controllerutil.ContainsFinalizer(crew, signOff) {
		return nil
	}
	if err := r.sign(ctx, crew, false); err != nil {
		return err
	}
	controllerutil.RemoveFinalizer(crew, signOff)
	return client.IgnoreNotFound(r.Update(ctx, crew))
}

// sign writes a crew into the register, or takes it off.
func (r *reconciler) sign(ctx context.Context, crew *Crew, on bool) error {
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: register, Namespace: crew.Namespace}}
	if !on {
		err := r.Get(ctx, client.ObjectKeyFromObject(book), book)
		if apierrors.IsNotFound(err) || err == nil && book.Data[crew.Name] == "" {
			return nil
		}
		if err != nil {
			return err
		}
		delete(book.Data, crew.Name)
		return r.Update(ctx, book)
	}
	_, err := controllerutil.CreateOrPatch(ctx, r.Client, book, func() error {
		if book.Data == nil {
			book.Data = map[string]string{}
		}
		book.Data[crew.Name] = crew.Spec.Ship
		return nil
	})
	return err
}

// muster makes the hands that are missing and dismisses those above the size. It
// returns how many there are.
func (r *reconciler) muster(ctx context.Context, crew *Crew) (int32, error) {
	var list corev1.ConfigMapList
	if err := r.List(ctx, &list, client.InNamespace(crew.Namespace), client.MatchingLabels{crewLabel: crew.Name}); err != nil {
		return 0, err
	}
	have := map[string]bool{}
	for i := range list.Items {
		hand := &list.Items[i]
		if number, err := strconv.Atoi(hand.Data["number"]); err == nil && int32(number) < crew.size() {
			have[hand.Name] = true
			continue
		}
		if err := r.Delete(ctx, hand, client.Preconditions{UID: new(hand.UID)}); client.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	for number := range crew.size() {
		key := types.NamespacedName{Namespace: crew.Namespace, Name: fmt.Sprintf("%s-%d", crew.Name, number)}
		if have[key.Name] {
			continue
		}
		if err := r.hire(ctx, crew, key, number); err != nil {
			return 0, err
		}
	}
	return crew.size(), nil
}

func (r *reconciler) hire(ctx context.Context, crew *Crew, key types.NamespacedName, number int32) error {
	hand := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, Labels: map[string]string{crewLabel: crew.Name}},
		Data:       map[string]string{"ship": crew.Spec.Ship, "number": strconv.Itoa(int(number))},
	}
	if err := controllerutil.SetControllerReference(crew, hand, r.Scheme()); err != nil {
		return err
	}
	err := r.Create(ctx, hand)
	if apierrors.IsAlreadyExists(err) {
		return nil // the cache is behind; the hand's event brings the crew back
	}
	return err
}

// report writes the status.
func (r *reconciler) report(ctx context.Context, crew *Crew, hands int32) error {
	before := crew.DeepCopyObject().(*Crew)
	crew.Status.ObservedGeneration, crew.Status.Hands = crew.Generation, hands
	crew.Status.Selector = crewLabel + "=" + crew.Name
	meta.SetStatusCondition(&crew.Status.Conditions, metav1.Condition{
		Type: ready, Status: metav1.ConditionTrue, Reason: "Mustered", Message: fmt.Sprintf("%d hands are on board", hands), ObservedGeneration: crew.Generation,
	})
	return r.Status().Patch(ctx, crew, client.MergeFrom(before))
}
