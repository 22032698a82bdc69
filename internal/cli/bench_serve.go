package cli

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"strings"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// benchServe is bench serve.
type benchServe struct {
	benchVerb
	listen, udp string
	expected    packets.End
	workers     int
	ownNetwork  bool
}

func newBenchServe(env *Env) *cobra.Command {
	b := &benchServe{benchVerb: benchVerb{env: env, schema: report.ServedSchema}}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "answer HTTP requests with a small page, or echo UDP datagrams, until interrupted",
		Long: `Answer every HTTP/1.0 and 1.1 request with the same small page, until interrupted.
A connection is closed after each response, unless the request asks for keep-alive.

With --udp echo the datagrams of 'natkit bench udp' instead, from the address that
each was sent to, and no others: two servers that answered everything could be made to
answer each other. When interrupted, it prints how many there were, and how many found
no room in its sockets. With --expect-source it also counts datagrams whose sender is
not what a NAT on the way should make of it, and the number of different senders.
Datagrams from public addresses are counted and not answered without
--i-own-this-network: anybody can forge them.

Requires no privilege; --netns and --pid require CAP_SYS_ADMIN to enter the namespace,
ports below 1024 CAP_NET_BIND_SERVICE.`,
		Example: `  natkit bench serve
  natkit bench serve --listen 198.18.0.2:80 --netns server
  natkit bench serve --udp 198.18.0.2:9000
  natkit bench serve --udp [::]:9000 --netns server --json
  natkit bench serve --udp 198.18.1.2:9000 --expect-source 198.18.1.1:1024-2047`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&b.listen, "listen", "127.0.0.1:8080", "where to listen, `ADDR:PORT`; port 0 takes a free one")
	f.StringVar(&b.udp, "udp", "", "echo UDP datagrams at `ADDR:PORT`, instead of HTTP; port 0 takes a free one")
	cmd.MarkFlagsMutuallyExclusive("listen", "udp")
	f.Var(into(&b.expected, packets.ParseEnd), "expect-source", "with --udp: count datagrams that do not come from `PREFIX[:PORTS]` as misdelivered")
	f.Var(natural(&b.workers), "workers", "threads (0: one per CPU)")
	addOwnNetwork(cmd, &b.ownNetwork)
	b.addJSON(cmd)
	return cmd
}

func (b *benchServe) run(cmd *cobra.Command) error {
	overUDP := cmd.Flags().Changed("udp")
	for _, name := range []string{"expect-source", "i-own-this-network", "json"} {
		if cmd.Flags().Changed(name) && !overUDP {
			return usagef("--%s requires --udp", name)
		}
	}
	name, text := "--listen ", b.listen
	if overUDP {
		name, text = "--udp ", b.udp
	}
	at, err := parseAddrPort(name, text)
	if err != nil {
		return err
	}
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	if overUDP {
		cfg := loadrun.ServeUDPConfig{Listen: at, Netns: ns, Workers: b.workers, OwnNetwork: b.ownNetwork}
		if cmd.Flags().Changed("expect-source") {
			cfg.Expected = &b.expected
		}
		return errors.Join(b.serveUDP(cmd, cfg), ns.Close())
	}
	if b.workers > 0 {
		runtime.GOMAXPROCS(b.workers)
	}
	return errors.Join(loadrun.Serve(cmd.Context(), loadrun.ServeConfig{Listen: at, Netns: ns, Ready: func(a netip.AddrPort) {
		// In a URL the % before an interface is escaped (RFC 6874, 2).
		fmt.Fprintf(b.env.Stdout, "listening on http://%s/\n", strings.ReplaceAll(a.String(), "%", "%25"))
	}}), ns.Close())
}

func (b *benchServe) serveUDP(cmd *cobra.Command, cfg loadrun.ServeUDPConfig) error {
	progress := b.env.progress()
	cfg.Ready = func(a netip.AddrPort) {
		out := b.env.Stdout
		if b.env.asJSON { // the document comes there
			out = b.env.Stderr
		}
		fmt.Fprintf(out, "answering UDP at %v\n", a)
	}
	cfg.Progress = func(p load.Progress) {
		progress.Update("%.0f s: %d answered, %.0f datagrams/s, %d misdelivered", p.Elapsed.Seconds(), p.Completed, p.PerSecond, p.Failed)
	}
	served, err := loadrun.ServeUDP(cmd.Context(), cfg)
	progress.Clear()
	if err != nil {
		return err
	}
	return b.print(nil, report.LoadHead{}, served, func(w io.Writer, style report.Style) error { return report.Served(w, style, served) })
}
