package convert

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// dimension is conditions of a match that a rule of the file can except.
type dimension struct {
	name string
	// is has of a match what must be met, none each of what must not be, as a match of its own.
	is   func(m *nat.Match) nat.Match
	none func(m *nat.Match) []nat.Match
	// except adds what must be met to what must not be.
	except func(m, is *nat.Match)
	// own is true of conditions that only packets of the host's own programs meet, both ways.
	own bool
}

var dimensions = []dimension{
	{name: "destination",
		is: func(m *nat.Match) nat.Match { return nat.Match{To: specific(m.To)} },
		none: func(m *nat.Match) []nat.Match {
			return each(m.NotTo, func(n *nat.Match, p []netip.Prefix) { n.To = p })
		},
		except: func(m, is *nat.Match) { m.NotTo = nat.Union(m.NotTo, is.To) }},
	{name: "source",
		is: func(m *nat.Match) nat.Match { return nat.Match{From: specific(m.From)} },
		none: func(m *nat.Match) []nat.Match {
			return each(m.NotFrom, func(n *nat.Match, p []netip.Prefix) { n.From = p })
		},
		except: func(m, is *nat.Match) { m.NotFrom = nat.Union(m.NotFrom, is.From) }},
	{name: "service",
		is: func(m *nat.Match) nat.Match { return nat.Match{Protocol: m.Protocol, Ports: m.Ports} },
		none: func(m *nat.Match) (all []nat.Match) {
			for _, s := range m.NotServices {
				n := nat.Match{Protocol: s.Protocol}
				if s.Ports != nat.AllPorts {
					n.Ports = []nat.Ports{s.Ports}
				}
				all = append(all, n)
			}
			return all
		},
		except: exceptServices},
	{name: "interface by which packets come in",
		is:     func(m *nat.Match) nat.Match { return nat.Match{In: m.In} },
		none:   func(m *nat.Match) []nat.Match { return each(m.NotIn, func(n *nat.Match, p []string) { n.In = p }) },
		except: func(m, is *nat.Match) { m.NotIn = nat.Union(m.NotIn, is.In) }},
	{name: "interface by which packets leave",
		is:     func(m *nat.Match) nat.Match { return nat.Match{Out: m.Out} },
		none:   func(m *nat.Match) []nat.Match { return each(m.NotOut, func(n *nat.Match, p []string) { n.Out = p }) },
		except: func(m, is *nat.Match) { m.NotOut = nat.Union(m.NotOut, is.Out) }},
	{name: "mark",
		is: func(m *nat.Match) nat.Match { return nat.Match{Mark: m.Mark} },
		none: func(m *nat.Match) (all []nat.Match) {
			for _, k := range m.NotMarks {
				all = append(all, nat.Match{Mark: k})
			}
			return all
		},
		except: func(m, is *nat.Match) { m.NotMarks = nat.Union(m.NotMarks, []nat.Mark{is.Mark}) }},
	{name: "user", own: true,
		is: func(m *nat.Match) nat.Match { return nat.Match{Users: m.Users} },
		none: func(m *nat.Match) []nat.Match {
			return each(m.NotUsers, func(n *nat.Match, p []nat.IDs) { n.Users = p })
		},
		except: func(m, is *nat.Match) { m.NotUsers = nat.Union(m.NotUsers, is.Users) }},
	{name: "group", own: true,
		is: func(m *nat.Match) nat.Match { return nat.Match{Groups: m.Groups} },
		none: func(m *nat.Match) []nat.Match {
			return each(m.NotGroups, func(n *nat.Match, p []nat.IDs) { n.Groups = p })
		},
		except: func(m, is *nat.Match) { m.NotGroups = nat.Union(m.NotGroups, is.Groups) }},
	{name: "time of the day",
		is: func(m *nat.Match) nat.Match { return nat.Match{Hours: m.Hours} },
		none: func(m *nat.Match) []nat.Match {
			return each(m.NotHours, func(n *nat.Match, p []nat.Hours) { n.Hours = p })
		},
		except: func(m, is *nat.Match) { m.NotHours = nat.Union(m.NotHours, is.Hours) }},
	{name: "day of the week",
		is: func(m *nat.Match) nat.Match { return nat.Match{Days: m.Days} },
		none: func(m *nat.Match) []nat.Match {
			return each(m.NotDays, func(n *nat.Match, p []time.Weekday) { n.Days = p })
		},
		except: func(m, is *nat.Match) { m.NotDays = nat.Union(m.NotDays, is.Days) }},
	{name: "DSCP",
		is:     func(m *nat.Match) nat.Match { return nat.Match{DSCP: m.DSCP} },
		none:   func(m *nat.Match) []nat.Match { return each(m.NotDSCP, func(n *nat.Match, p []uint8) { n.DSCP = p }) },
		except: func(m, is *nat.Match) { m.NotDSCP = nat.Union(m.NotDSCP, is.DSCP) }},
}

// each is a match for every value of a list.
func each[T any](list []T, set func(n *nat.Match, one []T)) (all []nat.Match) {
	for i := range list {
		var n nat.Match
		set(&n, list[i:i+1:i+1])
		all = append(all, n)
	}
	return all
}

// specific are the prefixes that are not all addresses.
func specific(list []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// exceptServices takes ports out of those that are asked for, or names them as exceptions.
func exceptServices(m, is *nat.Match) {
	if m.Protocol != is.Protocol || len(m.Ports) == 0 || len(is.Ports) == 0 {
		m.NotServices = nat.Union(m.NotServices, is.Services())
		return
	}
	var left []nat.Ports
	for _, p := range m.Ports {
		left = append(left, p.Without(is.Ports)...)
	}
	if len(left) == 0 { // no list stands for all
		m.NotServices = nat.Union(m.NotServices, is.Services())
		return
	}
	m.Ports = left
}

// farApart reports whether two matches are for other ports or addresses, as nearly all of thousands are: faster than
// Overlaps, which knows more.
func farApart(a, b *nat.Match) bool {
	return a.Protocol != b.Protocol && a.Protocol != 0 && b.Protocol != 0 ||
		len(a.Ports) == 1 && len(b.Ports) == 1 && (a.Ports[0].Last < b.Ports[0].First || b.Ports[0].Last < a.Ports[0].First) ||
		len(a.To) == 1 && len(b.To) == 1 && a.To[0] != b.To[0] && a.To[0].IsSingleIP() && b.To[0].IsSingleIP() ||
		len(a.From) == 1 && len(b.From) == 1 && a.From[0] != b.From[0] && a.From[0].IsSingleIP() && b.From[0].IsSingleIP()
}

// without is the packets of m that do not meet x, as matches of which no two have a packet in common. word is the
// condition of x whose opposite no rule can have; own is true where all packets are of programs on the host itself.
func without(m, x *nat.Match, own bool) (parts []nat.Match, word string) {
	if !m.Overlaps(x) {
		return []nat.Match{*m}, ""
	}
	rest, plain := *m, *x
	plain.From, plain.To = specific(x.From), specific(x.To)
	for _, d := range dimensions {
		is, none := d.is(x), d.none(x)
		met := is.Covers(&rest)
		if d.own && !own && (!met || len(none) > 0) {
			return nil, d.name
		}
		if !met {
			part := rest
			d.except(&part, &is)
			parts = append(parts, part)
			rest, _ = rest.And(&is)
		}
		for i := range none {
			if part, ok := rest.And(&none[i]); ok {
				parts = append(parts, part)
				d.except(&rest, &none[i])
			}
		}
	}
	if !plain.Covers(&rest) {
		return nil, cmp.Or(map[bool]string{true: "addresses of the host"}[x.ToLocal], "source port")
	}
	return slices.DeleteFunc(parts, func(p nat.Match) bool { return !p.Overlaps(&p) }), ""
}
