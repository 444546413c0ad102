package cluster

import (
	"net"
	"strconv"

	"github.com/sampan-io/sampan/services/internal/pki"
)

// Process is one service of the cluster as the supervisor runs it.
type Process struct {
	Name   string // unique in the cluster: "apiserver", "node-agent-node-1"
	Binary string // path
	Args   []string
	// Namespace is the path of the network namespace it runs in; "" is the host's.
	Namespace string
	Log       string // path of its log file
}

// Processes are the cluster's services, in the order in which they start.
func (l Layout) Processes(config Config) []Process {
	list := []Process{l.apiserver(), l.scheduler(), l.controllerManager()}
	for i := 1; i <= config.Nodes; i++ {
		list = append(list, l.nodeAgent(i), l.proxy(i))
	}
	return list
}

func (l Layout) apiserver() Process {
	return Process{Name: "apiserver", Binary: l.Binary("apiserver"), Log: l.Log("apiserver"), Args: []string{
		"--data-dir=" + l.Data(),
		"--bind-address=0.0.0.0",
		"--secure-port=" + strconv.Itoa(SecurePort),
		"--advertise-address=" + HostAddress,
		"--tls-cert-file=" + l.PKI("apiserver.crt"),
		"--tls-private-key-file=" + l.PKI("apiserver.key"),
		"--client-ca-file=" + l.PKI("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc." + ClusterDomain,
		"--service-account-key-file=" + l.PKI("sa.pub"),
		"--service-account-signing-key-file=" + l.PKI("sa.key"),
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs",
		"--kubelet-client-certificate=" + l.PKI("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + l.PKI("apiserver-kubelet-client.key"),
		"--kubelet-certificate-authority=" + l.PKI("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + l.PKI("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + pki.FrontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + l.PKI("front-proxy-client.crt"),
		"--proxy-client-key-file=" + l.PKI("front-proxy-client.key"),
		"--nats-listen-address=" + net.JoinHostPort(HostAddress, strconv.Itoa(BusPort)),
	}}
}

func (l Layout) scheduler() Process {
	return Process{Name: "scheduler", Binary: l.Binary("scheduler"), Log: l.Log("scheduler"), Args: []string{
		"--kubeconfig=" + l.Kubeconfig("scheduler"),
		"--authentication-kubeconfig=" + l.Kubeconfig("scheduler"),
		"--authorization-kubeconfig=" + l.Kubeconfig("scheduler"),
		"--client-ca-file=" + l.PKI("ca.crt"),
		"--bind-address=127.0.0.1",
	}}
}

func (l Layout) controllerManager() Process {
	return Process{Name: "controller-manager", Binary: l.Binary("controller-manager"), Log: l.Log("controller-manager"), Args: []string{
		"--kubeconfig=" + l.Kubeconfig("controller-manager"),
		"--authentication-kubeconfig=" + l.Kubeconfig("controller-manager"),
		"--authorization-kubeconfig=" + l.Kubeconfig("controller-manager"),
		"--client-ca-file=" + l.PKI("ca.crt"),
		"--bind-address=127.0.0.1",
		"--root-ca-file=" + l.PKI("ca.crt"),
		"--service-account-private-key-file=" + l.PKI("sa.key"),
		"--use-service-account-credentials=true",
		"--allocate-node-cidrs=true",
		"--cluster-cidr=" + PodCIDR,
	}}
}

func (l Layout) nodeAgent(i int) Process {
	node := NodeName(i)
	return Process{Name: "node-agent-" + node, Binary: l.Binary("node-agent"), Log: l.Log("node-agent-" + node), Namespace: NamespacePath(node), Args: []string{
		"--kubeconfig=" + l.Kubeconfig("node-agent-"+node),
		"--hostname-override=" + node,
		"--node-ip=" + NodeAddress(i).String(),
		"--root-dir=" + l.Node(node),
		"--run-dir=" + Run(node),
		"--cgroup-root=/" + CgroupRoot + "/" + node,
		"--client-ca-file=" + l.PKI("ca.crt"),
		"--tls-cert-file=" + l.PKI("node-agent-"+node+"-server.crt"),
		"--tls-private-key-file=" + l.PKI("node-agent-"+node+"-server.key"),
		"--cluster-dns=" + ClusterDNS,
		"--cluster-domain=" + ClusterDomain,
		// The machine is the user's, who may fill its disk with other things.
		"--eviction-hard=memory.available<50Mi,nodefs.available<1%,nodefs.inodesFree<1%,imagefs.available<1%,imagefs.inodesFree<1%",
	}}
}

func (l Layout) proxy(i int) Process {
	node := NodeName(i)
	return Process{Name: "proxy-" + node, Binary: l.Binary("proxy"), Log: l.Log("proxy-" + node), Namespace: NamespacePath(node), Args: []string{
		"--kubeconfig=" + l.Kubeconfig("proxy-"+node),
		"--bus-url=tls://" + net.JoinHostPort(HostAddress, strconv.Itoa(BusPort)),
		"--hostname-override=" + node,
		"--cluster-cidr=" + PodCIDR,
		"--cluster-dns=" + ClusterDNS,
		"--cluster-domain=" + ClusterDomain,
	}}
}
