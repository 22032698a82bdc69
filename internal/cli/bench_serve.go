package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// benchServe is what the command line of bench serve says.
type benchServe struct {
	target
	listen, udp string
	expected    string
	workers     int
	ownNetwork  bool
	json        bool
}

func newBenchServe(env *Env) *cobra.Command {
	b := &benchServe{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "answer HTTP requests with a small page, or UDP datagrams with their payload, until interrupted",
		Long: `Answer every HTTP/1.0 and 1.1 request with the same small page, until interrupted.
A connection is closed after each response, unless the request asks for keep-alive.

With --udp answer the datagrams of 'natkit bench udp' instead, each with its own payload
and from the address that it was sent to, and no others: two servers that answered
everything could be made to answer each other. When interrupted, it says how many there
were, and how many found no room in its sockets. With --expect-source it also counts
those whose sender is not what a NAT on the way should make of it, and how many
different senders there were. Senders at public addresses are counted and not
answered, unless --i-own-this-network says that those are yours: anybody can forge them.

Needs no privilege; --netns and --pid need CAP_SYS_ADMIN to enter the namespace,
ports below 1024 CAP_NET_BIND_SERVICE.`,
		Example: `  natkit bench serve
  natkit bench serve --listen 198.18.0.2:80 --netns server
  natkit bench serve --udp 198.18.0.2:9000
  natkit bench serve --udp [::]:9000 --netns server --json
  natkit bench serve --udp 198.18.1.2:9000 --expect-source 198.18.1.1:1024-2047`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd, env) },
	}
	f := cmd.Flags()
	f.StringVar(&b.listen, "listen", "127.0.0.1:8080", "where to listen, `ADDR:PORT`; port 0 takes a free one")
	f.StringVar(&b.udp, "udp", "", "answer UDP datagrams at `ADDR:PORT`, not HTTP requests; port 0 takes a free one")
	cmd.MarkFlagsMutuallyExclusive("listen", "udp")
	f.StringVar(&b.expected, "expect-source", "", "with --udp: count datagrams that do not come from `PREFIX[:PORTS]` as misdelivered")
	f.IntVar(&b.workers, "workers", 0, "threads (0: one per CPU)")
	addOwnNetwork(cmd, &b.ownNetwork)
	addJSON(cmd, &b.json, benchServeSchema)
	b.target.addFlags(cmd)
	return cmd
}

func (b *benchServe) run(cmd *cobra.Command, env *Env) error {
	if b.workers < 0 {
		return usagef("--workers %d: must not be negative", b.workers)
	}
	overUDP := cmd.Flags().Changed("udp")
	switch {
	case !overUDP && (b.expected != "" || b.json || b.ownNetwork):
		return usagef("--expect-source, --i-own-this-network and --json are about datagrams: give --udp")
	case overUDP:
		return b.runUDP(cmd, env)
	}
	at, err := netip.ParseAddrPort(b.listen)
	if err != nil {
		return usagef("--listen %q: must be ADDRESS:PORT, such as 127.0.0.1:8080 or [::]:80", b.listen)
	}
	return b.inNamespace(cmd, func(ns *netns.Handle) error {
		return loadrun.Serve(cmd.Context(), loadrun.ServeConfig{
			Listen: at, Netns: ns, Workers: b.workers,
			Ready: func(a netip.AddrPort) {
				// In a URL the % before an interface is escaped (RFC 6874, 2).
				fmt.Fprintf(env.Stdout, "listening on http://%s/\n", strings.ReplaceAll(a.String(), "%", "%25"))
			},
		})
	})
}

func (b *benchServe) inNamespace(cmd *cobra.Command, serve func(*netns.Handle) error) error {
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	return errors.Join(serve(ns), ns.Close())
}

// udpConfig checks what is said about datagrams.
func (b *benchServe) udpConfig() (loadrun.ServeUDPConfig, error) {
	cfg := loadrun.ServeUDPConfig{Workers: b.workers, OwnNetwork: b.ownNetwork}
	var err error
	if cfg.Listen, err = netip.ParseAddrPort(b.udp); err != nil {
		return cfg, usagef("--udp %q: must be ADDRESS:PORT, such as 198.18.0.2:9000 or [::]:9000", b.udp)
	}
	if b.expected != "" {
		end, err := packets.ParseEnd(b.expected)
		if err != nil {
			return cfg, usageError{fmt.Errorf("--expect-source: %w", err)}
		}
		cfg.Expected = &end
	}
	return cfg, nil
}

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
