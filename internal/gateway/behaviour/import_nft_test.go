package behaviour

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/testutil"
)

// byNft are rules that people write for nft, with sets and maps.
const byNft = `
table inet theirs {
	map forwards {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 203.0.113.7 . udp . 5000 : 192.168.0.2 . 6000, 203.0.113.7 . tcp . 80 : 172.17.0.2 . 8080 }
	}
	map segment { type ipv4_addr : interval ipv4_addr; flags interval; elements = { 10.1.0.0/24 : 203.0.113.64/24 }; }
	chain raw {
		type filter hook prerouting priority raw;
		ip daddr 203.0.113.9 udp dport { 80, 5002 } notrack
	}
	chain out {
		type filter hook output priority raw;
		ip saddr 203.0.113.9 udp sport { 80, 5002 } notrack
	}
	chain prerouting {
		type nat hook prerouting priority dstnat;
		dnat ip to ip daddr . meta l4proto . th dport map @forwards
		ip daddr 203.0.113.9 jump floating
	}
	chain floating { meta l4proto { tcp, udp } th dport vmap { 80 : accept, 5000-5001 : goto away }; }
	chain away { dnat ip to 192.168.0.2; }
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr { 192.168.0.2, 172.17.0.0/24 } ip daddr != { 198.18.1.0/24 } snat ip to 203.0.113.12-203.0.113.15 persistent
		ip saddr 192.168.0.3-192.168.0.6 masquerade
	}
}
`

// TestImportedRulesOfNftDoTheSame does with rules that nft loads what
// TestImportedRulesDoTheSame does with commands of iptables.
func TestImportedRulesOfNftDoTheSame(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	e := &written{text: byNft}
	before := newWorld(t, e)
	if err := before.Apply(nil); err != nil {
		t.Fatal(err)
	}
	if len(e.live.Config.NAT) == 0 || !e.live.Exact() {
		t.Fatalf("not all was imported: %+v\n%s", e.live.Notes, e.live.YAML())
	}
	fareTheSame(t, before, e.live, false)
}

// written is an engine that loads a text by nft, whatever the plan.
type written struct {
	text string
	live *convert.Result
}

func (*written) Name() string               { return "nft" }
func (*written) Remove(*netns.Handle) error { return nil }

func (e *written) Apply(ns *netns.Handle, _ *gateway.Plan) error {
	err := ns.Do(func() error {
		command := exec.Command("nft", "-f", "-")
		command.Stdin = strings.NewReader(e.text)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
		return nil
	})
	if err != nil {
		return err
	}
	set, err := read.Tables(ns)
	if err != nil {
		return err
	}
	e.live, err = convert.Import(set)
	return err
}
