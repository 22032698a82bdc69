package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"golang.org/x/sys/unix"
)

func TestServiceFollowsItsFile(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	a := s.value()
	s.write(snatText)
	s.waitValue("the new file in force", func(v string) bool { return v != a })
	b := s.value()
	w.wantSysctl(Accounting, "1")
	s.write("gateway:\n  nat:\n    - masquerade: {form: 192.168.0.0/16}\n")
	s.waitSaid("the former rules stay in force")
	s.want(b)
	if said := s.said(); !strings.Contains(said, "gateway.yaml:3:") || strings.Contains(said, "\n\n") {
		t.Errorf("not one line with the place: %q", said)
	}
	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	s.waitSaid("no such file")
	s.want(b)
	s.write(masqueradeText)
	within(t, 30*time.Second, "the first file again", func() bool { return strings.Count(s.said(), "in force as") == 3 })
	s.want(a)
	w.wantSysctl(Accounting, "0")
	// One transaction for all: an undo leads to what was before the service.
	open, err := w.Transactions()
	if err != nil || len(open) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	s.end()
	s.want(a)
	if _, err := w.Undo(open[0].ID); err != nil {
		t.Fatal(err)
	}
	s.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

// A file that is included counts as the file itself: changed, missing, and repaired.
func TestServiceFollowsIncludedFiles(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	a := s.value()
	other := filepath.Join(filepath.Dir(s.file), "other.yaml")
	write := func(rule string) {
		t.Helper()
		if err := os.WriteFile(other, []byte("gateway:\n  nat:\n    - "+rule+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("snat: {from: 192.168.0.9, to: $outside}")
	s.write("gateway: {include: other.yaml, define: {outside: 203.0.113.7}, interfaces: {wan: wan0}}\n")
	s.waitValue("the included file in force", func(v string) bool { return v != a })
	b := s.value()
	write("snat: {from: 192.168.0.9, to: $outsde}")
	s.waitSaid("other.yaml:3:37: $outsde is not defined")
	s.want(b)
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	s.waitSaid("include " + other + ": no such file")
	s.want(b)
	write("snat: {from: 192.168.0.10, to: $outside}")
	s.waitValue("the repaired file in force", func(v string) bool { return v != b })
	s.end()
}

// The files of a set count as well, and a change of elements leaves the rules alone.
func TestServiceFollowsSets(t *testing.T) {
	w := newWorld(t)
	w.ip("ip addr add 192.168.0.9/24 dev lan0")
	w.ip("ip addr add 192.168.0.10/24 dev lan0")
	s := w.serve(masqueradeText)
	a := s.value()
	feeds := filepath.Join(filepath.Dir(s.file), "feeds")
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(feeds, 0o755), os.WriteFile(filepath.Join(feeds, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("one", "192.168.0.9\n")
	s.write("gateway:\n  sets: {feeds: {directory: feeds}}\n  interfaces: {wan: wan0}\n  nat:\n    - snat: {from: $feeds, to: 203.0.113.7}\n")
	s.waitValue("the set in force", func(v string) bool { return v != a })
	w.send("192.168.0.9:4000", "203.0.113.99:53")
	counted := func(want uint64) { // the kernel may forward after send returns
		t.Helper()
		within(t, 30*time.Second, fmt.Sprint(want, " counted"), func() bool {
			state, err := w.State()
			if err != nil {
				t.Fatal(err)
			}
			packets := uint64(0)
			for _, c := range state.Counts {
				if c.Rule != nil {
					packets += c.Packets
				}
			}
			return packets == want
		})
	}
	counted(1)
	b := s.value()
	write("two", "192.168.0.10\n192.168.0.11\n")
	s.waitValue("another file of the directory in force", func(v string) bool { return v != b })
	w.send("192.168.0.10:4000", "203.0.113.99:53")
	counted(2) // the rule is the same
	c := s.value()
	write("two", "192.168.0.10\n192.168.0.300\n")
	s.waitSaid("two:2:1: expected an address")
	s.want(c)
	if err := os.Remove(filepath.Join(feeds, "two")); err != nil {
		t.Fatal(err)
	}
	s.waitValue("without it", func(v string) bool { return v == b })
	s.end()
	s.want(b)
}

// One undo leads back to the elements before.
func TestUndoOfSets(t *testing.T) {
	w := newWorld(t)
	text := func(elements string) string {
		return "gateway:\n  sets: {a: {addresses: [" + elements + "]}}\n  nat:\n    - masquerade: {from: $a}\n"
	}
	first, _ := w.apply(text("10.0.0.1, 10.0.0.2"), 0)
	w.want(first)
	second, id := w.apply(text("10.0.0.2, 10.0.0.3"), 0)
	w.want(second)
	if _, err := w.Undo(id); err != nil {
		t.Fatal(err)
	}
	w.want(first)
	plan, err := w.InForce()
	if err != nil || len(plan.Sets) != 1 || string(plan.Sets[0].Text()) != "10.0.0.1\n10.0.0.2\n" {
		t.Errorf("%+v, %v", plan, err)
	}
}

func TestServiceTellsItsManager(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	within(t, 30*time.Second, "lives", func() bool { return s.notified(wordAlive) > 3 })
	if s.notified("STATUS=in force: ") == 0 {
		t.Errorf("no status: %q", s.messages)
	}
	s.reload <- unix.SIGHUP
	within(t, 30*time.Second, "reloaded", func() bool { return s.notified("RELOADING=1") == 1 && s.notified(wordReady) == 2 })
	if s.notified("MONOTONIC_USEC=") != 1 {
		t.Errorf("without a time: %q", s.messages)
	}
	s.end()
	within(t, 30*time.Second, "stopping", func() bool { return s.notified(wordStopping) == 1 })
	if n := s.notified("STATUS="); n != 1 {
		t.Errorf("the same status %d times: %q", n, s.messages)
	}
}

// A restart finds the rules in force, writes nothing and keeps the transaction.
func TestServiceRestart(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	generation := w.generation()
	s.end()
	s.begin(nil)
	if now := w.generation(); now != generation {
		t.Errorf("the rule set was written: generation %d, then %d", generation, now)
	}
	s.end()
	s.begin(func(s *Service) { s.UndoOnExit = true })
	s.end()
	s.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

func TestServiceDoesNotBeginWithABrokenFile(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte("gateway: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := Service{Host: w.Host, File: file, Log: func(string) {}, Getenv: func(string) string { return "" }}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "gateway.yaml:1:") {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayNone)
}

// An address that goes takes its connections with it, and no others; an address that
// comes is translated at once, as is an interface.
func TestServiceFollowsAddresses(t *testing.T) {
	w := newWorld(t)
	w.ip("ip addr add 203.0.113.8/24 dev wan0")
	w.ip("ip addr add 192.168.0.9/24 dev lan0")
	w.ip("ip addr add 10.3.0.9/24 dev lan0")
	s := w.serve(`gateway:
  interfaces: {wan: [wan0, wan9], lan: lan0}
  nat:
    - snat: {from: 192.168.0.9, to: 203.0.113.8}
    - snat: {from: 10.3.0.9, to: 203.0.113.7}
    - dnat: {on: wan, port: tcp/8080, to: "192.168.0.2:80"}
`)
	s.waitSaid("waiting for wan9")
	w.send("192.168.0.9:4000", "203.0.113.99:53")
	w.send("10.3.0.9:4000", "203.0.113.99:53")
	before := s.value()
	w.ip("ip addr del 203.0.113.8/24 dev wan0")
	s.waitSaid("203.0.113.8 went: removed 1 connection")
	s.waitValue("rules without it", func(v string) bool { return v != before })
	plan, err := w.InForce()
	if err != nil || len(plan.Destinations) != 1 {
		t.Fatalf("%+v, %v", plan, err)
	}
	if left, err := w.Orphans(t.Context(), plan, nil); err != nil || left.Rules[gateway.Ref{List: "nat", Index: 1, Kind: "snat"}] != 1 || len(left.Keys) != 1 {
		t.Errorf("left are %+v, %v", left, err)
	}
	without := s.value()
	w.ip("ip link add wan9 type veth peer name wan8")
	w.ip("ip addr add 198.51.100.1/24 dev wan9")
	w.ip("ip link set wan9 up")
	s.waitSaid("wan9 is there")
	s.waitValue("rules with the new address", func(v string) bool { return v != without })
	s.end()
}

// What was undone by hand stays undone until the file changes or a reload.
func TestServiceLeavesAnUndoAlone(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	second := Service{Host: w.Host, File: s.file, Log: func(string) {}, Getenv: func(string) string { return "" }}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "keeps a gateway in force") {
		t.Errorf("a second one: %v", err)
	}
	if r, there := w.Service(); !there || r != (Runner{Command: "natkit gateway run " + s.file, PID: os.Getpid()}) {
		t.Errorf("%+v, %v", r, there)
	}
	open, err := w.Transactions()
	if err != nil || len(open) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	if _, err := w.Undo(open[0].ID); err != nil {
		t.Fatal(err)
	}
	w.ip("ip addr add 203.0.113.9/24 dev wan0")
	s.waitSaid("was undone by another process")
	s.want(tune.GatewayNone)
	s.write("gateway: [\n")
	s.waitSaid("the former rules stay in force")
	w.ip("ip addr del 203.0.113.9/24 dev wan0")
	s.want(tune.GatewayNone)
	s.write(masqueradeText)
	s.waitValue("applied again", func(v string) bool { return v != tune.GatewayNone })
	s.end()
}

// Also one that had been applied by a service before it.
func TestServiceLeavesAnUndoAloneAfterARestart(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	s.end()
	s.begin(nil)
	open, err := w.Transactions()
	if err != nil || len(open) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	if _, err := w.Undo(open[0].ID); err != nil {
		t.Fatal(err)
	}
	w.ip("ip addr add 203.0.113.9/24 dev wan0")
	s.waitSaid("was undone by another process")
	s.want(tune.GatewayNone)
	s.reload <- unix.SIGHUP
	s.waitValue("applied again", func(v string) bool { return v != tune.GatewayNone })
	s.end()
}

func TestServiceSaysThatRulesChanged(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	k := newKeeper(&Service{Host: w.Host, File: "gateway.yaml"}, &manager{})
	var lines []string
	k.Log = func(line string) { lines = append(lines, line) }
	if err := k.apply(t.Context(), []byte(masqueradeText), newInputs("gateway.yaml"), "start"); err != nil {
		t.Fatal(err)
	}
	k.compare(t.Context())
	if len(lines) != 1 {
		t.Errorf("%q", lines)
	}
	w.ip("nft add rule inet natkit postrouting ip saddr 10.9.9.9 accept")
	k.compare(t.Context())
	k.compare(t.Context())
	if len(lines) != 2 || !strings.Contains(lines[1], "chain postrouting: 2 rules instead of 1") {
		t.Errorf("%q", lines)
	}
	if said := k.status(); strings.Contains(said, "in force") {
		t.Errorf("status %q", said)
	}
	if err := k.apply(t.Context(), []byte(masqueradeText), newInputs("gateway.yaml"), "reload"); err != nil {
		t.Fatal(err)
	}
	if s := w.state(); s.Integrity != gateway.RulesIntact {
		t.Errorf("%+v", s)
	}
	// Removed altogether, they come again.
	w.ip("nft flush ruleset")
	k.compare(t.Context())
	w.want(k.digest)
	if said := k.status(); !strings.Contains(said, "in force") {
		t.Errorf("status %q", said)
	}
}

// The kernel's fast path has the interfaces that there were when the rules were
// written: one that comes later, or in the place of another, has them written again.
func TestServiceFastPath(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	testutil.NeedFeature(t, testutil.FlowTable)
	w := newWorld(t)
	s := w.serve("gateway:\n  interfaces: {wan: wan0, lan: [lan0, lan5]}\n  flowtable: on\n  nat:\n    - masquerade: {from: 192.168.0.0/16}\n")
	s.waitSaid("waiting for lan5")
	fast := func(name string) func() bool {
		return func() bool { return strings.Contains(w.ip("nft list flowtables"), name) }
	}
	if !fast("lan0")() || fast("lan5")() {
		t.Errorf("%s", w.ip("nft list flowtables"))
	}
	w.ip("ip link add lan5 type veth peer name lan6")
	within(t, 30*time.Second, "lan5 in the fast path", fast("lan5"))
	s.waitSaid("lan5 is there")
	before := s.value()
	w.ip("ip link del lan5")
	w.ip("ip link add lan5 type veth peer name lan6")
	within(t, 30*time.Second, "the new lan5 in the fast path", fast("lan5"))
	within(t, 30*time.Second, "the same plan", func() bool { return s.value() == before })
	s.end()
}

// TestServiceHearsOfAFlush: without a periodic check the service puts flushed rules back, by
// the kernel's notification; to a program that flushes repeatedly it gives way.
func TestServiceHearsOfAFlush(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	s := w.serve(masqueradeText)
	s.end()
	s.begin(func(s *Service) { s.Look = time.Hour })
	digest := s.value()
	count := func(word string) int { return strings.Count(s.said(), word) }
	const again = "removed repeatedly"
	// An address that is news to the service may put the rules back before the kernel's
	// notification does, and is not counted.
	for flushes := 0; count(again) == 0 && flushes < 10*mostQuick; flushes++ {
		before := count(" in force as ")
		w.ip("nft flush ruleset")
		within(t, 20*time.Second, "the rules again", func() bool { return s.value() == digest }) // before the usual look
		within(t, 20*time.Second, "the log of it", func() bool { return count(" in force as ") > before })
	}
	s.waitSaid(again)
	removed := count("rules removed: ")
	if removed < mostQuick {
		t.Errorf("gives way after %d times", removed)
	}
	w.ip("nft flush ruleset")
	s.reload <- unix.SIGHUP // comes behind the kernel's notifications
	within(t, 30*time.Second, "reloaded", func() bool { return s.notified(wordReady) == 2 })
	if n := count("rules removed: "); n != removed {
		t.Errorf("put in force again %d times, the last one after it gave way", n)
	}
	w.ip("nft add table ip others")
	w.ip("nft delete table ip others") // what is not natkit's is nothing to it
	s.end()
	s.want(digest)
}

// TestWatchTables: changes of rules are reported.
func TestWatchTables(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tables, err := w.watchTables(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.ip("nft add table ip others")
	within(t, 30*time.Second, "the new table is reported", func() bool { return received(tables) })
	w.ip("nft flush ruleset")
	within(t, 30*time.Second, "the flush is reported", func() bool { return received(tables) })
}

// TestServiceIsNoListener: one to changes of rules would have the kernel make a message of each element of a set, and of each
// connection where it listens to these, in all namespaces.
func TestServiceIsNoListener(t *testing.T) {
	w := newWorld(t)
	s := w.serve(masqueradeText)
	sockets := 0
	err := w.ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[1] == strconv.Itoa(unix.NETLINK_NETFILTER) {
				sockets++
				if strings.Trim(f[3], "0") != "" {
					t.Errorf("it listens: %s", line)
				}
			}
		}
		return err
	})
	if err != nil || sockets < 2 { // the kernel has one itself
		t.Errorf("%d sockets, %v", sockets, err)
	}
	s.end()
}

// TestWatchMoreThanTheBufferHolds: a slow receiver is notified that something may have
// changed, whatever it was.
func TestWatchMoreThanTheBufferHolds(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	resume := make(chan struct{})
	events, err := w.watch(ctx, "rules", unix.NETLINK_NETFILTER, func(netlink.Message) bool {
		<-resume
		return false
	}, unix.NFNLGRP_NFTABLES)
	if err != nil {
		t.Fatal(err)
	}
	w.apply(manyText(), 0)
	plan, err := w.InForce()
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := w.Host.Engines.Apply(w.ns, plan, w.store()); err != nil {
			t.Fatal(err)
		}
	}
	close(resume)
	within(t, 30*time.Second, "notified that something may have changed", func() bool { return received(events) })
}

func received(events <-chan struct{}) bool {
	select {
	case <-events:
		return true
	default:
		return false
	}
}
