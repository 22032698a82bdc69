package apply

import (
	"context"
	"errors"
	"testing"
)

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
