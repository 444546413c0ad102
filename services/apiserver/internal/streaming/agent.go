package streaming

import (
	"context"
	"net/http"
	"net/url"
)

// Agent is the URL of a node's agent, and the transport that presents this server
// to it.
func (c *Connections) Agent(ctx context.Context, node string) (*url.URL, http.RoundTripper, error) {
	location, err := c.nodeURL(ctx, node, "https", "")
	return location, c.transport, err
}
