package fake

import (
	"fmt"
	"net/netip"
	"os/exec"
	"reflect"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
)

// Static is a second engine for the behaviour suite: of a plan it claims the rules of kind
// static that are not stateless and for all connections of their host, and translates them by a table of its own, which nft(8)
// writes. It reads back what it remembers.
type Static struct{ Engine }

const staticTable = "inet natkit_static"

// Claim takes static rules.
func (*Static) Claim(p *gateway.Plan, _ gateway.Facts) (mine, rest *gateway.Plan, notes []gateway.Note) {
	stateless, narrow, pairs := map[gateway.Ref]bool{}, map[gateway.Ref]bool{}, map[gateway.Ref]bool{}
	for _, s := range p.Stateless {
		stateless[s.Rule] = true
	}
	for _, e := range p.Destinations {
		e.To, e.In = nil, nil
		narrow[e.Rule] = narrow[e.Rule] || !reflect.ValueOf(e.Match).IsZero()
	}
	for _, e := range p.Sources {
		pairs[e.Rule] = pairs[e.Rule] || e.Action.Pairs != ""
		e.From, e.In, e.Out, e.Original = nil, nil, nil, nil
		narrow[e.Rule] = narrow[e.Rule] || !reflect.ValueOf(e.Match).IsZero()
	}
	return divide("static", p, func(r gateway.Ref) string {
		switch {
		case r.Kind != "static":
			return "it is not static"
		case stateless[r]:
			return "it is stateless"
		case narrow[r]:
			return "it is for some connections of its host"
		case pairs[r]:
			return "it has pairs"
		}
		return ""
	})
}

// Apply writes the table in one transaction.
func (e *Static) Apply(ns *netns.Handle, p *gateway.Plan, digest string) (seal string, err error) {
	text := "table " + staticTable + "\ndelete table " + staticTable + "\n" + staticRules(p)
	if err := nft(ns, text); err != nil {
		return "", err
	}
	return e.Engine.Apply(ns, p, digest)
}

// Remove deletes the table.
func (e *Static) Remove(ns *netns.Handle) error {
	if there, err := e.Present(ns); err != nil || !there {
		return err
	}
	if err := nft(ns, "delete table "+staticTable+"\n"); err != nil {
		return err
	}
	return e.Engine.Remove(ns)
}

func nft(ns *netns.Handle, text string) error {
	return ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s\n%s", err, out, text)
		}
		return nil
	})
}

// staticRules hook in before natkit's own table.
func staticRules(p *gateway.Plan) string {
	var pre, local, post, invalid strings.Builder
	for _, d := range p.Destinations {
		on := d.On().Addr()
		line := fmt.Sprintf("%s daddr %s counter dnat %s to %s\n", ip(on), on, ip(on), d.Action.Backends[0])
		pre.WriteString(names("iifname", d.In) + line)
		if d.Local {
			local.WriteString(line)
		}
	}
	for _, s := range p.Sources {
		to := s.Action.To
		if s.IsHairpin() {
			h := s.Original[0]
			inside, others := p.LAN, ""
			if len(inside) == 0 {
				inside, others = p.WAN, "!= "
			}
			version := ip(h.Addr())
			does := "masquerade"
			if s.Action.Kind != nat.Masquerade {
				does = fmt.Sprintf("snat %s to %s", version, to[0].First)
			}
			fmt.Fprintf(&post, "ct status dnat iif != 0 %s%sct original %s daddr %s %s%s\n", names("iifname", inside, others), names("oifname", inside, others),
				version, nat.PrefixString(h), from(s.From), does)
			continue
		}
		condition := names("oifname", s.Out) + from(s.From)
		fmt.Fprintf(&post, "%scounter snat %s to %s\n", condition, ip(to[0].First), to[0].First)
		fmt.Fprintf(&invalid, "ct state invalid %sdrop\n", condition)
	}
	return "table " + staticTable + " {\n" + chain("pre", "nat hook prerouting priority -81", pre) + chain("local", "nat hook output priority -81", local) +
		chain("post", "nat hook postrouting priority 119", post) + chain("invalid", "filter hook forward priority 119", invalid) + "}\n"
}

func chain(name, kind string, rules strings.Builder) string {
	if rules.Len() == 0 {
		return ""
	}
	return "chain " + name + " {\ntype " + kind + ";\n" + rules.String() + "}\n"
}

func ip(a netip.Addr) string {
	if a.Is4() {
		return "ip"
	}
	return "ip6"
}

func names(key string, all []string, operator ...string) string {
	if len(all) == 0 {
		return ""
	}
	return key + " " + strings.Join(operator, "") + "{ " + strings.Join(all, ", ") + " } "
}

func from(prefixes []netip.Prefix) string {
	if len(prefixes) == 0 {
		return ""
	}
	return fmt.Sprintf("%s saddr %s ", ip(prefixes[0].Addr()), prefixes[0])
}
