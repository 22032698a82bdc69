package cli

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	loadrun "github.com/natkit/natkit/internal/load/run"
)

func newBenchServe(env *Env) *cobra.Command {
	var where target
	var listen string
	var workers int
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "answer HTTP requests with a small page until interrupted",
		Long: `Answer every HTTP/1.0 and 1.1 request with the same small page, until interrupted.
A connection is closed after each response, unless the request asks for keep-alive.

Needs no privilege; --netns and --pid need CAP_SYS_ADMIN to enter the namespace,
ports below 1024 CAP_NET_BIND_SERVICE.`,
		Example: `  natkit bench serve
  natkit bench serve --listen 198.18.0.2:80 --netns server`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := netip.ParseAddrPort(listen)
			if err != nil {
				return usagef("--listen %q: must be ADDRESS:PORT, such as 127.0.0.1:8080 or [::]:80", listen)
			}
			if workers < 0 {
				return usagef("--workers %d: must not be negative", workers)
			}
			ns, err := where.open(cmd)
			if err != nil {
				return err
			}
			if ns != nil {
				defer ns.Close()
			}
			return loadrun.Serve(cmd.Context(), loadrun.ServeConfig{
				Listen: at, Netns: ns, Workers: workers,
				Ready: func(a netip.AddrPort) {
					// In a URL the % before an interface is escaped (RFC 6874, 2).
					fmt.Fprintf(env.Stdout, "listening on http://%s/\n", strings.ReplaceAll(a.String(), "%", "%25"))
				},
			})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "where to listen, `ADDR:PORT`; port 0 takes a free one")
	cmd.Flags().IntVar(&workers, "workers", 0, "threads (0: one per CPU)")
	where.addFlags(cmd)
	return cmd
}
