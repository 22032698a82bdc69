package run

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
)

// TestServiceHearsOfAFlush: without a single look the service puts rules back that somebody
// flushed, as the kernel tells it; to a program that does so again and again it gives way.
func TestServiceHearsOfAFlush(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	s := w.serve(masqueradeText)
	s.end()
	s.begin(func(s *Service) { s.Look = time.Hour })
	digest := s.value()
	count := func(word string) int { return strings.Count(s.said(), word) }
	const again = "again and again"
	// An address that is news to the service may put the rules back before what the kernel
	// told does, and is not counted.
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
	s.reload <- unix.SIGHUP // comes behind what the kernel told before
	within(t, 30*time.Second, "reloaded", func() bool { return s.told(wordReady) == 2 })
	if n := count("rules removed: "); n != removed {
		t.Errorf("put in force again %d times, the last one after it gave way", n)
	}
	w.ip("nft add table ip others")
	w.ip("nft delete table ip others") // what is not natkit's is nothing to it
	s.end()
	s.want(digest)
}

// TestWatchTables: what is told of is a table that goes, in a batch of others too.
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
	w.ip("nft add chain ip others c")
	select {
	case <-tables:
		t.Error("told of a table that came")
	default:
	}
	w.ip("nft flush ruleset")
	within(t, 30*time.Second, "told of the flush", func() bool { return received(tables) })
}

// TestWatchMoreThanTheBufferHolds: who listens too slowly is told that something may have
// changed, whatever it was.
func TestWatchMoreThanTheBufferHolds(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	resume := make(chan struct{})
	events, err := w.watch(ctx, unix.NETLINK_NETFILTER, func([]syscall.NetlinkMessage) bool {
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
		if err := w.Host.Apply.Engines.Apply(w.ns, plan); err != nil {
			t.Fatal(err)
		}
	}
	close(resume)
	within(t, 30*time.Second, "told that something may have changed", func() bool { return received(events) })
}

func received(events <-chan struct{}) bool {
	select {
	case <-events:
		return true
	default:
		return false
	}
}
