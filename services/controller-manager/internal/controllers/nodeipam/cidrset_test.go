package nodeipam

import (
	"errors"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestCIDRSetHandsOutEachSubnetOnce(t *testing.T) {
	for _, c := range []struct {
		cluster string
		bits    int
		count   int
		last    string
	}{
		{"10.244.0.0/16", 24, 256, "10.244.255.0/24"},
		{"10.0.0.0/22", 24, 4, "10.0.3.0/24"},
		{"fd00:10:244::/56", 64, 256, "fd00:10:244:ff::/64"},
		{"192.168.0.0/24", 24, 1, "192.168.0.0/24"},
	} {
		set, err := newCIDRSet(netip.MustParsePrefix(c.cluster), c.bits)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Prefix]bool{}
		var last netip.Prefix
		for range c.count {
			if last, err = set.allocate(); err != nil || seen[last] {
				t.Fatalf("%s: got %s again or %v", c.cluster, last, err)
			}
			seen[last] = true
		}
		if last.String() != c.last {
			t.Errorf("%s: the last subnet is %s, want %s", c.cluster, last, c.last)
		}
		if _, err := set.allocate(); !errors.Is(err, errFull) {
			t.Errorf("%s: a full range answered %v", c.cluster, err)
		}
		set.release(last)
		if again, err := set.allocate(); err != nil || again != last {
			t.Errorf("%s: after a release got %s, %v", c.cluster, again, err)
		}
	}
}

func TestCIDRSetKeepsClearOfWhatIsTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set, err := newCIDRSet(netip.MustParsePrefix("10.244.0.0/20"), 24)
		if err != nil {
			t.Fatal(err)
		}
		bits := rapid.IntRange(16, 30).Draw(t, "bits")
		taken, err := netip.AddrFrom4([4]byte{10, 244, byte(rapid.IntRange(0, 31).Draw(t, "third")), byte(rapid.IntRange(0, 255).Draw(t, "fourth"))}).Prefix(bits)
		if err != nil {
			t.Fatal(err)
		}
		set.occupy(taken)
		for {
			subnet, err := set.allocate()
			if err != nil {
				return
			}
			if subnet.Overlaps(taken) {
				t.Fatalf("%s was given out, %s is taken", subnet, taken)
			}
		}
	})
}

func TestCIDRSetRefusesWhatDoesNotFit(t *testing.T) {
	for cluster, bits := range map[string]int{"10.0.0.0/16": 15, "10.0.0.0/8": 30, "fd00::/40": 64, "10.1.0.0/24": 33} {
		if _, err := newCIDRSet(netip.MustParsePrefix(cluster), bits); err == nil {
			t.Errorf("nodes of /%d out of %s were accepted", bits, cluster)
		}
	}
}
