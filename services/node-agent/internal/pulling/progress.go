package pulling

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	reportEvery = time.Second
	// An event is kept by the API server and shown to people; one a pull and minute is
	// enough for them to see that it goes on.
	eventEvery = time.Minute
	firstEvent = 10 * time.Second
)

// follow reports how far the pull is until stop is called.
func (p *Puller) follow(r Request, name string) (stop func()) {
	if p.Progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(reportEvery)
		defer ticker.Stop()
		last, nextEvent := "", time.Now().Add(firstEvent)
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
			}
			text, ok := p.progress(r.Image, name)
			if !ok || text == last {
				continue
			}
			last = text
			if r.Report != nil {
				r.Report(text)
			}
			if time.Now().After(nextEvent) {
				p.Event(r.Pod, r.Container, false, "Pulling", text)
				nextEvent = time.Now().Add(eventEvery)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (p *Puller) progress(image, name string) (text string, ok bool) {
	done, total, ok := p.Progress(name)
	if !ok || total == 0 {
		return "", false
	}
	size := func(bytes int64) string {
		const mebi = 1 << 20
		if bytes < mebi {
			return resource.NewQuantity(bytes, resource.BinarySI).String()
		}
		return fmt.Sprintf("%.1fMi", float64(bytes)/mebi)
	}
	return fmt.Sprintf("Pulling image %q: %s of %s (%d %%)", image, size(done), size(total), 100*done/total), true
}
