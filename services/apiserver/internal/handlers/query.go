package handlers

import (
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decodeFields fills the fields of a flat options struct from a query by their
// JSON names. The query conversions of core's options are part of kube-apiserver
// and not of k8s.io/api; the rules are theirs: a boolean is true unless it says
// "false" or "0", unknown parameters are ignored.
func decodeFields(values url.Values, into any) error {
	v := reflect.ValueOf(into).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		given, ok := values[name]
		if !ok || len(given) == 0 || name == "" || name == "-" {
			continue
		}
		if err := setField(v.Field(i), given); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func setField(field reflect.Value, given []string) error {
	if field.Kind() == reflect.Pointer {
		value := reflect.New(field.Type().Elem())
		if err := setField(value.Elem(), given); err != nil {
			return err
		}
		field.Set(value)
		return nil
	}
	if field.Type() == reflect.TypeFor[metav1.Time]() {
		at, err := time.Parse(time.RFC3339, given[0])
		if err != nil {
			return err
		}
		field.Set(reflect.ValueOf(metav1.NewTime(at)))
		return nil
	}
	switch field.Kind() {
	case reflect.String:
		field.SetString(given[0])
	case reflect.Bool:
		field.SetBool(given[0] != "false" && given[0] != "0")
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(given[0], 10, field.Type().Bits())
		if err != nil {
			return err
		}
		field.SetInt(n)
	case reflect.Slice:
		return setSlice(field, given)
	default:
		return fmt.Errorf("type %s cannot be read from a query", field.Type())
	}
	return nil
}

// setSlice takes every value that the parameter has; numbers may be separated by
// commas too.
func setSlice(field reflect.Value, given []string) error {
	if field.Type().Elem().Kind() != reflect.String {
		given = strings.Split(strings.Join(given, ","), ",")
	}
	out := reflect.MakeSlice(field.Type(), len(given), len(given))
	for i, text := range given {
		if err := setField(out.Index(i), []string{text}); err != nil {
			return err
		}
	}
	field.Set(out)
	return nil
}
