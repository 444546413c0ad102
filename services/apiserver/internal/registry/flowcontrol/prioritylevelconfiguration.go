package flowcontrol

import (
	"context"
	"fmt"
	"math"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/utils/ptr"

	"github.com/sampan-io/sampan/services/apiserver/internal/registry"
	"github.com/sampan-io/sampan/services/apiserver/internal/registry/table"
)

// What a priority level has when it does not say, and how much it may ask for.
const (
	defaultShares      = 30
	defaultQueues      = 64
	defaultHand        = 8
	defaultQueueLength = 50
	maxQueues          = 10 * 1000 * 1000
	// hashBits is how many bits of a flow's hash a hand of queues may use.
	hashBits = 60
)

// PriorityLevelConfigurations bound how many requests of a level run at a time.
func PriorityLevelConfigurations() *registry.Resource {
	queues := flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()
	main := levelBehaviour()
	return registry.Define(registry.Definition[*level]{
		GroupVersion: v1, Resource: "prioritylevelconfigurations", Kind: "PriorityLevelConfiguration", Singular: "prioritylevelconfiguration",
		New:       func() *level { return &level{} },
		NewList:   func() runtime.Object { return &flowcontrolv1.PriorityLevelConfigurationList{} },
		KeyPrefix: "/registry/prioritylevelconfigurations",
		Strategy:  main,
		Columns: []metav1.TableColumnDefinition{
			table.Name(),
			table.String("Type", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
			table.String("NominalConcurrencyShares", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
			table.String("Queues", queues["queues"]),
			table.String("HandSize", queues["handSize"]),
			table.String("QueueLengthLimit", queues["queueLengthLimit"]),
			table.Age(),
		},
		Row: levelRow,
		Subresources: []registry.Subresource{
			statusOf(main, func(obj, old *level) {
				obj.Spec = old.Spec
				metav1.ResetObjectMetaForStatus(obj, old)
			}, validateLevelStatus),
		},
	})
}

func levelBehaviour() registry.Behaviour[*level] {
	return registry.Behaviour[*level]{
		Default: defaultLevel,
		PrepareForCreate: func(_ context.Context, obj *level) {
			obj.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
		},
		PrepareForUpdate: func(_ context.Context, obj, old *level) { obj.Status = old.Status },
		Validate:         func(_ context.Context, obj *level) field.ErrorList { return validateLevel(obj) },
		ValidateUpdate:   func(_ context.Context, obj, _ *level) field.ErrorList { return validateLevel(obj) },
		SpecOf:           func(obj *level) any { return &obj.Spec },
		ResetFields:      []string{"status"},
	}
}

func defaultLevel(obj *level) {
	if e := obj.Spec.Exempt; e != nil {
		setIfNil(&e.NominalConcurrencyShares, 0)
		setIfNil(&e.LendablePercent, 0)
	}
	l := obj.Spec.Limited
	if l == nil {
		return
	}
	setIfNil(&l.NominalConcurrencyShares, defaultShares)
	setIfNil(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		setIfZero(&q.HandSize, defaultHand)
		setIfZero(&q.Queues, defaultQueues)
		setIfZero(&q.QueueLengthLimit, defaultQueueLength)
	}
}

func setIfNil(p **int32, value int32) {
	if *p == nil {
		*p = ptr.To(value)
	}
}

func setIfZero(p *int32, value int32) {
	if *p == 0 {
		*p = value
	}
}

func validateLevelStatus(obj *level) field.ErrorList {
	return validateConditions(obj.Status.Conditions, func(c *flowcontrolv1.PriorityLevelConfigurationCondition) string { return string(c.Type) })
}

func validateLevel(obj *level) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateLevelSpec(obj.Name, &obj.Spec, path)
	for _, fixed := range bootstrap.MandatoryPriorityLevelConfigurations {
		if fixed.Name == obj.Name {
			errs = append(errs, validateFixed(obj, &fixed.Spec, path)...)
		}
	}
	return append(errs, validateLevelStatus(obj)...)
}

// validateFixed lets nothing but the shares of the exempt level change.
func validateFixed(obj *level, fixed *flowcontrolv1.PriorityLevelConfigurationSpec, path *field.Path) field.ErrorList {
	spec, but := obj.Spec, ""
	if obj.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
		spec.Exempt, but = fixed.Exempt, " except the 'spec.exempt' field"
	}
	if apiequality.Semantic.DeepEqual(&spec, fixed) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, obj.Spec, fmt.Sprintf("spec of '%s'%s must equal the fixed value", obj.Name, but))}
}

func validateLevelSpec(name string, spec *flowcontrolv1.PriorityLevelConfigurationSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	exempt := spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
	if exempt != (name == flowcontrolv1.PriorityLevelConfigurationNameExempt) {
		errs = append(errs, field.Invalid(path.Child("type"), spec.Type, "type must be 'Exempt' if and only if name is 'exempt'"))
	}
	switch spec.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		if spec.Limited != nil {
			errs = append(errs, field.Forbidden(path.Child("limited"), "must be nil if the type is not Limited"))
		}
		errs = append(errs, validateExempt(spec.Exempt, path.Child("exempt"))...)
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if spec.Exempt != nil {
			errs = append(errs, field.Forbidden(path.Child("exempt"), "must be nil if the type is Limited"))
		}
		if spec.Limited == nil {
			errs = append(errs, field.Required(path.Child("limited"), "must not be empty when type is Limited"))
		} else {
			errs = append(errs, validateLimited(spec.Limited, path.Child("limited"))...)
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), spec.Type, []flowcontrolv1.PriorityLevelEnablement{
			flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited,
		}))
	}
	return errs
}

func validateExempt(e *flowcontrolv1.ExemptPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	if e == nil {
		return nil
	}
	return append(validateShares(e.NominalConcurrencyShares, path), validatePercent(e.LendablePercent, path)...)
}

func validateShares(shares *int32, path *field.Path) field.ErrorList {
	if shares != nil && *shares < 0 {
		return field.ErrorList{field.Invalid(path.Child("nominalConcurrencyShares"), *shares, "must be a non-negative integer")}
	}
	return nil
}

func validatePercent(percent *int32, path *field.Path) field.ErrorList {
	if percent != nil && (*percent < 0 || *percent > 100) {
		return field.ErrorList{field.Invalid(path.Child("lendablePercent"), *percent, "must be between 0 and 100, inclusive")}
	}
	return nil
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, path)
	at := path.Child("limitResponse")
	switch r := l.LimitResponse; r.Type {
	case flowcontrolv1.LimitResponseTypeReject:
		if r.Queuing != nil {
			errs = append(errs, field.Forbidden(at.Child("queuing"), "must be nil if limited.limitResponse.type is not Limited"))
		}
	case flowcontrolv1.LimitResponseTypeQueue:
		if r.Queuing == nil {
			errs = append(errs, field.Required(at.Child("queuing"), "must not be empty if limited.limitResponse.type is Limited"))
		} else {
			errs = append(errs, validateQueues(r.Queuing, at.Child("queuing"))...)
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), r.Type, []flowcontrolv1.LimitResponseType{
			flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject,
		}))
	}
	errs = append(errs, validatePercent(l.LendablePercent, path)...)
	if b := l.BorrowingLimitPercent; b != nil && *b < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *b, "if specified, must be a non-negative integer"))
	}
	return errs
}

func validateQueues(q *flowcontrolv1.QueuingConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(path.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	if q.Queues <= 0 {
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, "must be positive"))
	} else if q.Queues > maxQueues {
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	at := path.Child("handSize")
	switch {
	case q.HandSize <= 0:
		errs = append(errs, field.Invalid(at, q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		errs = append(errs, field.Invalid(at, q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	case entropy(q.Queues, q.HandSize) > hashBits:
		errs = append(errs, field.Invalid(at, q.HandSize,
			fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d", q.Queues, q.HandSize, hashBits)))
	}
	return errs
}

// entropy is how many bits it takes to deal a hand from a deck of queues.
func entropy(deck, hand int32) int {
	return int(math.Ceil(math.Log2(float64(deck)) * float64(hand)))
}

func levelRow(obj *level) []any {
	var shares, queues, hand, length any = table.None, table.None, table.None, table.None
	if l := obj.Spec.Limited; l != nil {
		shares = int64(table.Value(l.NominalConcurrencyShares))
		if q := l.LimitResponse.Queuing; q != nil {
			queues, hand, length = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
		}
	}
	return []any{obj.Name, string(obj.Spec.Type), shares, queues, hand, length, table.Since(obj.CreationTimestamp)}
}
