package cli

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/nat"
	"github.com/spf13/cobra"
)

// filterFlags choose entries of a connection table, by the flags of conntrack(8).
type filterFlags struct {
	filter match.Filter
	given  []string
	// any are the flags of NAT that were given without a value.
	any []anyNAT
}

// anyNAT is a flag that asks for any translation.
type anyNAT struct {
	name string
	to   *match.NAT
}

// addFilterFlags adds the flags that choose entries, with those of their short
// names and aliases that conntrack(8) has.
func addFilterFlags(cmd *cobra.Command, f *filterFlags) {
	f.addTuples(cmd)
	f.add(cmd, "proto", "p", "of protocol `NAME` or number: tcp, udp, …", f.proto, "protonum")
	f.add(cmd, "family", "f", "of address `FAMILY`: ipv4 or ipv6", f.family)
	f.add(cmd, "state", "", "in one of these `STATES` of TCP, SCTP or DCCP, separated by commas", f.states)
	f.add(cmd, "status", "u", "with all of these `BITS`, separated by commas: ASSURED, UNREPLIED, OFFLOAD, …", f.status)
	f.add(cmd, "mark", "m", "of `MARK[/MASK]`", f.mark)
	f.add(cmd, "label", "l", "with all of these `LABELS`, numbers or names, separated by commas", f.labels)
	f.add(cmd, "zone", "w", "of conntrack zone `N` in both directions", u16(&f.filter.Zone))
	f.add(cmd, "orig-zone", "", "of conntrack zone `N` in the original direction", u16(&f.filter.Orig.Zone))
	f.add(cmd, "reply-zone", "", "of conntrack zone `N` in the reply direction", u16(&f.filter.Reply.Zone))
	f.add(cmd, "id", "i", "of this `ID`, as --output id shows it", f.id)
	f.addNAT(cmd, "src-nat", "n", "whose source was translated (=`TO`: to this address, prefix, ADDRESS:PORT or :PORT)", &f.filter.SrcNAT)
	f.addNAT(cmd, "dst-nat", "g", "whose destination was translated (=`TO`)", &f.filter.DstNAT)
	f.addNAT(cmd, "any-nat", "j", "whose source or destination was translated (=`TO`)", &f.filter.AnyNAT)
	f.complete(cmd)
}

func (f *filterFlags) addTuples(cmd *cobra.Command) {
	orig, reply := &f.filter.Orig, &f.filter.Reply
	f.add(cmd, "orig-src", "s", "from `ADDRESS[/PREFIX]`, before any translation", prefix(&orig.Src), "src")
	f.add(cmd, "orig-dst", "d", "to `ADDRESS[/PREFIX]`, before any translation", prefix(&orig.Dst), "dst")
	f.add(cmd, "reply-src", "r", "whose answers come from `ADDRESS[/PREFIX]`", prefix(&reply.Src))
	f.add(cmd, "reply-dst", "q", "whose answers go to `ADDRESS[/PREFIX]`", prefix(&reply.Dst))
	f.add(cmd, "orig-port-src", "", "from `PORT` (or GRE key)", u16(&orig.SrcPort), "sport")
	f.add(cmd, "orig-port-dst", "", "to `PORT` (or GRE key)", u16(&orig.DstPort), "dport")
	f.add(cmd, "reply-port-src", "", "whose answers come from `PORT`", u16(&reply.SrcPort))
	f.add(cmd, "reply-port-dst", "", "whose answers go to `PORT`", u16(&reply.DstPort))
	f.add(cmd, "icmp-type", "", "of this ICMP `TYPE` number", u8(&f.filter.ICMPType))
	f.add(cmd, "icmp-code", "", "of this ICMP `CODE` number", u8(&f.filter.ICMPCode))
	f.add(cmd, "icmp-id", "", "of this ICMP `ID`", u16(&f.filter.ICMPID))
}

// flagFunc is a flag whose value is parsed where it is given.
type flagFunc struct {
	text string
	set  func(string) error
}

func (v *flagFunc) String() string { return v.text }
func (v *flagFunc) Type() string   { return "string" }
func (v *flagFunc) Set(text string) error {
	v.text = text
	return v.set(text)
}

func (f *filterFlags) add(cmd *cobra.Command, name, short, usage string, set func(string) error, aliases ...string) {
	v := &flagFunc{set: func(text string) error {
		f.given = append(f.given, strings.TrimSuffix("--"+name+" "+text, " "+anyTranslation))
		return set(text)
	}}
	if len(aliases) > 0 {
		usage += "; also --" + strings.Join(aliases, ", --")
	}
	cmd.Flags().VarP(v, name, short, usage)
	for _, alias := range aliases {
		cmd.Flags().Var(v, alias, usage)
		if err := cmd.Flags().MarkHidden(alias); err != nil {
			panic(err) // there is no such flag: a mistake above
		}
	}
}

// anyTranslation is the value of a flag of NAT that is given without one.
const anyTranslation = "any"

func (f *filterFlags) addNAT(cmd *cobra.Command, name, short, usage string, to *match.NAT) {
	f.add(cmd, name, short, usage, func(text string) (err error) {
		if text == anyTranslation {
			f.any = append(f.any, anyNAT{name, to})
			to.On = true
			return nil
		}
		*to, err = match.ParseNAT(text)
		return err
	})
	cmd.Flags().Lookup(name).NoOptDefVal = anyTranslation
}

// args takes the address behind a flag of NAT as conntrack(8) does, without a sign
// of equality; other words are too many.
func (f *filterFlags) args(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || len(f.any) != 1 {
		return cobra.NoArgs(cmd, args)
	}
	to, err := match.ParseNAT(args[0])
	if err != nil {
		return fmt.Errorf("--%s: %w", f.any[0].name, err)
	}
	*f.any[0].to = to
	f.given = append(f.given, args[0])
	return nil
}

// noteNAT says what a bare -n chooses: elsewhere it is --numeric.
func (f *filterFlags) noteNAT(env *Env) {
	for _, any := range f.any {
		if any.name == "src-nat" {
			env.note("only connections with a translated source: -n is --src-nat here, as in conntrack(8); addresses are numbers anyway")
		}
	}
}

func (f *filterFlags) proto(text string) error {
	p, err := nat.ParseProtocol(text)
	f.filter.Proto = match.Is(p)
	return err
}

func (f *filterFlags) family(text string) (err error) {
	f.filter.Family, err = match.ParseFamily(text)
	return err
}

func (f *filterFlags) states(text string) (err error) {
	f.filter.States, err = match.ParseStates(text)
	return err
}

func (f *filterFlags) status(text string) (err error) {
	f.filter.Status, f.filter.Unset, err = match.ParseStatus(text)
	return err
}

func (f *filterFlags) mark(text string) (err error) {
	f.filter.Mark, f.filter.MarkMask, err = match.ParseMark(text)
	return err
}

func (f *filterFlags) id(text string) error {
	n, err := match.ParseNumber(text, 32)
	f.filter.ID = match.Is(n)
	return err
}

func (f *filterFlags) labels(text string) (err error) {
	names, err := connlabels()
	if err != nil {
		return err
	}
	f.filter.Labels, err = match.ParseLabels(text, (*[128]string)(names))
	return err
}

// String are the flags that were given, for people.
func (f *filterFlags) String() string { return strings.Join(f.given, " ") }

func (f *filterFlags) complete(cmd *cobra.Command) {
	fixed := func(words []string) cobra.CompletionFunc {
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	}
	flags := map[string]cobra.CompletionFunc{
		"proto": fixed(nat.Protocols), "family": fixed(match.Families),
		"state": fixed(match.StateNames), "status": fixed(match.StatusNames()),
	}
	for _, name := range []string{"orig-src", "orig-dst", "reply-src", "reply-dst", "orig-port-src", "orig-port-dst", "reply-port-src", "reply-port-dst",
		"icmp-type", "icmp-code", "icmp-id", "mark", "label", "zone", "orig-zone", "reply-zone", "id"} {
		flags[name] = cobra.NoFileCompletions
	}
	completeFlags(cmd, flags)
}

// prefix, u16 and u8 read the value of a flag into a filter.
func prefix(to *netip.Prefix) func(string) error {
	return func(text string) (err error) {
		*to, err = match.ParsePrefix(text)
		return err
	}
}

func u16(to *match.Opt[uint16]) func(string) error {
	return func(text string) error {
		n, err := match.ParseNumber(text, 16)
		*to = match.Is(uint16(n))
		return err
	}
}

func u8(to *match.Opt[uint8]) func(string) error {
	return func(text string) error {
		n, err := match.ParseNumber(text, 8)
		*to = match.Is(uint8(n))
		return err
	}
}
