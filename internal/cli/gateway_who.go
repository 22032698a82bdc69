package cli

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/natlog/files"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

const gatewayWhoSchema = "natkit.gateway-who/1"

// gatewayWho is the verb gateway who.
type gatewayWho struct {
	env    *Env
	target target
	file   string
	logs   []string
	at     moment
	inside bool
	doc    report.GatewayWho
	query  natlog.Query
}

func newGatewayWho(env *Env) *cobra.Command {
	w := &gatewayWho{env: env}
	cmd := &cobra.Command{
		Use:   "who ADDRESS [PROTOCOL]",
		Short: "find who had a NAT address and port, by rules, table or logs",
		Long: `ADDRESS may have a port: 203.0.113.9:40001, [2001:db8::1]:40001. Find the host inside that has, or
had, it outside: by the rules of the
gateway in force, or of --file, where these give each host its own; else by the connection
table, which has those of now; and by the logs of 'natkit gateway log' in each --log (JSON lines,
also gzipped or zstd, or Parquet of the table nat_log). It says which of these answered, and lists all
owners where there are several. With --inside ADDRESS is a host inside, and the answer is what it has
or could have outside.

A log answers for a time only while it was written: what began before a gap, or before its end, is
possible after it, and no more, unless the log that follows found it still there. Each file of a log can be read
on its own. By a log of readings of the table (--by table) nobody and nobody else are never for sure.

Exit codes: 0 one owner, 1 error, 2 usage, 3 none or several, 4 it could not be answered for sure.`,
		Example: `  sudo natkit gateway who 203.0.113.9:40001 tcp
  natkit gateway who 203.0.113.9:40001 --at 10:15 --log /var/log/natkit
  natkit gateway who --inside 10.0.0.7 --file gateway.yaml`,
	}
	w.target.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error { return w.run(ctx, ns, args) })
	f := cmd.Flags()
	f.Var(into(&w.file, notEmpty("a gateway file")), "file", "by the rules of this gateway `FILE`, not those in force")
	logs := &value{kind: repeatable, set: func(text string) error {
		if text == "" {
			return fmt.Errorf("must be a directory or a file")
		}
		w.logs = append(w.logs, text)
		return nil
	}}
	f.Var(logs, "log", "read the NAT logs in this `DIR` or file; may be repeated")
	f.Var(into(&w.at, parseMoment), "at", "at this `TIME`, of logs: 10:15, 2026-11-20T10:15:00, -2h; without, now and all times of the logs")
	f.BoolVar(&w.inside, "inside", false, "show what the host inside with this ADDRESS has outside")
	env.addJSON(cmd, gatewayWhoSchema)
	return cmd
}

func (w *gatewayWho) run(ctx context.Context, ns *netns.Handle, args []string) (err error) {
	if w.query, err = parseWho(args); err != nil {
		return usagef("%v", err)
	}
	now := time.Now()
	at := w.at.resolve(time.Time{}, now, now)
	w.doc = report.GatewayWho{Schema: gatewayWhoSchema, Address: w.query.Address, Port: w.query.Port, Inside: w.inside, Owners: []report.NATOwner{}, Sources: []report.WhoSource{}}
	if w.query.Protocol != 0 {
		w.doc.Protocol = nat.ProtocolName(w.query.Protocol)
	}
	if !at.IsZero() {
		w.doc.At = &at
	}
	w.byRules(ctx, ns, at)
	if at.IsZero() && onLinux && w.file == "" {
		w.byTable(ctx, ns) // it also has what other programs' rules give, or gave before the rules were there
	}
	for _, log := range w.logs {
		if err := w.byLog(ctx, log, at); err != nil {
			return err
		}
	}
	if !at.IsZero() && len(w.logs) == 0 && w.file == "" && len(w.doc.Owners) == 0 {
		w.doc.Sources = append(w.doc.Sources, report.WhoSource{Kind: "log", Doubt: "no-log", Note: "none is given (--log)"})
	}
	w.doc.Settle()
	if err := w.env.print(w.doc); err != nil {
		return err
	}
	switch w.doc.Answer {
	case report.WhoOne:
		return nil
	case report.WhoUnknown:
		return errIncomplete
	}
	return errFindings
}

// parseWho reads an address with or without a port, and a protocol.
func parseWho(args []string) (q natlog.Query, err error) {
	if a, err := netip.ParseAddr(strings.Trim(args[0], "[]")); err == nil {
		q.Address = a.Unmap()
	} else if both, err := netip.ParseAddrPort(args[0]); err == nil && both.Port() > 0 {
		q.Address, q.Port = both.Addr().Unmap(), both.Port()
	} else {
		return q, fmt.Errorf("%q: must be an address, or one with a port: 203.0.113.9:40001, [2001:db8::1]:40001", args[0])
	}
	if q.Address.Zone() != "" {
		return q, fmt.Errorf("%q: an address of a link is no NAT's", args[0])
	}
	if len(args) == 2 {
		q.Protocol, err = nat.ParseProtocol(args[1])
	}
	return q, err
}

// byRules asks the rules. What was in force before them is not known.
func (w *gatewayWho) byRules(ctx context.Context, ns *netns.Handle, at time.Time) {
	s := report.WhoSource{Kind: "rules", Name: w.file}
	plan, facts, err := w.plan(ctx, ns)
	switch {
	case err != nil:
		s.Error = err.Error()
	case plan == nil:
		s.Note = "no gateway that natkit has the plan of is in force here; --file names one"
	default:
		s.Read = true
		found, unknown := natlog.Owners(plan, facts, w.query)
		if w.inside {
			found, unknown = natlog.Outward(plan, facts, w.query.Address)
		}
		newer := ""
		if !at.IsZero() && w.file == "" {
			newer = rulesNewer(rulesSince(w.env, ns), at)
		}
		for _, b := range found {
			o := ownerByRule(&b, w.inside)
			if newer != "" {
				o.Certain, o.Doubt = false, report.DoubtRulesNewer
				s.Doubt, s.Note = report.DoubtRulesNewer, newer
			}
			w.doc.Owners = append(w.doc.Owners, o)
			s.Found++
		}
		if len(unknown) > 0 && len(found) == 0 {
			s.Doubt = "unknown-addresses"
			s.Note = fmt.Sprintf("%s gives an address of an interface that has none here; ask on the gateway itself", unknown[0])
		}
	}
	w.doc.Sources = append(w.doc.Sources, s)
}

// rulesNewer says why rules that were applied at a time do not show what was at another one; empty where they do.
func rulesNewer(since, at time.Time) string {
	switch {
	case since.IsZero():
		return "since when the rules are in force is not known; give --log, or the file of that time (--file)"
	case at.Before(since):
		return fmt.Sprintf("the rules are in force since %s only; give --log, or the file of that time (--file)", since.Local().Format("2006-01-02 15:04:05 MST"))
	}
	return ""
}

func (w *gatewayWho) plan(ctx context.Context, ns *netns.Handle) (*gateway.Plan, *gateway.Facts, error) {
	if w.file == "" {
		return planInForce(ctx, w.env, ns)
	}
	file, err := readGateway(ctx, w.env, w.file)
	if err != nil {
		return nil, nil, err
	}
	var facts gateway.Facts
	if onLinux {
		if facts, err = gatewayFacts(ctx, ns, &file.Config); err != nil {
			return nil, nil, err
		}
	}
	plan, err := gateway.Compile(&file.Config, facts)
	return plan, &facts, err
}

func ownerByRule(b *natlog.ByRule, inside bool) report.NATOwner {
	o := report.NATOwner{Source: "rules", Rule: b.Rule.String(), Inside: b.Inside.String(), InsidePort: b.InsidePort, Outside: b.Outside.String(),
		Incoming: b.Incoming, Certain: b.IsExact() && !b.Incoming, Text: b.Text}
	if inside {
		o.Certain = len(b.Outside) == 1 && b.Outside[0].IsSingle()
	}
	if b.Ports != (nat.Ports{}) {
		o.Ports = b.Ports.String()
	}
	return o
}

// byLog reads a log.
func (w *gatewayWho) byLog(ctx context.Context, path string, at time.Time) error {
	h := natlog.NewHistory(w.query, w.inside, at)
	found, err := files.Read(ctx, path, w.query.Address, h.Add)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	h.Tables = found.Tables > 0
	s := report.WhoSource{Kind: "log", Name: path, Read: err == nil, Files: found.Files, Lost: h.Lost, More: h.More}
	if err != nil {
		s.Error = err.Error()
	}
	var unread []string
	if found.Skipped > 0 {
		unread = append(unread, units.Plural(found.Skipped, "line is", "lines are")+" none of a NAT log")
	}
	if found.Others > 0 {
		unread = append(unread, units.Plural(found.Others, "name is a link or no file", "names are links or no files")+", and not read")
	}
	s.Note = strings.Join(unread, "; ")
	if !h.First.IsZero() {
		s.From, s.To = &h.First, &h.Last
	}
	doubt, from, to := h.Covers()
	s.Gaps, _, _ = h.Gaps()
	all := h.Held()
	owners := make([]report.NATOwner, len(all))
	for i := range all {
		owners[i] = w.heldBy(&all[i], "log")
	}
	w.doc.Owners, s.Found = append(w.doc.Owners, owners...), len(all)
	for i, held := range all {
		if owners[i].InDoubt(owners) && (doubt == "" || held.Doubt == natlog.ClockStepped) {
			if doubt = held.Doubt; doubt == natlog.Gap {
				from, to = h.GapAfter(&held)
			}
		}
	}
	switch {
	case doubt != "":
	case !at.IsZero():
		doubt = h.Omits()
	case s.Found == 0 && h.Lost > 0:
		doubt = natlog.LostRecords
	case s.Found == 0 && h.IsOfReadings():
		doubt = natlog.BetweenReadings
	case s.Found == 0 && h.IsOfRows():
		doubt = natlog.RowsAlone
	}
	if doubt == "" && found.Skipped+found.Others > 0 {
		doubt = natlog.Unread
	}
	s.Doubt = string(doubt)
	if !from.IsZero() {
		s.GapFrom = &from
	}
	if !to.IsZero() {
		s.GapTo = &to
	}
	w.doc.Sources = append(w.doc.Sources, s)
	return nil
}

// heldBy is an owner as a connection shows it.
func (w *gatewayWho) heldBy(held *natlog.Held, source string) report.NATOwner {
	r := &held.Record
	inside, outside := w.query.Owner(r), netip.AddrPortFrom(w.query.Address, w.query.Port)
	peer := r.Dst
	if w.inside {
		inside, outside = netip.AddrPortFrom(w.query.Address, r.Src.Port()), w.query.Outside(r)
	}
	if !w.inside && inside == r.Src && r.NAT.IsValid() {
		outside = r.NAT
	}
	incoming := inside == r.Server && r.Server.IsValid() || w.inside && r.Src.Addr() != w.query.Address
	if incoming {
		peer = r.Src
		if outside = r.Dst; w.inside {
			inside = r.Server
		}
	}
	o := report.NATOwner{Source: source, Inside: inside.Addr().String(), InsidePort: inside.Port(), Outside: outside.Addr().String(), OutsidePort: outside.Port(),
		Protocol: nat.ProtocolName(r.Protocol), Peer: peer.Addr().String(), PeerPort: peer.Port(), Incoming: incoming, Certain: held.Doubt == "", Doubt: string(held.Doubt), Node: r.Node, Zone: r.Zone}
	if incoming {
		o.Zone = r.ReplyZone
	}
	if !held.Since.IsZero() {
		o.Since = &held.Since
	}
	if !held.Until.IsZero() {
		o.Until = &held.Until
	}
	return o
}
