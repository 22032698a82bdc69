package cli

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/spf13/cobra"
)

// filterFlags choose entries of a connection table, by the flags of conntrack(8).
type filterFlags struct {
	filter conntrack.Filter
	given  []string
	// any are the flags of NAT that were given without a value.
	any []anyNAT
}

// anyNAT is a flag that asks for any translation.
type anyNAT struct {
	name string
	to   *conntrack.NAT
}

// addFlags adds the flags that choose entries, with those of their short names and
// aliases that conntrack(8) has.
func (f *filterFlags) addFlags(cmd *cobra.Command) {
	all := &f.filter
	for _, flag := range []struct {
		name, short, alias, usage string
		set                       func(string) error
	}{
		{"orig-src", "s", "src", "from `ADDRESS[/PREFIX]`, before any translation", to(&all.Orig.Src, conntrack.ParsePrefix)},
		{"orig-dst", "d", "dst", "to `ADDRESS[/PREFIX]`, before any translation", to(&all.Orig.Dst, conntrack.ParsePrefix)},
		{"reply-src", "r", "", "whose replies come from `ADDRESS[/PREFIX]`", to(&all.Reply.Src, conntrack.ParsePrefix)},
		{"reply-dst", "q", "", "whose replies go to `ADDRESS[/PREFIX]`", to(&all.Reply.Dst, conntrack.ParsePrefix)},
		{"orig-port-src", "", "sport", "from `PORT` (or GRE key)", toNumber(&all.Orig.SrcPort, 16)},
		{"orig-port-dst", "", "dport", "to `PORT` (or GRE key)", toNumber(&all.Orig.DstPort, 16)},
		{"reply-port-src", "", "", "whose replies come from `PORT`", toNumber(&all.Reply.SrcPort, 16)},
		{"reply-port-dst", "", "", "whose replies go to `PORT`", toNumber(&all.Reply.DstPort, 16)},
		{"icmp-type", "", "", "of this ICMP `TYPE` number", toNumber(&all.ICMPType, 8)},
		{"icmp-code", "", "", "of this ICMP `CODE` number", toNumber(&all.ICMPCode, 8)},
		{"icmp-id", "", "", "of this ICMP `ID`", toNumber(&all.ICMPID, 16)},
		{"proto", "p", "protonum", "of protocol `NAME` or number: tcp, udp, …", to(&all.Proto, func(text string) (conntrack.Opt[uint8], error) {
			p, err := nat.ParseProtocol(text)
			return conntrack.Is(p), err
		})},
		{"family", "f", "", "of address `FAMILY`: ipv4 or ipv6", to(&all.Family, conntrack.ParseFamily)},
		{"state", "", "", "in one of these `STATES` of TCP, SCTP or DCCP, separated by commas", to(&all.States, conntrack.ParseStates)},
		{"status", "u", "", "with all of these `BITS`, separated by commas: ASSURED, UNREPLIED, OFFLOAD, …", func(text string) (err error) {
			all.Status, all.Unset, err = conntrack.ParseStatus(text)
			return err
		}},
		{"mark", "m", "", "of `MARK[/MASK]`", func(text string) (err error) {
			all.Mark, all.MarkMask, err = conntrack.ParseMark(text)
			return err
		}},
		{"label", "l", "", "with all of these `LABELS`, numbers or names, separated by commas", to(&all.Labels, parseLabels)},
		{"zone", "w", "", "of conntrack zone `N` in both directions", toNumber(&all.Zone, 16)},
		{"orig-zone", "", "", "of conntrack zone `N` in the original direction", toNumber(&all.Orig.Zone, 16)},
		{"reply-zone", "", "", "of conntrack zone `N` in the reply direction", toNumber(&all.Reply.Zone, 16)},
		{"id", "i", "", "of this `ID`, as --output id shows it", toNumber(&all.ID, 32)},
		{"src-nat", "n", "", "whose source was translated (=`TO`: to this address, prefix, ADDRESS:PORT or :PORT)", f.nat("src-nat", &all.SrcNAT)},
		{"dst-nat", "g", "", "whose destination was translated (=`TO`)", f.nat("dst-nat", &all.DstNAT)},
		{"any-nat", "j", "", "whose source or destination was translated (=`TO`)", f.nat("any-nat", &all.AnyNAT)},
	} {
		value := &parsed{set: func(text string) error {
			f.given = append(f.given, strings.TrimSuffix("--"+flag.name+" "+text, " "+anyTranslation))
			return flag.set(text)
		}}
		if flag.alias != "" {
			flag.usage += "; also --" + flag.alias
			cmd.Flags().Var(value, flag.alias, flag.usage)
			cmd.Flags().Lookup(flag.alias).Hidden = true
		}
		cmd.Flags().VarP(value, flag.name, flag.short, flag.usage)
		if strings.HasSuffix(flag.name, "-nat") {
			cmd.Flags().Lookup(flag.name).NoOptDefVal = anyTranslation
		}
	}
	completeFlags(cmd, map[string]cobra.CompletionFunc{
		"proto": completeWords(nat.Protocols...), "family": completeWords(conntrack.Families...),
		"state": completeWords(conntrack.StateNames...), "status": completeWords(conntrack.StatusNames()...),
	})
}

// to and toNumber read the value of a flag into a filter.
func to[T any](to *T, parse func(string) (T, error)) func(string) error { return into(to, parse).Set }

func toNumber[T uint8 | uint16 | uint32](to *conntrack.Opt[T], bits int) func(string) error {
	return func(text string) error {
		n, err := conntrack.ParseNumber(text, bits)
		*to = conntrack.Is(T(n))
		return err
	}
}

func parseLabels(text string) (conntrack.Labels, error) {
	names, err := connlabels()
	if err != nil {
		return conntrack.Labels{}, err
	}
	return conntrack.ParseLabels(text, (*[128]string)(names))
}

// anyTranslation is the value of a flag of NAT that is given without one.
const anyTranslation = "any"

func (f *filterFlags) nat(name string, to *conntrack.NAT) func(string) error {
	return func(text string) (err error) {
		if text == anyTranslation {
			f.any = append(f.any, anyNAT{name, to})
			to.On = true
			return nil
		}
		*to, err = conntrack.ParseNAT(text)
		return err
	}
}

// args takes the address behind a flag of NAT as conntrack(8) does, without a sign
// of equality; other words are too many.
func (f *filterFlags) args(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || len(f.any) != 1 {
		return cobra.NoArgs(cmd, args)
	}
	to, err := conntrack.ParseNAT(args[0])
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
			env.note("only connections with a translated source: -n is --src-nat here, as in conntrack(8); addresses are always numeric")
		}
	}
}

// String are the flags that were given, for people.
func (f *filterFlags) String() string { return strings.Join(f.given, " ") }
