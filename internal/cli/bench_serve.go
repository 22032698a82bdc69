package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/packet"
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
		end, err := packet.ParseEnd(b.expected)
		if err != nil {
			return cfg, usageError{fmt.Errorf("--expect-source: %w", err)}
		}
		cfg.Expected = &end
	}
	return cfg, nil
}
