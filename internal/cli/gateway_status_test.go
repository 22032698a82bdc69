package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway/observe"
)

func TestWatchOutlivesFailedLooks(t *testing.T) {
	hindered := errors.New("hindered")
	for _, tt := range []struct {
		name   string
		fails  string // f: a sample that fails
		looks  int
		warned int
		failed bool
	}{
		{"the first one", "f", 1, 0, true},
		{"one between", ".f.", 4, 1, false},
		{"one after the other", ".ffff.ffff", 11, 8, false},
		{"too many", ".fffff...", 6, 4, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stdout, stderr bytes.Buffer
			s := &gatewayStatus{env: &Env{Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }}, interval: time.Millisecond}
			looks := 0
			err := s.watchOn(ctx, func(context.Context) (*observe.Status, error) {
				looks++
				switch {
				case looks > len(tt.fails):
					cancel()
				case tt.fails[looks-1] == 'f':
					return nil, hindered
				}
				return &observe.Status{}, nil
			})
			if warned := strings.Count(stderr.String(), "natkit: hindered; the next sample is in 1ms\n"); looks != tt.looks || warned != tt.warned || errors.Is(err, hindered) != tt.failed {
				t.Errorf("%d samples, %d warnings, error %v: want %d, %d, %t", looks, warned, err, tt.looks, tt.warned, tt.failed)
			}
		})
	}
}

func TestClippedToTheScreen(t *testing.T) {
	for _, tt := range []struct {
		frame string
		rows  int
		want  string
	}{
		{"a\nb\nc\n", 0, "a\nb\nc\n"},
		{"a\nb\nc\n", 4, "a\nb\nc\n"},
		{"a\nb\nc\n", 3, "a\n… 2 more lines in a larger window\n"},
		{"a\nb\nc\nd\n", 3, "a\n… 3 more lines in a larger window\n"},
		{"", 5, ""},
	} {
		if got := string(clipped([]byte(tt.frame), tt.rows)); got != tt.want {
			t.Errorf("%q in %d rows: %q, want %q", tt.frame, tt.rows, got, tt.want)
		}
	}
}
