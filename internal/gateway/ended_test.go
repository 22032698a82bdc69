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
