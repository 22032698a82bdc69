package simulate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// anyConfig is a small simulation, all its settings drawn by lot.
func anyConfig(seed uint64) Config {
	lot := rand.New(rand.NewPCG(seed, 1))
	word := func(words ...string) string { return words[lot.IntN(len(words))] }
	span := func(least, most time.Duration) Duration {
		return Duration{least + time.Duration(lot.Int64N(int64(most-least+1)))}
	}
	yes := func() bool { return lot.IntN(2) == 0 }
	maybe := func() *bool { v := yes(); return &v }
	hold := []time.Duration{0, time.Second, 20 * time.Second}[lot.IntN(3)]
	c := Config{
		Seed: seed, Duration: span(150*time.Second, 400*time.Second),
		Connection: Connection{Duration: span(0, 200*time.Millisecond), ClosesFirst: word("", CloseServer, CloseServer, CloseClient)},
		NAT: NAT{Addresses: lot.IntN(3), Ports: [2]uint16{2000, uint16(2000 + []int{10, 63, 200, 700}[lot.IntN(4)])},
			Strategy: word(StrategyRoundRobin, StrategyRandom, StrategyHash, StrategyKernel), HoldDown: &Duration{hold},
			SYNHold: span(time.Second, 30*time.Second), Evicts: maybe(), Reset: word("", ResetPasses, ResetReopens, ResetDropped)},
	}
	if yes() {
		c.Balancer = &Balancer{Addresses: lot.IntN(3), NewSession: yes(), Timeout: span(10*time.Second, 120*time.Second)}
	}
	for i := range 1 + lot.IntN(3) {
		s := Servers{Name: fmt.Sprint(i), Count: lot.IntN(3), Weight: lot.IntN(4), Kernel: word(KernelWheel, KernelWheelRearm, KernelTimer),
			Addresses: lot.IntN(3), Timestamps: maybe(), RFC1337: lot.IntN(4) == 0}
		if i > 0 && yes() {
			s.From = span(0, 100*time.Second)
		}
		if lot.IntN(4) == 0 {
			most := lot.IntN(300)
			s.MaxTimeWait = &most
		}
		c.Servers = append(c.Servers, s)
	}
	for i := range 1 + lot.IntN(3) {
		c.Clients = append(c.Clients, anyClients(lot, fmt.Sprint(i), word, span, maybe))
	}
	if lot.IntN(3) == 0 {
		for range 1 + lot.IntN(4) {
			b := Batch{Clients: word("", "0"), Connections: 1 + lot.Int64N(500), Pause: span(0, 3*time.Second), Concurrency: lot.IntN(5)}
			if yes() {
				b.Concurrency, b.Rate = 0, 1+100*lot.Float64()
			}
			c.Batches = append(c.Batches, b)
		}
		return c
	}
	c.Arrivals = &Arrivals{Rate: 0.5 + 25*lot.Float64(), Spacing: word(SpacingEven, SpacingPoisson)}
	return c
}

func anyClients(lot *rand.Rand, name string, word func(...string) string, span func(a, b time.Duration) Duration, maybe func() *bool) Clients {
	retries, linear := lot.IntN(5), lot.IntN(5)
	hurry := Duration{[]time.Duration{0, 8 * time.Millisecond}[lot.IntN(2)]}
	g := Clients{Name: name, Hosts: lot.IntN(5), Weight: lot.Float64() + 0.1, Timestamps: maybe(),
		Clock: Clock{Hz: []int{0, 100, 250}[lot.IntN(3)], Offset: word("", OffsetPair, OffsetUptime, OffsetConnection), Uptime: span(time.Second, time.Hour)},
		ISN:   ISN{Kind: word("", ISNClock, ISNRandom), Tick: []Duration{{}, {4 * time.Microsecond}}[lot.IntN(2)]},
		SYN:   SYN{Retries: &retries, Linear: &linear, AfterACK: &hurry},
	}
	if lot.IntN(3) == 0 {
		g.SYN.Timeout = span(100*time.Millisecond, 10*time.Second)
	}
	if lot.IntN(3) == 0 {
		g.SourcePorts = [2]uint16{2000, 2400}
	}
	return g
}

// The engine and the reference agree to the last count.
func TestReference(t *testing.T) {
	var all tally
	for seed := range uint64(250) {
		c := anyConfig(seed)
		if err := c.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got, want := run(t, c), newReference(c)
		want.run()
		compare(t, seed, got, want)
		all.add(&want.total)
	}
	// The lots reach all that is counted.
	for f, n := range all {
		if n < 50 {
			t.Errorf("only %d of field %d in all", n, f)
		}
	}
}

func compare(t *testing.T, seed uint64, got *Result, want *reference) {
	t.Helper()
	if diff := cmp.Diff(want.total.counts(), got.Totals); diff != "" {
		t.Errorf("seed %d: %s", seed, diff)
	}
	for i := range want.groups {
		if diff := cmp.Diff(want.groups[i].counts(), got.Servers[i].Totals); diff != "" {
			t.Errorf("seed %d, servers %d: %s", seed, i, diff)
		}
		if diff := cmp.Diff(want.life[i].life(), got.Servers[i].Life); diff != "" && got.Config.Arrivals == nil {
			t.Errorf("seed %d, servers %d: %s", seed, i, diff)
		}
	}
	for i := range want.batch {
		if diff := cmp.Diff(want.batch[i].counts(), got.Batches[i].Counts); diff != "" {
			t.Errorf("seed %d, batch %d: %s", seed, i, diff)
		}
	}
	if diff := cmp.Diff(want.waited.summary(int64(100*time.Microsecond)), got.ConnectDelay); diff != "" {
		t.Errorf("seed %d: %s", seed, diff)
	}
}
