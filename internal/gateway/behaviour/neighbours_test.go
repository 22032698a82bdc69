package behaviour

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// neighbourhood is where the rules were recorded, as scripts/neighbours/world makes it.
const neighbourhood = `link add lan0 type bridge
link add wan0 type bridge
link add docker0 type bridge
link add cni0 type bridge
address add 192.168.0.1/24 dev lan0
address add 203.0.113.2/24 dev wan0
address add 203.0.113.7/24 dev wan0
address add 203.0.113.9/24 dev wan0
address add 172.17.0.1/16 dev docker0
address add 10.244.0.1/24 dev cni0
link set lan0 up
link set wan0 up
link set docker0 up
link set cni0 up
link add name lan0.port type veth peer name lan0.host
link add name wan0.port type veth peer name wan0.host
link set lan0 address 02:00:00:00:01:01
link set wan0 address 02:00:00:00:01:01
link set lan0.port master lan0 up
link set wan0.port master wan0 up
link set lan0.host up
link set wan0.host up
`

// TestNeighbours loads rules that the real Docker, firewalld and others made, and compares
// what check and explain say beside them with what is recorded, and with what the kernel
// makes of packets. scripts/neighbour-test tries the programs
// themselves, with packets.
func TestNeighbours(t *testing.T) {
	for _, program := range []string{"ip", "nft", "iptables-nft-restore", "iptables-legacy-restore"} {
		testutil.NeedProgram(t, program)
	}
	files, err := filepath.Glob("testdata/neighbours/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		recorded := map[string]string{}
		for _, f := range archive.Files {
			recorded[f.Name] = string(f.Data)
		}
		loaders := map[string][]string{"iptables-nft-restore": nil, "iptables-legacy-restore": nil}
		rules := recorded["rules.iptables"]
		if rules == "" {
			loaders, rules = map[string][]string{"nft": {"-f", "-"}}, recorded["rules.nft"]
		}
		for loader, args := range loaders {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+" "+loader, func(t *testing.T) {
				ns := testutil.Namespace(t)
				pipe(t, ns, neighbourhood, "ip", "-batch", "-")
				pipe(t, ns, "1", "tee", "/proc/sys/net/ipv4/ip_forward")
				pipe(t, ns, rules, loader, args...)
				got := strings.ReplaceAll(beside(t, ns, recorded["gateway.yaml"]), "iptables-legacy", "iptables-nft")
				if diff := cmp.Diff(recorded["found"], got); diff != "" && !*update {
					t.Error(diff)
				}
				recorded["found"] = got
			})
		}
		if *update {
			archive.Files[len(archive.Files)-1] = txtar.File{Name: "found", Data: []byte(recorded["found"])}
			if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func pipe(t *testing.T, ns *netns.Handle, input, program string, args ...string) {
	t.Helper()
	err := ns.Do(func() error {
		cmd := exec.Command(program, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", program, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// neighbourly are packets that natkit, a neighbour or both are for.
var neighbourly = []struct{ packet, in string }{
	{"tcp 192.168.0.2:4000 -> 203.0.113.1:80", "lan0"},
	{"tcp 192.168.0.3:4000 -> 203.0.113.1:80", "lan0"},
	{"tcp 192.168.122.10:4000 -> 203.0.113.1:80", "lan0"},
	{"tcp 203.0.113.1:4000 -> 203.0.113.2:8081", "wan0"},
	{"tcp 203.0.113.1:4000 -> 203.0.113.7:8081", "wan0"},
	{"tcp 203.0.113.1:4000 -> 203.0.113.2:30080", "wan0"},
	{"tcp 203.0.113.1:4000 -> 203.0.113.7:30080", "wan0"},
	{"tcp 203.0.113.1:4000 -> 203.0.113.9:80", "wan0"},
}

// beside is what check and explain say in a namespace about a gateway's file.
func beside(t *testing.T, ns *netns.Handle, text string) string {
	t.Helper()
	facts, err := host.Read(t.Context(), ns, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	facts.Enter = "" // the namespace has no name
	f, err := gateway.Parse("gateway.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, found := range gateway.Check(f, facts) {
		fmt.Fprintf(&b, "%s: %s\n  %s\n", found.ID, found.Message, strings.ReplaceAll(found.Advice, "\n", "\n  "))
	}
	plan, err := gateway.Compile(&f.Config, facts)
	if err != nil {
		t.Fatal(err)
	}
	var forwarded []*observe.Trace
	for _, p := range neighbourly {
		sent, err := observe.ParsePacket([]string{p.packet})
		if err != nil {
			t.Fatal(err)
		}
		sent.In = p.in
		way, err := observe.Follow(plan, facts, kernelRoutes(ns), sent)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: becomes %s -> %s%s\n", p.packet, way.Source, way.Destination, strings.Join(append([]string{""}, way.Notes...), "\n  "))
		if way.Fate == observe.Forwarded {
			forwarded = append(forwarded, way)
		}
	}
	refuses := func(f gateway.Foreign) bool { return f.Hook == "forward" && f.Policy != "accept" }
	if !slices.ContainsFunc(facts.Foreign, refuses) {
		if err := alone.Apply(ns, plan); err != nil {
			t.Fatal(err)
		}
		for _, way := range forwarded {
			taken(t, ns, way)
		}
	}
	return b.String()
}

// taken sends a way's packet, and compares the connection that the kernel makes of it: it
// is the one foretold, unless notes leave that open.
func taken(t *testing.T, ns *netns.Handle, way *observe.Trace) {
	t.Helper()
	p := way.Packet
	frame := ethernet(frame.Link{Source: [6]byte{2, 0, 0, 0, 2, 2}, Destination: [6]byte{2, 0, 0, 0, 1, 1}}, compose(p, false))
	err := ns.Do(func() error {
		fd, err := openPacket(p.In+".host", unix.ETH_P_ALL)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, frame)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var reply conntrack.Tuple
	testutil.Eventually(t, "the connection of "+p.String(), func() bool {
		_, err := dump.Each(t.Context(), ns, nil, func(e *conntrack.Entry) error {
			if e.Orig.Src == p.Src && e.Orig.Dst == p.Dst && e.Orig.DstPort == p.DstPort {
				reply = e.Reply
			}
			return nil
		})
		return err == nil && reply.Src.IsValid()
	})
	if as := way.Source.Allows(reply.Dst, reply.DstPort) && way.Destination.Allows(reply.Src, reply.SrcPort); !as && len(way.Notes) == 0 {
		t.Errorf("%s: foretold to become %s -> %s, became %s:%d -> %s:%d", p, way.Source, way.Destination, reply.Dst, reply.DstPort, reply.Src, reply.SrcPort)
	}
}
