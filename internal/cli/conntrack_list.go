package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// conntrackCommands are the commands below the verb conntrack.
func conntrackCommands(env *Env) []*cobra.Command {
	return []*cobra.Command{newConntrackList(env), newConntrackCount(env), newConntrackEvents(env), newConntrackDelete(env)}
}

// conntrackLister is conntrack list.
type conntrackLister struct {
	env     *Env
	entries entries
	filter  filterFlags
	form    entryForm
}

func newConntrackList(env *Env) *cobra.Command {
	l := &conntrackLister{env: env}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the connections, as conntrack -L does, as JSON lines or CSV",
		Long: `Print a line for each connection, in the format of conntrack-tools
('conntrack -L -o extended'), as JSON (one document per line) or CSV. The filters
are those of conntrack(8), which all must hold; without one it prints everything,
IPv4 and IPv6.

The kernel filters where it can (address family, mark, status, zone; protocol and
ports of TCP and UDP; single addresses of IPv4, also those put in place by NAT), natkit
the rest. Older kernels know less of it.

The table lives while it is read: a connection that is made or ends meanwhile may
be listed or not. Where its hash is resized meanwhile, that is said on stderr.

It needs CAP_NET_ADMIN, except with --from.`,
		Example: `  sudo natkit conntrack list -p tcp --state SYN_SENT --status UNREPLIED
  sudo natkit conntrack list --netns gateway --src-nat=203.0.113.5 --csv > translated.csv
  sudo natkit conntrack list --json | jq -r .orig_src | sort | uniq -c
  natkit conntrack list --from table.gz -d 198.18.0.0/16`,
		Args:              l.filter.args,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	l.entries.addFlags(cmd)
	addFilterFlags(cmd, &l.filter)
	l.form.addFlags(cmd, "extended")
	return cmd
}

func (l *conntrackLister) run(cmd *cobra.Command) error {
	if err := l.form.check(cmd); err != nil {
		return err
	}
	l.filter.noteNAT(l.env)
	w := newLineWriter(l.env.Stdout)
	// Progress would stand between the lines where both go to the terminal.
	env := *l.env
	env.StderrTerminal = env.StderrTerminal && !env.StdoutTerminal
	l.form.now(time.Now())
	l.form.begin(w)
	_, err := l.entries.each(cmd, &env, &l.filter.filter, func(e *conntrack.Entry) error {
		w.buf = l.form.append(w.buf, e)
		return w.endLine()
	})
	if flushErr := w.flush(); err == nil {
		err = flushErr
	}
	return ended(err)
}

// ended is nil where the reader of stdout has had enough.
func ended(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// lineWriter gathers lines, to write many at once.
type lineWriter struct {
	to  io.Writer
	buf []byte
}

const lineBuffer = 64 << 10

func newLineWriter(to io.Writer) *lineWriter {
	return &lineWriter{to: to, buf: make([]byte, 0, lineBuffer+4096)}
}

// endLine ends the line that was appended to buf.
func (w *lineWriter) endLine() error {
	w.buf = append(w.buf, '\n')
	if len(w.buf) < lineBuffer {
		return nil
	}
	return w.flush()
}

func (w *lineWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.to.Write(w.buf)
	w.buf = w.buf[:0]
	if err != nil {
		return fmt.Errorf("write the list: %w", err)
	}
	return nil
}
