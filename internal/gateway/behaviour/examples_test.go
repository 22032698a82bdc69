package behaviour

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// example is a file of examples/, the network for it, and what passes there.
type example struct {
	file  string
	links []exampleLink
	// rules are loaded into the gateway before, as another program would.
	rules string
	// findings are what check says on such a host, all of it; one with a question mark is said on some kernels.
	findings []string
	probes   []probe
	// groups are link groups of interfaces. now replaces what of the file depends on the time, needs are what of it some
	// kernels do not have.
	groups map[string]int
	now    map[string]string
	needs  []testutil.Feature
}

// exampleLink is an interface of the gateway and the addresses there; behind it is a host with other addresses, those of
// all hosts there. The first link leads outside: default routes lead to its first addresses.
type exampleLink struct {
	name        string
	ours, hosts []string
}

// probe is a client that connects, sends, and gets an answer.
type probe struct {
	// from is the client's address; empty for a program on the gateway. "@eth2" behind an address, here and in at, is
	// the link that it is at, where it is at several. " user 13" behind it is who runs the program, " dscp 46" the class of
	// its packets.
	from string
	// to is what it connects to: "tcp 203.0.113.7:443", "udp …", "tcp+udp …". The address "seen" is the one that the
	// probe before was seen under.
	to string
	// at is the server that has to answer. Empty: it must not pass, and the gateway itself refuses it.
	at string
	// sees is what the server sees as the client's address: one, or a range; " keep" after it: with the client's port.
	sees string
}

// afar is a host outside.
const afar = "198.51.100.9"

// wan4 is the usual link outside: a router, and hosts behind it.
func wan4(ours ...string) exampleLink {
	return exampleLink{"eth0", append([]string{"203.0.113.7/24"}, ours...), []string{"203.0.113.1/24", afar + "/32", "192.0.2.9/32", "172.27.1.9/32", "172.16.0.9/32", "10.1.0.9/32"}}
}

var exampleFiles = []example{
	{file: "home.yaml", findings: []string{"pcp-open"}, links: []exampleLink{
		wan4(), {"eth1", []string{"192.168.1.1/24"}, []string{"192.168.1.10/24", "192.168.1.20/24", "192.168.1.30/24"}},
	}, probes: []probe{
		{"192.168.1.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{afar, "tcp+udp 203.0.113.7:3074", "192.168.1.20:3074", afar},
		{afar, "tcp 203.0.113.7:8443", "192.168.1.10:443", afar},
		{afar, "udp 203.0.113.7:8443", "", ""},
		{"192.168.1.30", "tcp 203.0.113.7:8443", "192.168.1.10:443", "203.0.113.7"},
		{"192.168.1.30", "tcp+udp 203.0.113.7:3074", "", ""}, // no hairpin
		{afar, "tcp 203.0.113.7:2222", "", ""},               // not enabled
		{afar, "tcp+udp 203.0.113.7:22", "", ""},
	}},
	{file: "office.yaml", findings: []string{"log-in-namespace?"}, links: []exampleLink{
		wan4("203.0.113.8/24"),
		{"eth1", []string{"192.168.1.1/24"}, []string{"192.168.1.10/24", "192.168.1.30/24"}},
		{"eth2", []string{"192.168.2.1/24"}, []string{"192.168.2.30/24"}},
	}, probes: []probe{
		{"192.168.1.30", "tcp+udp 192.0.2.9:443", "192.0.2.9:443", "203.0.113.7"},
		{"192.168.2.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.1.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.8"},
		{"192.168.1.30", "tcp+udp 10.1.0.9:443", "10.1.0.9:443", "192.168.1.30"},
		{"192.168.1.30 dscp 46", "tcp+udp 192.0.2.9:5060", "192.0.2.9:5060", "203.0.113.8"},
		{"192.168.1.30", "tcp+udp 192.0.2.9:5060", "192.0.2.9:5060", "203.0.113.7"},
		{afar, "tcp 203.0.113.7:80", "192.168.1.10:80", afar},
		{afar, "tcp+udp 203.0.113.7:443", "192.168.1.10:443", afar},
		{"192.168.2.30", "tcp+udp 203.0.113.7:443", "192.168.1.10:443", "203.0.113.7"},
		{"192.168.1.30", "tcp 203.0.113.7:80", "192.168.1.10:80", "203.0.113.7"},
		{"", "tcp+udp 203.0.113.7:443", "192.168.1.10:443", "192.168.1.1-203.0.113.7"},
		{"192.0.2.9", "tcp 203.0.113.7:8022", "192.168.1.10:22", "192.0.2.9"},
		{afar, "tcp 203.0.113.7:8022", "", ""},
		{afar, "udp 203.0.113.7:80", "", ""},
		{afar, "tcp+udp 203.0.113.8:443", "", ""},
	}},
	{file: "two-wans.yaml", findings: []string{"interface-missing", "address-waits?"}, links: []exampleLink{
		wan4(), {"eth1", []string{"198.18.0.7/24"}, []string{"198.18.0.1/24", "198.18.5.9/32"}},
		{"eth2", []string{"192.168.1.1/24"}, []string{"192.168.1.10/24", "192.168.1.30/24"}},
	}, probes: []probe{
		{"192.168.1.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"}, // by its hash
		{afar, "tcp 203.0.113.7:443", "192.168.1.10:443", afar},
		{"198.18.5.9", "tcp 198.18.0.7:443", "192.168.1.10:443", "198.18.5.9"}, // no route of the host leads back
		{afar, "udp 203.0.113.7:443", "", ""},
	}},
	{file: "customers.yaml", links: []exampleLink{
		wan4("203.0.113.8/24"),
		{"eth1", []string{"10.0.0.1/24"}, []string{"10.0.0.10/24", "10.0.0.25/24", "10.0.0.130/24"}},
		{"eth2", []string{"10.0.0.1/24"}, []string{"10.0.0.10/24", "10.0.0.25/24", "10.0.0.130/24"}},
	}, probes: []probe{
		{"10.0.0.10@eth1", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"10.0.0.10@eth2", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"10.0.0.25@eth1", "tcp 198.51.100.9:25", "198.51.100.9:25", "203.0.113.7"},
		{"10.0.0.25@eth2", "tcp 198.51.100.9:25", "198.51.100.9:25", "203.0.113.8"},
		{"10.0.0.130@eth1", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"10.0.0.130@eth2", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "198.18.2.130"},
		{"10.0.0.10@eth1", "tcp+udp 10.0.0.1:53", "10.0.0.1:53", "10.0.0.10"},
		{"10.0.0.10@eth2", "tcp+udp 10.0.0.1:53", "10.0.0.1:53", "10.0.0.10"},
		{afar, "tcp 203.0.113.7:443", "10.0.0.10:443@eth1", afar},
		{afar, "tcp 203.0.113.8:443", "10.0.0.10:443@eth2", afar},
		{"10.0.0.25@eth2", "tcp 203.0.113.8:443", "10.0.0.10:443@eth2", "203.0.113.8"},
		{"10.0.0.25@eth1", "tcp 203.0.113.8:443", "10.0.0.10:443@eth2", "203.0.113.8"},
		{afar, "tcp+udp 198.18.2.130:443", "10.0.0.130:443@eth2", afar},
		{afar, "udp 203.0.113.7:443", "", ""},
	}},
	{file: "cloud.yaml", findings: []string{"expect-in-namespace"}, links: []exampleLink{
		wan4("203.0.113.5/24", "203.0.113.16/24", "203.0.113.17/24", "203.0.113.18/24", "203.0.113.19/24"),
		{"eth1", []string{"10.0.0.1/16"}, []string{"10.0.1.5/16", "10.0.2.7/16"}},
	}, probes: []probe{
		{"10.0.2.7", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.16-203.0.113.19"},
		{"10.0.2.7", "tcp+udp 10.1.0.9:443", "10.1.0.9:443", "10.0.2.7"},
		{"10.0.1.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.5 keep"},
		{afar, "tcp+udp 203.0.113.5:443", "10.0.1.5:443", afar},
		{"10.0.2.7", "tcp+udp 203.0.113.5:443", "10.0.1.5:443", "203.0.113.16-203.0.113.19"}, // under its own address outside
		{afar, "tcp+udp 203.0.113.16:443", "", ""},
	}},
	{file: "docker.yaml", needs: []testutil.Feature{testutil.EarlyReject}, links: []exampleLink{
		wan4("203.0.113.25/24"),
		{"docker0", []string{"172.17.0.1/16"}, []string{"172.17.0.10/16", "172.17.0.11/16", "172.17.0.12/16", "172.17.0.13/16", "172.17.0.25/16"}},
	}, probes: []probe{
		{"172.17.0.11", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"172.17.0.25", "tcp+udp 198.51.100.9:25", "198.51.100.9:25", "203.0.113.25"},
		{afar, "tcp 203.0.113.7:5432", "172.17.0.10:5432", afar},
		{"192.0.2.9", "tcp 203.0.113.7:5432", "", ""},
		{afar, "tcp 203.0.113.7:80", "172.17.0.11:8080,172.17.0.12:8080,172.17.0.13:8080", afar},
		{afar, "tcp 203.0.113.7:80", "172.17.0.11:8080,172.17.0.12:8080,172.17.0.13:8080", afar},
		{afar, "udp 203.0.113.7:80", "", ""},
	}},
	{file: "kubernetes.yaml", links: []exampleLink{
		wan4("203.0.113.20/24", "203.0.113.21/24"),
		{"cni0", []string{"10.244.0.1/16"}, []string{"10.244.1.5/16", "10.244.7.5/16", "10.244.3.5/16"}},
	}, rules: "table ip marks { chain pods { type filter hook prerouting priority mangle; ip saddr 10.244.3.0/24 meta mark set 0x25; }; }",
		probes: []probe{
			{"10.244.1.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
			{"10.244.1.5", "tcp+udp 10.1.0.9:443", "10.1.0.9:443", "10.244.1.5"},
			{"10.244.7.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.20"},
			{"10.244.7.5", "tcp+udp 192.0.2.9:443", "192.0.2.9:443", "203.0.113.7"},
			{"10.244.3.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.21"},
			{"10.244.3.5", "tcp+udp 10.1.0.9:443", "10.1.0.9:443", "10.244.3.5"},
			{afar, "tcp+udp 203.0.113.20:443", "", ""},
		}},
	{file: "wireguard.yaml", links: []exampleLink{
		wan4(),
		{"wg0", []string{"10.8.0.1/24"}, []string{"10.8.0.5/24", "10.8.0.6/24"}},
		{"eth1", []string{"192.168.1.1/24"}, []string{"192.168.1.10/24"}},
	}, probes: []probe{
		{"10.8.0.6", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"10.8.0.6", "tcp+udp 192.168.1.10:443", "192.168.1.10:443", "192.168.1.1"},
		{afar, "tcp+udp 203.0.113.7:25565", "10.8.0.5:25565", afar},
		{afar, "udp 203.0.113.7:51820", "203.0.113.7:51820", afar},
		{afar, "tcp 203.0.113.7:51820", "", ""},
	}},
	{file: "prefix.yaml", links: []exampleLink{
		{"eth0", []string{"2001:db8:2::1/64"}, []string{"2001:db8:2::99/64", "2001:db8:9::9/128"}},
		{"eth1", []string{"fd01:203:405:1::1/64"}, []string{"fd01:203:405:1::10/64"}},
		{"eth2", []string{"fd02::1/64"}, []string{"fd02::10/64", "fd02::20/64"}},
	}, probes: []probe{
		{"fd01:203:405:1::10", "tcp+udp [2001:db8:9::9]:443", "[2001:db8:9::9]:443", "2001:db8:1::-2001:db8:1:ffff:ffff:ffff:ffff:ffff keep"},
		{"2001:db8:9::9", "tcp+udp seen:22", "[fd01:203:405:1::10]:22", "2001:db8:9::9"},
		{"fd02::20", "tcp+udp [2001:db8:9::9]:443", "[2001:db8:9::9]:443", "2001:db8:2::1"},
		{"2001:db8:9::9", "tcp [2001:db8:2::1]:443", "[fd02::10]:443", "2001:db8:9::9"},
		{"fd02::20", "tcp [2001:db8:2::1]:443", "[fd02::10]:443", "2001:db8:2::1"},
		{"2001:db8:9::9", "udp [2001:db8:2::1]:443", "", ""},
	}},
	{file: "openwrt.yaml", links: []exampleLink{
		wan4("203.0.113.8/24"),
		{"br-lan", []string{"192.168.1.1/24"}, []string{"192.168.1.10/24", "192.168.1.25/24", "192.168.1.30/24"}},
	}, probes: []probe{
		{"192.168.1.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.1.30", "tcp+udp 172.16.0.9:443", "172.16.0.9:443", "192.168.1.30"},
		{"192.168.1.25", "tcp+udp 198.51.100.9:25", "198.51.100.9:25", "203.0.113.8"},
		{afar, "tcp 203.0.113.7:80", "192.168.1.10:80", afar},
		{"192.168.1.30", "tcp 203.0.113.7:80", "192.168.1.10:80", "203.0.113.7"},
		{afar, "tcp+udp 203.0.113.7:5300", "192.168.1.10:53", afar},
		{"192.168.1.30", "tcp+udp 203.0.113.7:5300", "192.168.1.10:53", "203.0.113.7"},
		{"192.168.1.30", "tcp+udp 198.51.100.9:53", "192.168.1.1:5353", "192.168.1.30"},
		{"192.168.1.10", "tcp+udp 198.51.100.9:53", "198.51.100.9:53", "203.0.113.7"},
		{afar, "udp 203.0.113.7:80", "", ""},
		{afar, "tcp+udp 203.0.113.7:53", "", ""},
	}},
	{file: "vyos.yaml", links: []exampleLink{
		wan4("203.0.113.30/24", "203.0.113.32/24", "203.0.113.33/24", "203.0.113.34/24", "203.0.113.35/24", "172.29.41.89/32"),
		{"eth1", []string{"192.168.0.1/24", "192.168.2.1/24"}, []string{"192.168.0.20/24", "192.168.0.30/24", "192.168.0.100/24", "192.168.0.101/24", "192.168.0.102/24", "192.168.2.20/24"}},
	}, probes: []probe{
		{"192.168.0.20", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.2.20", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.32-203.0.113.35"},
		{afar, "tcp 203.0.113.7:80", "192.168.0.100:80", afar},
		{"192.168.0.20", "tcp 203.0.113.7:80", "192.168.0.100:80", "203.0.113.7"},
		{"192.168.0.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.30 keep"},
		{afar, "tcp+udp 203.0.113.30:443", "192.168.0.30:443", afar},
		{"192.168.0.20", "tcp+udp 172.27.1.9:443", "172.27.1.9:443", "172.29.41.89"},
		{afar, "tcp 203.0.113.7:8080", "192.168.0.101:80,192.168.0.102:80", afar},
		{afar, "udp 203.0.113.7:80", "", ""},
		{afar, "tcp+udp 203.0.113.32:443", "", ""},
	}},
	{file: "ufw.yaml", links: []exampleLink{
		wan4(), {"eth1", []string{"10.0.0.1/24"}, []string{"10.0.0.10/24", "10.0.0.20/24"}},
	}, probes: []probe{
		{"10.0.0.20", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{afar, "tcp 203.0.113.7:8080", "10.0.0.10:80", afar},
		{afar, "udp 203.0.113.7:27018", "10.0.0.20:27018", afar},
		{afar, "udp 203.0.113.7:27021", "", ""},
		{afar, "tcp 203.0.113.7:27018", "", ""},
		{afar, "tcp 203.0.113.7:80", "", ""},
	}},
	{file: "libvirt.yaml", links: []exampleLink{
		wan4("203.0.113.12/24", "203.0.113.13/24", "203.0.113.14/24", "203.0.113.15/24"),
		{"virbr0", []string{"192.168.122.1/24"}, []string{"192.168.122.10/24", "192.168.122.200/24"}},
	}, probes: []probe{
		{"192.168.122.10", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.122.200", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.12-203.0.113.15"},
		{afar, "tcp 203.0.113.7:2210", "192.168.122.10:22", afar},
		{"192.168.122.200", "tcp 203.0.113.7:2210", "192.168.122.10:22", "203.0.113.12-203.0.113.15"},
		{"", "tcp 203.0.113.7:2210", "192.168.122.10:22", "192.168.122.1-203.0.113.7"},
		{afar, "udp 203.0.113.7:60007", "192.168.122.10:60007", afar},
		{afar, "tcp+udp 203.0.113.7:22", "", ""},
		{afar, "tcp 203.0.113.7:60007", "", ""},
	}},
	{file: "lxd.yaml", links: []exampleLink{
		{"eth0", []string{"203.0.113.7/24", "203.0.113.9/24", "2001:db8:2::1/64"}, []string{"203.0.113.1/24", afar + "/32", "2001:db8:2::99/64"}},
		{"lxdbr0", []string{"10.10.10.1/24", "fd42:1234:5678::1/64"}, []string{"10.10.10.5/24", "10.10.10.6/24", "fd42:1234:5678::6/64"}},
	}, probes: []probe{
		{"10.10.10.6", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{afar, "tcp 203.0.113.9:80", "10.10.10.5:80", afar},
		{afar, "tcp 203.0.113.9:443", "10.10.10.5:443", afar},
		{"10.10.10.6", "tcp 203.0.113.9:443", "10.10.10.5:443", "203.0.113.7-203.0.113.9"},
		{afar, "tcp 203.0.113.7:8080", "10.10.10.6:80", afar},
		{"", "tcp 203.0.113.7:8080", "10.10.10.6:80", "10.10.10.1-203.0.113.9"},
		{"fd42:1234:5678::6", "tcp+udp [2001:db8:2::99]:443", "[2001:db8:2::99]:443", "2001:db8:2::1"},
		{afar, "tcp 203.0.113.9:8080", "", ""},
		{afar, "udp 203.0.113.9:443", "", ""},
	}},
	{file: "carrier.yaml", findings: []string{"expect-in-namespace", "no-flowtable?"}, links: []exampleLink{
		{"eth0", addressesOf("203.0.113.64/24", 48), []string{"203.0.113.1/24", afar + "/32"}},
		{"eth1", []string{"192.0.2.1/24"}, []string{"192.0.2.2/24"}},
		{"eth2", []string{"100.64.0.1/10"}, []string{"100.64.0.5/10", "100.64.10.5/10"}},
	}, probes: []probe{
		{"100.64.0.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.64-203.0.113.95"},
		{"100.64.10.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.96-203.0.113.111 keep"},
		{afar, "tcp+udp 203.0.113.64:443", "", ""},
	}},
	{file: "floating.yaml", findings: []string{"address-missing"}, links: []exampleLink{
		{"eth0", []string{"203.0.113.2/30"}, []string{"203.0.113.1/30", afar + "/32"}}, // all others are routed here
		{"br0", []string{"10.0.0.1/16"}, []string{"10.0.0.5/16", "10.0.0.6/16", "10.0.0.7/16", "10.0.1.3/16"}},
	}, probes: []probe{
		{"10.0.0.5", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.5 keep"},
		{afar, "tcp+udp 203.0.113.5:443", "10.0.0.5:443", afar},
		{"10.0.0.7", "tcp+udp 203.0.113.5:443", "10.0.0.5:443", "203.0.113.5"},
		{"10.0.0.6", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.6 keep"},
		{afar, "tcp+udp 203.0.113.6:443", "10.0.0.6:443", afar},
		{"10.0.1.3", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.131 keep"},
		{afar, "tcp+udp 203.0.113.131:443", "10.0.1.3:443", afar},
		{afar, "udp 203.0.113.2:53", "203.0.113.2:53", afar},
		{"10.0.0.7", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.2"},
		{afar, "tcp+udp 203.0.113.2:443", "", ""},
	}},
	{file: "school.yaml", now: map[string]string{`"06:00-14:00"`: `"` + hours(-2) + `"`, "mon-fri": days(-1)}, findings: []string{"log-in-namespace?"}, links: []exampleLink{
		wan4("203.0.113.8/24"),
		{"eth1", []string{"192.168.1.1/24"}, []string{"192.168.1.30/24"}},
		{"eth2", []string{"192.168.2.1/24"}, []string{"192.168.2.10/24", "192.168.2.30/24"}},
	}, probes: []probe{
		{"192.168.1.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.2.30", "tcp+udp 198.51.100.9:80", "198.51.100.9:80", "203.0.113.7"},
		{" user 13", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.8"},
		{" user 14", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.1.30", "tcp 198.51.100.9:8080", "192.168.1.1:3128", "192.168.1.30"},
		{"192.168.1.30", "tcp 192.168.2.10:80", "192.168.2.10:80", "192.168.1.30"},
		{"192.168.1.30", "tcp+udp 198.51.100.9:53", "192.168.2.10:53", "192.168.1.30"},
		{"192.168.2.30", "tcp+udp 198.51.100.9:53", "198.51.100.9:53", "203.0.113.7"},
		{afar, "tcp 203.0.113.7:8022", "192.168.2.10:22", afar},
		{"192.0.2.9", "tcp 203.0.113.7:8022", "", ""},
		{afar, "tcp+udp 203.0.113.8:8022", "", ""},
	}},
	{file: "travel.yaml", findings: []string{"helpers-open"}, needs: []testutil.Feature{testutil.NATHelpers}, groups: map[string]int{"eth1": 10, "wlan0": 10}, links: []exampleLink{
		{"ppp0", []string{"203.0.113.7/24"}, []string{"203.0.113.1/24", afar + "/32"}},
		{"eth1", []string{"192.168.8.1/24"}, []string{"192.168.8.20/24"}},
		{"wlan0", []string{"192.168.9.1/24"}, []string{"192.168.9.30/24"}},
	}, probes: []probe{
		{"192.168.8.20", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{"192.168.9.30", "tcp+udp 198.51.100.9:443", "198.51.100.9:443", "203.0.113.7"},
		{afar, "tcp 203.0.113.7:8443", "192.168.8.20:443", afar},
		{afar, "tcp+udp 203.0.113.7:443", "", ""},
	}},
}

// addressesOf are n addresses from one on.
func addressesOf(first string, n int) (all []string) {
	p := netip.MustParsePrefix(first)
	for a := p.Addr(); n > 0; n, a = n-1, a.Next() {
		all = append(all, netip.PrefixFrom(a, p.Bits()).String())
	}
	return all
}

// TestExamples applies each example file on a host like the one that it is for, and connects through each of its rules.
func TestExamples(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.Hairpin)
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !slices.ContainsFunc(exampleFiles, func(e example) bool { return e.file == filepath.Base(file) }) {
			t.Errorf("%s is not tried", file)
		}
	}
	for _, e := range exampleFiles {
		t.Run(strings.TrimSuffix(e.file, ".yaml"), func(t *testing.T) {
			for _, f := range e.needs {
				testutil.NeedFeature(t, f)
			}
			t.Parallel()
			w := newExampleWorld(t, e)
			w.apply()
			for _, p := range e.probes {
				protocols, _, _ := strings.Cut(p.to, " ")
				for protocol := range strings.SplitSeq(protocols, "+") {
					w.try(protocol, p)
				}
			}
			w.allUsed()
		})
	}
}

// exampleWorld is the network of an example.
type exampleWorld struct {
	t       *testing.T
	e       example
	gateway *netns.Handle
	journal *journal.Journal
	// where has the namespace of each address, links that behind each link.
	where map[netip.Addr]*netns.Handle
	links map[string]*netns.Handle
	// servers are those that listen, with what each saw in answers of clients.
	servers map[string]bool
	seen    netip.Addr
}

func newExampleWorld(t *testing.T, e example) *exampleWorld {
	t.Helper()
	w := &exampleWorld{t: t, e: e, gateway: testutil.Namespace(t, "gateway"), where: map[netip.Addr]*netns.Handle{}, links: map[string]*netns.Handle{}, servers: map[string]bool{}}
	testutil.Addresses(t, testutil.Links(t, w.gateway), "lo")
	for i, link := range e.links {
		ns := testutil.Namespace(t, link.name)
		w.links[link.name] = ns
		testutil.Addresses(t, testutil.Links(t, ns), "lo")
		testutil.Veth(t, testutil.End{Netns: w.gateway, Name: link.name, Addresses: link.ours}, testutil.End{Netns: ns, Name: "eth0", Addresses: link.hosts})
		for _, a := range link.ours {
			w.where[netip.MustParsePrefix(a).Addr()] = w.gateway
		}
		for _, a := range link.hosts {
			w.where[netip.MustParsePrefix(a).Addr()] = ns
		}
		testutil.Routes(t, ns, firstOfEach(link.ours)...)
		if i == 0 {
			testutil.Routes(t, w.gateway, firstOfEach(link.hosts)...)
		}
	}
	for name, group := range e.groups {
		links := testutil.Links(t, w.gateway)
		link, err := links.LinkByName(name)
		if err == nil {
			err = links.LinkSetGroup(link, group)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if e.rules != "" {
		testutil.NeedProgram(t, "nft")
		testutil.Nft(t, w.gateway, e.rules)
	}
	return w
}

// firstOfEach is the first address of each family.
func firstOfEach(prefixes []string) (all []string) {
	for _, is6 := range []bool{false, true} {
		for _, text := range prefixes {
			if a := netip.MustParsePrefix(text).Addr(); a.Is6() == is6 {
				all = append(all, a.String())
				break
			}
		}
	}
	return all
}

func (w *exampleWorld) apply() {
	w.t.Helper()
	name := filepath.Join("../../../examples", w.e.file)
	text, err := os.ReadFile(name)
	if err != nil {
		w.t.Fatal(err)
	}
	for old, now := range w.e.now {
		if !bytes.Contains(text, []byte(old)) {
			w.t.Errorf("%s does not say %s", w.e.file, old)
		}
		text = bytes.ReplaceAll(text, []byte(old), []byte(now))
	}
	if w.journal, err = journal.At(filepath.Join(w.t.TempDir(), "journal")); err != nil {
		w.t.Fatal(err)
	}
	h := gwapply.Host{Netns: w.gateway, Apply: apply.Options{Journal: w.journal, Root: w.t.TempDir()}}
	ready, err := h.Prepare(w.t.Context(), gwapply.Wish{Name: name, Text: text, Origin: gwapply.OriginService})
	if err != nil {
		w.t.Fatal(err)
	}
	var found []string
	for _, f := range ready.Findings {
		if found = append(found, f.ID, f.ID+"?"); !slices.Contains(w.e.findings, f.ID) && !slices.Contains(w.e.findings, f.ID+"?") {
			w.t.Errorf("%s:%d: %s: %s", w.e.file, f.Line, f.ID, f.Message)
		}
	}
	for _, id := range w.e.findings {
		if !slices.Contains(found, id) && !strings.HasSuffix(id, "?") {
			w.t.Errorf("%s is not found", id)
		}
	}
	if _, err := ready.Apply(w.t.Context(), 0); err != nil {
		w.t.Fatal(err)
	}
}

// allUsed reports rules that no probe went through.
func (w *exampleWorld) allUsed() {
	w.t.Helper()
	status, err := look.New(look.Options{Netns: w.gateway, Journal: w.journal, Store: engine.StoreBeside(w.journal.Dir())}).Look(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if status.Integrity != gateway.RulesIntact || len(status.Rules) == 0 {
		w.t.Errorf("%+v", status)
	}
	for _, r := range status.Rules {
		if r.New != nil && *r.New == 0 {
			w.t.Errorf("nothing went through %s", r.Rule)
		}
	}
}

// try makes the connection of a probe by one protocol.
func (w *exampleWorld) try(protocol string, p probe) {
	w.t.Helper()
	_, target, _ := strings.Cut(p.to, " ")
	if port, again := strings.CutPrefix(target, "seen:"); again {
		target = net.JoinHostPort(w.seen.String(), port)
	}
	what := fmt.Sprintf("%s %s -> %s", protocol, cmp.Or(p.from, "gateway"), target)
	servers := strings.FieldsFunc(p.at, func(r rune) bool { return r == ',' })
	for _, at := range servers {
		w.serve(protocol, at)
	}
	answer, own, err := w.connect(protocol, p.from, target)
	if len(servers) == 0 {
		if !errors.Is(err, unix.ECONNREFUSED) {
			w.t.Errorf("%s: answer %q, %v; it must not pass", what, answer, err)
		}
		return
	}
	if err != nil {
		w.t.Errorf("%s: %v", what, err)
		return
	}
	at, client, _ := strings.Cut(answer, " ")
	seen, err := netip.ParseAddrPort(client)
	if err != nil {
		w.t.Errorf("%s: answer %q", what, answer)
		return
	}
	if !slices.Contains(servers, at) {
		w.t.Errorf("%s: at %s, want %s", what, at, p.at)
	}
	addresses, keeps := strings.CutSuffix(p.sees, " keep")
	first, last, isRange := strings.Cut(addresses, "-")
	if !isRange {
		last = first
	}
	as := seen.Addr().Unmap()
	if !strings.Contains(p.to, "seen") {
		w.seen = as
	}
	if as.Less(netip.MustParseAddr(first)) || netip.MustParseAddr(last).Less(as) || keeps && seen.Port() != own {
		w.t.Errorf("%s: seen as %s (its port is %d), want %s", what, client, own, p.sees)
	}
}

// serve has a server listen, which answers with its own address and the client's.
func (w *exampleWorld) serve(protocol, at string) {
	w.t.Helper()
	if w.servers[protocol+at] {
		return
	}
	w.servers[protocol+at] = true
	address, link, _ := strings.Cut(at, "@")
	ns := cmp.Or(w.links[link], w.where[netip.MustParseAddrPort(address).Addr()])
	if ns == nil {
		w.t.Fatalf("nobody has the address of %s", at)
	}
	if protocol == "udp" {
		testutil.Inside(w.t, ns, func() error {
			c, err := net.ListenPacket("udp", address)
			if err == nil {
				w.t.Cleanup(func() { c.Close() })
				go answerUDP(c, at)
			}
			return err
		})
		return
	}
	testutil.Inside(w.t, ns, func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			w.t.Cleanup(func() { l.Close() })
			go answerTCP(l, at)
		}
		return err
	})
}

func answerUDP(c net.PacketConn, at string) {
	for b := make([]byte, 64); ; {
		_, from, err := c.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			c.WriteTo([]byte(at+" "+from.String()), from)
		}
	}
}

func answerTCP(l net.Listener, at string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, at+" "+c.RemoteAddr().String())
		c.Close()
	}
}

// clientOf is a probe's client: its address, the class of its packets, and who runs it.
func clientOf(t *testing.T, from string) (address string, class, user int) {
	t.Helper()
	address, more, _ := strings.Cut(from, " ")
	word, number, _ := strings.Cut(more, " ")
	if word == "" {
		return address, 0, 0
	}
	n, err := strconv.Atoi(number)
	switch {
	case err == nil && word == "dscp":
		return address, n, 0
	case err == nil && word == "user":
		return address, 0, n
	}
	t.Fatalf("a probe from %q", from)
	return "", 0, 0
}

// connect returns the server's answer, and the port that the client has itself.
func (w *exampleWorld) connect(protocol, from, target string) (answer string, port uint16, err error) {
	ns, dialer := w.gateway, net.Dialer{Timeout: testutil.Patience(20 * time.Second)}
	from, class, user := clientOf(w.t, from)
	if class > 0 {
		dialer.Control = func(_, _ string, c syscall.RawConn) (err error) {
			refused := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, class<<2) })
			return errors.Join(refused, err)
		}
	}
	if from != "" {
		from, link, _ := strings.Cut(from, "@")
		ip := netip.MustParseAddr(from)
		if ns = cmp.Or(w.links[link], w.where[ip]); protocol == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
		} else {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
		}
	}
	var c net.Conn
	err = ns.Do(func() error {
		if err := unix.Setfsuid(user); err != nil { // of this thread, which ends here
			return err
		}
		c, err = dialer.Dial(protocol, target)
		return err
	})
	if err != nil {
		return "", 0, err
	}
	defer c.Close()
	port = netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	end := time.Now().Add(testutil.Patience(20 * time.Second))
	c.SetDeadline(end)
	if protocol == "tcp" {
		all, err := io.ReadAll(c)
		return string(all), port, err
	}
	// What is not answered is asked again: the kernel sends a host few ICMP errors a second (icmp_ratelimit), and counts
	// its redirects among them.
	b := make([]byte, 128)
	for {
		if _, err := c.Write([]byte("?")); err != nil {
			return "", port, err
		}
		c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		n, err := c.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return string(b[:n]), port, err
		}
	}
}
