package app

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

// podMode makes the test binary a pod: a process in a network namespace of its
// own that serves TCP and UDP, and does what it is told on its standard input,
// one command and one line of answer at a time.
const podMode = "SAMPAN_PROXY_TEST_POD"

const podPort = 8080

func runPod(name string) int {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := podCommand(name, strings.Fields(lines.Text()))
		if err != nil {
			answer = "error: " + err.Error()
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
	return 0
}

func podCommand(name string, args []string) (string, error) {
	switch args[0] {
	case "net": // address gateway
		return "", podNetwork(name, args[1], args[2])
	case "tcp": // address
		return askTCP(args[1])
	case "udp": // source-port address
		return askUDP(args[1], args[2])
	case "dns": // network server name type
		return askDNS(args[1], args[2], args[3], args[4])
	case "resolve": // serve DNS that answers every A question with an address
		return "", serveDNS(args[1])
	}
	return "", fmt.Errorf("unknown command %q", args)
}

func podNetwork(name, address, gateway string) error {
	for _, device := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if device == "lo" {
			continue
		}
		ip, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, ip); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			return err
		}
	}
	return servePod(name)
}

// servePod answers with the pod's name and the address that it sees.
func servePod(name string) error {
	listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", podPort))
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				in := bufio.NewScanner(c)
				for in.Scan() { // a line for each line, so that a connection can be held
					host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
					if _, err := fmt.Fprintf(c, "%s %s\n", name, host); err != nil {
						return
					}
				}
			}()
		}
	}()
	packets, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", podPort))
	if err != nil {
		return err
	}
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = packets.WriteTo([]byte(name+" "+host), from)
		}
	}()
	return nil
}

func askTCP(address string) (string, error) {
	c, err := net.DialTimeout("tcp4", address, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	return say(c)
}

// say asks on an open connection.
func say(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		return "", err
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	return strings.TrimSpace(string(buffer[:n])), err
}

func askUDP(port, address string) (string, error) {
	local, err := net.ResolveUDPAddr("udp4", ":"+port)
	if err != nil {
		return "", err
	}
	dialer := net.Dialer{LocalAddr: local, Timeout: time.Second}
	c, err := dialer.Dial("udp4", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		return "", err
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	return string(buffer[:n]), err
}

func askDNS(network, server, name, kind string) (string, error) {
	client := dns.Client{Net: network, Timeout: 2 * time.Second}
	message := new(dns.Msg)
	message.SetQuestion(dns.Fqdn(name), dns.StringToType[kind])
	reply, _, err := client.Exchange(message, server)
	if err != nil {
		return "", err
	}
	out := []string{dns.RcodeToString[reply.Rcode]}
	for _, record := range reply.Answer {
		out = append(out, strings.TrimPrefix(record.String(), record.Header().String()))
	}
	return strings.Join(out, " "), nil
}

func serveDNS(answer string) error {
	packets, err := net.ListenPacket("udp4", ":53")
	if err != nil {
		return err
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, request *dns.Msg) {
		reply := new(dns.Msg)
		reply.SetReply(request)
		if record, err := dns.NewRR(request.Question[0].Name + " 60 IN A " + answer); err == nil {
			reply.Answer = []dns.RR{record}
		}
		_ = w.WriteMsg(reply)
	})}
	go func() { _ = server.ActivateAndServe() }()
	return nil
}
