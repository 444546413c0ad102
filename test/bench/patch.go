package main

import (
	"context"
	"fmt"
	"net/http"
)

// benchPatch changes ConfigMaps of 1 KiB by merge patches and by server-side apply,
// from 16 clients with objects of their own.
func benchPatch(ctx context.Context, b *bench) error {
	const clients, each = 16, 25
	what := b.configMaps()
	name := func(c int, i int64) string { return fmt.Sprintf("patched-%d-%d", c, i%each) }
	err := b.hammer(ctx, "", 1, clients*each, func(client *http.Client, _ int, i int64) error {
		return post(ctx, client, what.url, what.body(name(int(i-1)/each, i), "-"))
	})
	if err != nil {
		return err
	}
	for _, form := range []struct {
		name, contentType, query string
		body                     func(name string, i int64) string
	}{
		{"merge patch", "application/merge-patch+json", "", func(_ string, i int64) string {
			return fmt.Sprintf(`{"metadata":{"annotations":{"sent":"%d"}}}`, i)
		}},
		{"server-side apply", "application/apply-patch+yaml", "?fieldManager=bench&force=true", func(name string, i int64) string {
			return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"applied":"%d"}}`, name, i)
		}},
	} {
		patch := func(client *http.Client, c int, i int64) error {
			object := name(c, i)
			return request(ctx, client, http.MethodPatch, what.url+"/"+object+form.query, form.contentType, form.body(object, i))
		}
		if err := b.hammer(ctx, "", clients, 400/b.scale, patch); err != nil {
			return err
		}
		if err := b.hammer(ctx, fmt.Sprintf("%s of 1 KiB ConfigMap, %d clients", form.name, clients), clients, 8000/b.scale, patch); err != nil {
			return err
		}
	}
	return nil
}
