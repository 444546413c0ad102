package app

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sampan-io/sampan/services/sampan/internal/cluster"
	"github.com/sampan-io/sampan/services/sampan/internal/identities"
)

const yearLong = 365 * 24 * time.Hour

// certsOptions are what `sampan certs` is told.
type certsOptions struct {
	plan       identities.Plan
	nodes      int
	owner      string
	kubeconfig string
}

func newCerts(c *command) *cobra.Command {
	o := &certsOptions{}
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make or renew the certificates, keys and kubeconfigs of services that run elsewhere",
		Long: "Makes a folder for each service below --dir (apiserver, scheduler, controller-manager, bus, node), with all that it needs, besides ca, which no service\n" +
			"needs, and admin, which is the operator's. It may be called again at any time: what is still good stays, and services read renewed files by themselves.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return c.certs(o) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.plan.Server, "server", "https://127.0.0.1:6443", "URL at which the services reach the API server")
	fs.StringVar(&o.plan.AdminServer, "admin-server", "", "URL at which the operator reaches it; empty is --server")
	fs.StringSliceVar(&o.plan.Names, "names", nil, "more names and addresses for the API server's certificate; that of --server is always in it")
	fs.StringSliceVar(&o.plan.BusNames, "bus-names", nil, "names and addresses of a NATS server that runs on its own; empty makes no identity for one")
	fs.IntVar(&o.nodes, "nodes", 1, "how many nodes to make identities for: node-1, node-2, …")
	fs.DurationVar(&o.plan.Lifetime, "lifetime", yearLong, "life of the certificates; they are renewed when a third of it is left")
	fs.StringVar(&o.owner, "owner", "", "uid:gid to give the folders of apiserver, scheduler, controller-manager and bus to")
	fs.StringVar(&o.kubeconfig, "admin-kubeconfig", "", "file to write a copy of the operator's kubeconfig to; it belongs to whom its folder belongs to")
	return cmd
}

func (c *command) certs(o *certsOptions) error {
	owner, err := o.complete(c.dir)
	if err != nil {
		return err
	}
	if err := o.plan.Ensure(); err != nil {
		return fail(err)
	}
	if owner != nil {
		if err := o.plan.Give(owner.uid, owner.gid); err != nil {
			return fail(err)
		}
	}
	if o.kubeconfig != "" {
		if err := o.plan.CopyAdmin(o.kubeconfig); err != nil {
			return fail(err)
		}
	}
	c.printf("%s: certificates, keys and kubeconfigs are good\n", o.plan.Dir)
	return nil
}

type account struct{ uid, gid int }

// complete fills in what is derived and refuses what cannot be made.
func (o *certsOptions) complete(dir string) (*account, error) {
	var err error
	if o.plan.Dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("finding %s: %w", dir, err)
	}
	server, err := url.Parse(o.plan.Server)
	if err != nil || server.Scheme != "https" || server.Hostname() == "" {
		return nil, fmt.Errorf("--server: %q is not of the form https://host:port", o.plan.Server)
	}
	o.plan.Names = append(o.plan.Names, server.Hostname())
	if o.plan.AdminServer == "" {
		o.plan.AdminServer = o.plan.Server
	}
	if admin, err := url.Parse(o.plan.AdminServer); err != nil || admin.Scheme != "https" || admin.Hostname() == "" {
		return nil, fmt.Errorf("--admin-server: %q is not of the form https://host:port", o.plan.AdminServer)
	}
	if err := (cluster.Config{Nodes: o.nodes}).Validate(); err != nil {
		return nil, err
	}
	for i := 1; i <= o.nodes; i++ {
		o.plan.Nodes = append(o.plan.Nodes, cluster.NodeName(i))
	}
	if o.plan.Lifetime < time.Hour {
		return nil, errors.New("--lifetime: less than an hour is not enough")
	}
	if o.owner == "" {
		return nil, nil
	}
	var who account
	if _, err := fmt.Sscanf(o.owner, "%d:%d", &who.uid, &who.gid); err != nil {
		return nil, fmt.Errorf("--owner: %q is not of the form uid:gid", o.owner)
	}
	return &who, nil
}
