package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// benchCustom measures custom resources beside ConfigMaps of the same content,
// the time from a definition to its first object, and what definitions cost in
// memory.
func benchCustom(ctx context.Context, b *bench) error {
	client, err := ownConnection(b.config)
	if err != nil {
		return err
	}
	definitions := b.config.Host + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	defer func() {
		_ = request(context.WithoutCancel(ctx), client, http.MethodDelete, definitions+"?labelSelector=bench", "application/json", "")
	}()
	custom, _, err := b.define(ctx, client, definitions, "items")
	if err != nil {
		return err
	}
	for _, what := range []objects{b.configMaps(), custom} {
		if err := b.oneKind(ctx, client, what); err != nil {
			return err
		}
	}
	return b.manyDefinitions(ctx, client, definitions)
}

func (b *bench) oneKind(ctx context.Context, client *http.Client, what objects) error {
	if err := b.create(ctx, what, 1, 300/b.scale, true); err != nil {
		return err
	}
	if err := post(ctx, client, what.url, what.body("one", "-")); err != nil {
		return err
	}
	for _, step := range []struct {
		name  string
		count int
		run   func(count int) error
	}{
		{"create with 1 client", 2000 / b.scale, func(count int) error { return b.create(ctx, what, 1, count, false) }},
		{"create with 16 clients", 8000 / b.scale, func(count int) error { return b.create(ctx, what, 16, count, false) }},
		{"get", 3000 / b.scale, func(count int) error {
			return repeat(ctx, client, "get one "+what.kind+", JSON", what.url+"/one", "application/json", count)
		}},
		{"list", 20, func(count int) error {
			return repeat(ctx, client, "list "+what.kind+", JSON", what.url, "application/json", count)
		}},
		{"change under 100 watchers", 200 / b.scale, func(count int) error { return b.watch(ctx, what, 100/b.scale, count) }},
	} {
		if err := b.withServerCPU(ctx, client, what.kind+", "+step.name, step.count, step.run); err != nil {
			return err
		}
	}
	return nil
}

// withServerCPU prints what the server computed for each of a step's requests:
// that says more than the clock where others use the machine too.
func (b *bench) withServerCPU(ctx context.Context, client *http.Client, name string, count int, run func(count int) error) error {
	before, err := gauge(ctx, client, b.config.Host, "process_cpu_seconds_total")
	if err != nil {
		return err
	}
	if err := run(count); err != nil {
		return err
	}
	after, err := gauge(ctx, client, b.config.Host, "process_cpu_seconds_total")
	if err == nil {
		fmt.Printf("%-44s %9.0f µs of the server's CPU each\n", "  "+name, (after-before)*1e6/float64(count))
	}
	return err
}

// define creates a definition of a kind like ConfigMap and one object of it, and
// returns how long it took until the object was there.
func (b *bench) define(ctx context.Context, client *http.Client, definitions, plural string) (objects, time.Duration, error) {
	definition := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.bench.example.com","labels":{"bench":"yes"}},
"spec":{"group":"bench.example.com","scope":"Namespaced","names":{"plural":"%[1]s","singular":"%[1]s-one","kind":"Bench%[1]s"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
"data":{"type":"object","additionalProperties":{"type":"string","maxLength":2000}},
"spec":{"type":"object","properties":{"size":{"type":"integer","minimum":0},"mode":{"type":"string","enum":["a","b"],"default":"a"}}}}}}}]}}`, plural)
	what := objects{
		version: "bench.example.com/v1", kind: "Bench" + plural,
		url: b.config.Host + "/apis/bench.example.com/v1/namespaces/" + b.namespace + "/" + plural,
	}
	began := time.Now()
	if err := post(ctx, client, definitions, definition); err != nil {
		return what, 0, err
	}
	for {
		err := post(ctx, client, what.url, what.body("first", "-"))
		if err == nil || ctx.Err() != nil {
			return what, time.Since(began), err
		}
		if time.Since(began) > time.Minute {
			return what, 0, fmt.Errorf("%s is not served after a minute: %w", plural, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// manyDefinitions prints how long each of many definitions took until it served,
// and the server's memory for each.
func (b *bench) manyDefinitions(ctx context.Context, client *http.Client, definitions string) error {
	count := 500 / b.scale
	before, err := memory(ctx, client, b.config.Host)
	if err != nil {
		return err
	}
	var latencies []time.Duration
	began, cpu := time.Now(), cpuTime()
	for i := range count {
		_, took, err := b.define(ctx, client, definitions, fmt.Sprintf("many%d", i))
		if err != nil {
			return err
		}
		latencies = append(latencies, took)
	}
	report("definition to its first object", count, time.Since(began), cpuTime()-cpu, latencies)
	after, err := memory(ctx, client, b.config.Host)
	if err != nil {
		return err
	}
	fmt.Printf("%-44s %9.0f KiB each   %.0f MiB before, %.0f MiB after\n", fmt.Sprintf("memory of %d definitions, each used once", count),
		(after-before)/float64(count)/1024, before/(1<<20), after/(1<<20))
	return repeat(ctx, client, "discovery of all of them", b.config.Host+"/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", 20)
}

// memory is the server's resident memory in bytes.
func memory(ctx context.Context, client *http.Client, host string) (float64, error) {
	return gauge(ctx, client, host, "process_resident_memory_bytes")
}

// gauge is a number without labels, as the server tells it of itself.
func gauge(ctx context.Context, client *http.Client, host, name string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil {
		return 0, fmt.Errorf("reading metrics: %w", err)
	}
	metrics := families[name].GetMetric()
	if len(metrics) == 0 {
		return 0, fmt.Errorf("the server does not tell %s", name)
	}
	return metrics[0].GetGauge().GetValue() + metrics[0].GetCounter().GetValue(), nil
}
