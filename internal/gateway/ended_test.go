package gateway

import (
	"context"
	"errors"
	"testing"
)

// TestUnlessEnded: a signal ends natkit also while it is busy with a large file.
func TestUnlessEnded(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	busy := make(chan struct{})
	defer close(busy)
	_, err := UnlessEnded(ctx, func() (int, error) { stop(); <-busy; return 1, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n, err := UnlessEnded(t.Context(), func() (int, error) { return 1, nil }); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestPlanEndsOnASignal: a command that was signalled to end reads no file.
func TestPlanEndsOnASignal(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := (Host{}).Preview(ctx, wish("not: a gateway")); !errors.Is(err, context.Canceled) {
		t.Errorf("Preview: %v", err)
	}
	if _, err := (Host{}).Prepare(ctx, wish("not: a gateway")); !errors.Is(err, context.Canceled) {
		t.Errorf("Prepare: %v", err)
	}
}
