package core

import netutils "k8s.io/utils/net"

func isIPv6CIDR(cidr string) bool { return netutils.IsIPv6CIDRString(cidr) }
