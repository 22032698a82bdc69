package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// forwardingOff says what an undo takes from others that translate here: programs that
// came after natkit found forwarding on, as Docker does, and did not turn it on.
func forwardingOff(h run.Host, tx *journal.Transaction) string {
	var off []string
	for _, c := range tx.Changes {
		forwards := c.Kind == tune.Sysctl && slices.Contains([]string{run.Forward4, run.Forward6}, c.Target)
		if forwards && c.State == journal.Undone && c.Note == "" && c.Before == "0" && c.After != "0" {
			off = append(off, c.Target)
		}
	}
	others, err := h.OthersNAT()
	if err != nil || len(off) == 0 || len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("forwarding is off again, as it was before natkit; there are rules of NAT in %s, which may need it: 'sysctl -w %s=1'",
		report.Clean(strings.Join(others, ", ")), strings.Join(off, "=1 "))
}
