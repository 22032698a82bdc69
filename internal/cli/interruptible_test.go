package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestInterruptibleReadsAll(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 3*chunkSize/16+5)
	for name, from := range map[string]io.Reader{
		"at once":         bytes.NewReader(want),
		"halves":          iotest.HalfReader(bytes.NewReader(want)),
		"error with data": iotest.DataErrReader(bytes.NewReader(want)),
	} {
		got, err := io.ReadAll(newInterruptible(t.Context(), from))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	cause := errors.New("cause")
	if _, err := io.ReadAll(newInterruptible(t.Context(), iotest.ErrReader(cause))); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestInterruptibleEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	silent, w := io.Pipe()
	defer w.Close()
	go cancel()
	if _, err := newInterruptible(ctx, silent).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
