package behaviour

import (
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/nft"
	"github.com/natkit/natkit/internal/testutil"
)

type netfilter = nft.Engine

// atATime is how many cases are played at one time. Most of a case's time is waiting:
// for namespaces to be made and for timers.
const atATime = 16

// patience is for frames that come in any case, on a machine that others keep busy.
const patience = 30 * time.Second

func worlds(e Engine) Maker { return Namespaces(e, testutil.Patience(patience)) }

// slow is what the times of cases are stretched by where the machine is known to be slow.
func slow() int { return min(3, int(testutil.Patience(1))) }

// everyKind needs all that the engine may ask of a kernel, but flowtables.
const everyKind = `
interfaces: {wan: wan, lan: [lan, dmz]}
mss: clamp
limits: {connections-per-source: 1000}
nat:
  - masquerade: {except-to: [10.9.0.0/16]}
  - snat: {from: 192.168.0.2, to: 203.0.113.7, ports: keep}
  - snat: {from: 192.168.0.0/28, to: [203.0.113.8, 203.0.113.12/30], random: fully}
  - dnat: {on: 203.0.113.7, port: tcp/80, to: "192.168.0.2:80", hairpin: true, local: true}
  - static: {inside: 192.168.0.3, outside: 203.0.113.9}
  - static: {inside: 192.168.0.4, outside: 203.0.113.10, stateless: true}
  - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
  - notrack: {on: 192.168.0.5}
ipv6:
  - masquerade: {}
  - netmap: {inside: "fd03::/48", outside: "2001:db8:3::/48", stateless: true}
`

// loadModules has a kernel load what it needs. Where many namespaces ask for a module
// at one time, some kernels refuse one of them (seen on 6.12: ENOENT).
func loadModules(t *testing.T, e Engine) {
	t.Helper()
	p := newWorld(t, e)
	if err := p.change(everyKind); err != nil {
		t.Fatal(err)
	}
}

func TestNetfilter(t *testing.T) { playSuite(t, netfilter{}) }

// playSuite plays all cases with an engine, on this kernel. On the one of the engine's
// record it must find the same.
func playSuite(t *testing.T, e engine.Engine) {
	testutil.NeedRoot(t)
	if !*update { // TestPage reads what is written here
		t.Parallel()
	}
	loadModules(t, e)
	name := string(e.Name())
	cases, start := All(), time.Now()
	results := Run(name, cases, worlds(e), slow(), atATime)
	took := time.Since(start)
	if *update {
		writeRecord(t, Record{name, series(t), results})
	}
	recorded := readRecord(t, name)
	for i, r := range results {
		t.Run(cases[i].ID, func(t *testing.T) {
			t.Logf("%s: %s", r.Status, r.Outcome)
			if r.Err != nil {
				t.Error(r.Err)
			}
			if old := recorded.of(r.ID); recorded.Kernel == series(t) && r.Err == nil && (old.Status != r.Status || old.Outcome != r.Outcome) {
				t.Errorf("recorded as %s, %q: -update records what is now", old.Status, old.Outcome)
			}
		})
	}
	failed := slices.IndexFunc(results, func(r Result) bool { return r.Err != nil }) >= 0
	t.Logf("%d cases in %v; failures: %v", len(cases), took.Round(10*time.Millisecond), failed)
}
