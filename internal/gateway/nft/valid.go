package nft

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/gateway"
)

// valid refuses a plan that no file compiles to, such as one that was written by
// another program: addresses that are none, families that do not go together.
func valid(p *gateway.Plan) error {
	for i := range p.Sources {
		if err := validSource(&p.Sources[i]); err != nil {
			return fmt.Errorf("%s: %w", p.Sources[i].Rule, err)
		}
	}
	for i := range p.Destinations {
		if err := validDestination(&p.Destinations[i]); err != nil {
			return fmt.Errorf("%s: %w", p.Destinations[i].Rule, err)
		}
	}
	for _, s := range p.Stateless {
		if err := errors.Join(like(s.Inside, s.Outside), neutralLength(s)); err != nil {
			return fmt.Errorf("%s: %w", s.Rule, err)
		}
	}
	for _, u := range p.Untracked {
		if !u.On.IsValid() || u.On.Is4In6() {
			return fmt.Errorf("%s: %q is no address", u.Rule, u.On)
		}
	}
	return nil
}

func validSource(s *gateway.Source) error {
	f := sourceFamily(s)
	prefixes := append(append([]netip.Prefix{}, s.From...), s.NotTo...)
	if s.Hairpin != (gateway.HairpinOf{}) {
		prefixes = append(prefixes, s.Hairpin.Prefix)
	}
	if err := all(f, prefixes); err != nil {
		return err
	}
	for _, r := range s.To {
		if !one(f, r.First) || !one(f, r.Last) || r.Last.Compare(r.First) < 0 {
			return fmt.Errorf("%v is no range of the same family", r)
		}
	}
	switch {
	case s.Masquerade || s.Prefix.IsValid() && len(s.From) == 1:
	case s.Prefix.IsValid() || len(s.To) == 0:
		return errors.New("it says nothing to translate to")
	}
	if s.Prefix.IsValid() {
		return like(s.From[0], s.Prefix)
	}
	return nil
}

func validDestination(d *gateway.Destination) error {
	f := familyOf(d.On.Addr())
	if err := all(f, append([]netip.Prefix{d.On}, d.From...)); err != nil {
		return err
	}
	if d.Prefix.IsValid() {
		return like(d.On, d.Prefix)
	}
	if !one(f, d.To.Address) {
		return fmt.Errorf("%q is no address of the same family", d.To.Address)
	}
	return nil
}

// one reports whether a is an address of the family.
func one(f *family, a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && familyOf(a) == f }

func all(f *family, prefixes []netip.Prefix) error {
	for _, p := range prefixes {
		if !p.IsValid() || !one(f, p.Addr()) {
			return fmt.Errorf("%q is no prefix of the same family", p)
		}
	}
	return nil
}

// like: two prefixes of one family and length.
func like(a, b netip.Prefix) error {
	if err := all(familyOf(a.Addr()), []netip.Prefix{a, b}); err != nil {
		return err
	}
	if a.Bits() != b.Bits() {
		return fmt.Errorf("%v and %v have different lengths", a, b)
	}
	return nil
}

func neutralLength(p gateway.Pair) error {
	if p.Neutral && (p.Inside.Addr().Is4() || p.Inside.Bits() > 64) {
		return fmt.Errorf("%v cannot be replaced without changing checksums: RFC 6296 is for IPv6 prefixes of up to 64 bits", p.Inside)
	}
	return nil
}
