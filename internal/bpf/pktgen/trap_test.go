package pktgen

import (
	"testing"

	"github.com/natkit/natkit/internal/load/packets"
)

// TestTheTrapIsThere shows what the passing program is for: without it a veth drops
// what is redirected to it, and with it none. Where a kernel does not drop them any
// more, this test says so, and the program may go.
func TestTheTrapIsThere(t *testing.T) {
	n := newNetwork(t)
	do(t, nil, func() error { return n.gateway.SetGRO("eth0", false) })
	r := halfOpen(t, n)
	w := r.workers[0]
	sendFrom(t, w, 64)
	few := received(t, n.gateway, "eth0") // what the client's own stack sends
	if sent := stateOf(t, w).Sent; few > 32 || sent != 64 {
		t.Fatalf("%d of %d frames came to an interface without a program and NAPI", few, sent)
	}
	if err := r.ensurePeerTakesFrames(nil); err != nil {
		t.Fatal(err)
	}
	sendFrom(t, w, 128)
	if got := received(t, n.gateway, "eth0"); got < 64 {
		t.Errorf("%d frames came with the passing program, want 64", got)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if attached(t, n.gateway, "eth0") {
		t.Error("the passing program stays")
	}
}

// halfOpen is a run to the gateway as open leaves it, but for the passing program.
func halfOpen(t *testing.T, n *network) *run {
	t.Helper()
	r := &run{cfg: config("198.18.0.1:9"), from: egress(t, n, "198.18.0.1")}
	t.Cleanup(func() { r.close() })
	var err error
	if r.tables, err = newTables(r.cfg.Flows); err != nil {
		t.Fatal(err)
	}
	r.closers = append(r.closers, r.tables.close)
	if err := r.makeWorkers(); err != nil {
		t.Fatal(err)
	}
	return r
}

func sendFrom(t *testing.T, w *worker, total int64) {
	t.Helper()
	if err := w.onCPU(func() error { return w.sendUntil(total) }); err != nil {
		t.Fatal(err)
	}
}

// TestPassingProgramIsAttachedForTheRun looks at both: the note, and that it is gone.
func TestPassingProgramIsAttachedForTheRun(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	do(t, nil, func() error { return n.gateway.SetGRO("eth0", false) })
	seen := false
	r, err := Run(t.Context(), config("198.19.0.2:9"), egress(t, n, "198.19.0.2"), &Port{n.server, "eth0"},
		func(packets.Progress) { seen = seen || attached(t, n.gateway, "eth0") })
	if err != nil {
		t.Fatal(err)
	}
	wantNotes(t, r, "eth0 had no XDP program and would have dropped the frames")
	if !seen || attached(t, n.gateway, "eth0") {
		t.Errorf("attached during the run: %t, after it: %t", seen, attached(t, n.gateway, "eth0"))
	}
}

// TestForeignProgramStays: a program attached by another process is left alone.
func TestForeignProgramStays(t *testing.T) {
	n := newNetwork(t)
	n.forward(t)
	from := egress(t, n, "198.19.0.2")
	f, err := Forward("eth0", egressOf(t, n.gateway, "198.19.0.2")) // stands for any program that takes the frames
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := Run(t.Context(), config("198.19.0.2:9"), from, &Port{n.server, "eth0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Received != r.Sent || len(r.Notes) != 0 || !attached(t, n.gateway, "eth0") {
		t.Errorf("%+v, notes %q", r.Delivery, r.Notes)
	}
	if err := f.Close(); err != nil || attached(t, n.gateway, "eth0") {
		t.Errorf("the forwarder stays after Close: %v", err)
	}
}
