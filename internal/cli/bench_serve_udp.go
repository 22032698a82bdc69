package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
)

// benchServeSchema names the JSON form of what bench serve --udp saw.
const benchServeSchema = "natkit.bench-serve/1"

func (b *benchServe) runUDP(cmd *cobra.Command, env *Env) error {
	cfg, err := b.udpConfig()
	if err != nil {
		return err
	}
	return b.inNamespace(cmd, func(ns *netns.Handle) error {
		progress := env.progress()
		cfg.Netns = ns
		cfg.Ready = func(a netip.AddrPort) {
			out := env.Stdout
			if b.json { // the document comes there
				out = env.Stderr
			}
			fmt.Fprintf(out, "answering UDP at %v\n", a)
		}
		cfg.Progress = func(p load.Progress) {
			progress.Update("%.0f s: %d answered, %.0f datagrams/s, %d not from where expected",
				p.Elapsed.Seconds(), p.Completed, p.PerSecond, p.Failed)
		}
		served, err := loadrun.ServeUDP(cmd.Context(), cfg)
		progress.Clear()
		switch {
		case err != nil:
			return err
		case b.json:
			return report.JSON(env.Stdout, struct {
				Schema  string `json:"schema"`
				Version string `json:"natkit_version"`
				*udp.Served
			}{benchServeSchema, env.Version, served})
		}
		return writeServedText(fitted{env}, served)
	})
}

// writeServedText renders what a server of datagrams saw.
func writeServedText(w io.Writer, s *udp.Served) error {
	var b bytes.Buffer
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-24s%s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("Datagrams received", "%d", s.Received)
	line("Answered", "%d", s.Answered)
	if s.Public > 0 {
		line("Not answered", "%d from public addresses (see --i-own-this-network)", s.Public)
	}
	if s.Foreign > 0 {
		line("Not answered", "%d that were no requests of bench udp", s.Foreign)
	}
	for _, f := range s.Failures {
		line("Refused on sending", "%s %d", f.Reason, f.Count)
	}
	line("No room in sockets", "%d", s.SocketDrops)
	if s.Expected != nil {
		line("Misdelivered", "%d", s.Misdelivered)
		for _, stray := range s.MisdeliveredFrom {
			line("  from", "%v %d", stray.From, stray.Count)
		}
		line("Different senders", "%d", s.Sources)
	}
	if n := float64(s.Received); n > 0 {
		line("System calls", "%.2f per datagram", float64(s.SystemCalls)/n)
		line("CPU", "%.2f us per datagram", 1e6*(s.CPU.UserSeconds+s.CPU.SystemSeconds)/n)
	}
	_, err := w.Write(b.Bytes())
	return err
}
