package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Reasons has the names of a kernel's reasons. The zero value is that of a kernel
// without any.
type Reasons struct {
	// Carried reports whether the tracepoint skb:kfree_skb hands on a reason after skb and
	// location, as it does since Linux 5.17.
	Carried bool
	names   map[uint32]string
}

// MakeReasons returns a table of names by number, for tests.
func MakeReasons(names map[uint32]string) *Reasons { return &Reasons{Carried: true, names: names} }

// ReadReasons reads the reasons of the kernel proper and of its subsystems, whose modules may
// not be there. It loads nothing where the tracepoint has no reason.
func ReadReasons(types *btf.Cache) (*Reasons, error) {
	t := &Reasons{names: map[uint32]string{}}
	kernel, err := types.Kernel()
	if err != nil {
		return t, fmt.Errorf("read the kernel's types from /sys/kernel/btf/vmlinux: %w (needs CONFIG_DEBUG_INFO_BTF)", err)
	}
	if t.Carried, err = carried(kernel); err != nil || !t.Carried {
		return t, err
	}
	values, err := enum(kernel, "skb_drop_reason")
	if err != nil {
		return t, err
	}
	for _, v := range values {
		t.names[uint32(v.Value)] = strings.TrimPrefix(v.Name, "SKB_DROP_REASON_")
	}
	t.readSubsystems(kernel, types)
	return t, nil
}

// subsystems have reasons of their own since Linux 6.4, with their number in the
// upper half (net/dropreason.h).
var subsystems = []struct{ module, enum, prefix string }{
	{"mac80211", "mac80211_drop_reason", "RX_DROP_"},
	{"mac80211", "mac80211_drop_reason", "___RX_DROP_"},
	{"openvswitch", "ovs_drop_reason", ""},
}

func (t *Reasons) readSubsystems(kernel *btf.Spec, types *btf.Cache) {
	for _, s := range subsystems {
		values, err := enum(kernel, s.enum)
		if err != nil {
			module, err := types.Module(s.module)
			if err != nil {
				continue
			}
			values, _ = enum(module, s.enum)
		}
		for _, v := range values {
			if v.Value >= 1<<16 {
				t.names[uint32(v.Value)] = strings.TrimPrefix(v.Name, s.prefix)
			}
		}
	}
	if groups, err := enum(kernel, "skb_drop_reason_subsys"); err == nil {
		for _, v := range groups {
			if number := uint32(v.Value) << 16; number != 0 && t.names[number] == "" {
				t.names[number] = strings.TrimPrefix(v.Name, "SKB_DROP_REASON_SUBSYS_")
			}
		}
	}
}

// Name is empty where the kernel has no reasons.
func (t *Reasons) Name(number uint32) string {
	if t == nil || !t.Carried {
		return ""
	}
	if name, ok := t.names[number]; ok {
		return name
	}
	if group, ok := t.names[number&^0xffff]; ok && number >= 1<<16 {
		return fmt.Sprintf("%s %d", group, number&0xffff)
	}
	return fmt.Sprintf("reason %d", number)
}

// Number is 0 where there is no such reason.
func (t *Reasons) Number(name string) uint32 {
	for number, other := range t.names {
		if other == name {
			return number
		}
	}
	return 0
}

func enum(s *btf.Spec, name string) ([]btf.EnumValue, error) {
	var e *btf.Enum
	if err := s.TypeByName(name, &e); err != nil {
		return nil, fmt.Errorf("find enum %s in the kernel's types: %w", name, err)
	}
	return e.Values, nil
}

// carried inspects the tracepoint's prototype, which begins with an argument of its
// own.
func carried(s *btf.Spec) (bool, error) {
	var t *btf.Typedef
	if err := s.TypeByName("btf_trace_kfree_skb", &t); err != nil {
		// Before 5.5 there is no such type, and no reason either.
		if errors.Is(err, btf.ErrNotFound) {
			return false, nil
		}
		return false, fmt.Errorf("find the tracepoint skb:kfree_skb in the kernel's types: %w", err)
	}
	pointer, ok := t.Type.(*btf.Pointer)
	if !ok {
		return false, fmt.Errorf("the kernel's type %s is no pointer", t.Name)
	}
	proto, ok := pointer.Target.(*btf.FuncProto)
	if !ok || len(proto.Params) < 3 {
		return false, fmt.Errorf("the kernel's type %s is no function of an skb and a location", t.Name)
	}
	if len(proto.Params) == 3 {
		return false, nil
	}
	e, ok := btf.UnderlyingType(proto.Params[3].Type).(*btf.Enum)
	return ok && e.Name == "skb_drop_reason", nil
}
